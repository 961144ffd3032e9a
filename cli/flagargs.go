// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"keelson/cluster"
	"keelson/cluster/flags"
)

// roleArgs are the flags of roles set in fl, as arguments for another process.
func roleArgs(fl *pflag.FlagSet) []string {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.Add(known, (&cluster.Options{}).Rows())
	var args []string
	fl.Visit(func(flag *pflag.Flag) {
		if known.Lookup(flag.Name) == nil {
			return
		}
		value := flag.Value.String()
		switch flag.Value.Type() {
		case "stringSlice", "stringToString":
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		default: // the text of another list is no argument
			if list, ok := flag.Value.(pflag.SliceValue); ok {
				for _, one := range list.GetSlice() {
					args = append(args, "--"+flag.Name+"="+one)
				}
				return
			}
		}
		args = append(args, "--"+flag.Name+"="+value)
	})
	return args
}

// absoluteFiles makes names absolute in the flags whose usage says FILE or DIR.
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
	fl.Visit(func(flag *pflag.Flag) {
		abs := absolute
		if !want(flag.Name) {
			return
		}
		switch of, _ := pflag.UnquoteUsage(flag); of {
		case "FILE", "DIR":
		case "CERT,KEY[:NAMES]":
			abs = func(text string) string {
				cert, key, _ := strings.Cut(text, ",")
				return absolute(cert) + "," + absolute(key)
			}
		default:
			return
		}
		list, many := flag.Value.(pflag.SliceValue)
		paths := []string{flag.Value.String()}
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
		errs = append(errs, flag.Value.Set(paths[0]))
	})
	return errors.Join(errs...)
}
