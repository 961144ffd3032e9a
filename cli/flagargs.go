// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"keelson/cluster"
)

// roleArgs are the flags of roles that were given in fl, as arguments for another process.
func roleArgs(fl *pflag.FlagSet) []string {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&cluster.Options{}).AddFlags(known)
	var args []string
	fl.Visit(func(f *pflag.Flag) {
		if known.Lookup(f.Name) == nil {
			return
		}
		value := f.Value.String()
		switch f.Value.Type() {
		case "stringSlice", "stringToString":
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		case "stringArray":
			if list, ok := f.Value.(pflag.SliceValue); ok {
				for _, one := range list.GetSlice() {
					args = append(args, "--"+f.Name+"="+one)
				}
				return
			}
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

// absoluteFiles makes the files that were named in fl, by flags whose usage says FILE, independent of the working directory.
func absoluteFiles(fl *pflag.FlagSet) error {
	var errs []error
	fl.Visit(func(f *pflag.Flag) {
		abs := absolute
		switch of, _ := pflag.UnquoteUsage(f); of {
		case "FILE":
		case "CERT,KEY[:NAMES]":
			abs = func(text string) (string, error) {
				cert, rest, _ := strings.Cut(text, ",")
				cert, err := absolute(cert)
				key, err2 := absolute(rest)
				return cert + "," + key, errors.Join(err, err2)
			}
		default:
			return
		}
		list, many := f.Value.(pflag.SliceValue)
		paths := []string{f.Value.String()}
		if many {
			paths = list.GetSlice()
		}
		for i, p := range paths {
			p, err := abs(p)
			errs = append(errs, err)
			paths[i] = p
		}
		if many {
			errs = append(errs, list.Replace(paths))
			return
		}
		errs = append(errs, f.Value.Set(paths[0]))
	})
	return errors.Join(errs...)
}

// absolute leaves nothing, and -, as they are.
func absolute(path string) (string, error) {
	if path == "" || path == "-" {
		return path, nil
	}
	return filepath.Abs(path)
}
