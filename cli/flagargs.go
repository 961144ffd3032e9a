// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"keelson/cluster"
)

// roleArgs are the flags of roles set in fl, as arguments for another process.
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

// absoluteFiles makes file names absolute in the flags whose usage says FILE.
func absoluteFiles(fl *pflag.FlagSet) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	return absoluteFrom(here, fl, func(string) bool { return true })
}

// absoluteFrom does the same for the flags selected by want; relative names are resolved from dir.
func absoluteFrom(dir string, fl *pflag.FlagSet, want func(name string) bool) error {
	absolute := func(path string) string {
		if path == "" || path == "-" || filepath.IsAbs(path) { // empty and - stay as they are
			return path
		}
		return filepath.Join(dir, path)
	}
	var errs []error
	fl.Visit(func(f *pflag.Flag) {
		abs := absolute
		if !want(f.Name) {
			return
		}
		switch of, _ := pflag.UnquoteUsage(f); of {
		case "FILE":
		case "CERT,KEY[:NAMES]":
			abs = func(text string) string {
				cert, key, _ := strings.Cut(text, ",")
				return absolute(cert) + "," + absolute(key)
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
			paths[i] = abs(p)
		}
		if many {
			errs = append(errs, list.Replace(paths))
			return
		}
		errs = append(errs, f.Value.Set(paths[0]))
	})
	return errors.Join(errs...)
}
