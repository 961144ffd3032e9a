// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

var errFindUsage = errors.New("usage: find [PATH]... [-maxdepth N] [-name PATTERN] [-type f|d|l|b|c|p|s] [-print]")

// finding is one call of find: all conditions must hold.
type finding struct {
	paths []string
	names []string
	kinds string
	depth int
}

func parseFinding(args []string) (finding, error) {
	f := finding{depth: math.MaxInt}
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		f.paths = append(f.paths, args[0])
		args = args[1:]
	}
	if f.paths == nil {
		f.paths = []string{"."}
	}
	for len(args) > 0 {
		word := args[0]
		value := ""
		args = args[1:]
		if word == "-print" {
			continue
		}
		if len(args) == 0 {
			return f, fmt.Errorf("%s is not known or needs a value; %w", word, errFindUsage)
		}
		value = args[0]
		args = args[1:]
		switch word {
		case "-name":
			if _, err := filepath.Match(value, ""); err != nil {
				return f, fmt.Errorf("pattern %q: %w", value, err)
			}
			f.names = append(f.names, value)
		case "-type":
			if len(value) != 1 || !strings.Contains("fdlbcps", value) {
				return f, fmt.Errorf("type %q is not known; %w", value, errFindUsage)
			}
			f.kinds += value
		case "-maxdepth":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return f, fmt.Errorf("depth %q is not a number", value)
			}
			f.depth = int(n) // 31 bits
		default:
			return f, fmt.Errorf("%s is not known; %w", word, errFindUsage)
		}
	}
	return f, nil
}

// kindLetter is the letter of a file's type.
func kindLetter(fileMode fs.FileMode) string {
	switch {
	case fileMode.IsDir():
		return "d"
	case fileMode&fs.ModeSymlink != 0:
		return "l"
	case fileMode&fs.ModeNamedPipe != 0:
		return "p"
	case fileMode&fs.ModeSocket != 0:
		return "s"
	case fileMode&fs.ModeCharDevice != 0:
		return "c"
	case fileMode&fs.ModeDevice != 0:
		return "b"
	}
	return "f"
}

func (f finding) matches(d fs.DirEntry, path string) bool {
	for _, pattern := range f.names {
		if ok, err := filepath.Match(pattern, filepath.Base(path)); !ok || err != nil {
			return false
		}
	}
	return f.kinds == "" || strings.Trim(f.kinds, kindLetter(d.Type())) == ""
}

// find prints the paths of a tree that match.
func find(args []string, std stdio) int {
	finding, err := parseFinding(args[1:])
	if err != nil {
		return complain(std, "find", err)
	}
	code := 0
	for _, top := range finding.paths {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				code = complain(std, "find", err)
				return nil
			}
			if finding.matches(d, path) {
				if _, err := fmt.Fprintln(std.out, joined(top, path)); err != nil {
					return err
				}
			}
			if d.IsDir() && depthOf(top, path) >= finding.depth {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return complain(std, "find", err)
		}
	}
	return code
}

// joined is a path below top, which keeps a leading "./".
func joined(top, path string) string {
	if rel, err := filepath.Rel(top, path); err == nil && rel != "." {
		return strings.TrimSuffix(top, string(os.PathSeparator)) + "/" + rel
	}
	return top
}

func depthOf(top, path string) int {
	rel, err := filepath.Rel(top, path)
	if err != nil || rel == "." {
		return 0
	}
	return strings.Count(rel, "/") + 1
}
