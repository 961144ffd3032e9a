// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

var (
	cpSyntax = optionSyntax{letters: "rRapfvd", usage: "cp [-r] [-p] [-f] SOURCE... TARGET"}
	mvSyntax = optionSyntax{letters: "fvn", usage: "mv [-f] [-n] SOURCE... TARGET"}
	lnSyntax = optionSyntax{letters: "sfnv", usage: "ln -s [-f] [-n] SOURCE... TARGET"}
)

// toTarget calls do for each source with its target: a file's name, or one below a directory. noFollow: a link to a
// directory is a file.
func toTarget(who string, s optionSyntax, words []string, noFollow bool, std stdio, do func(
	from, to string,
) error,
) int {
	if len(words) < 2 {
		return complain(std, who, s.wantUsage())
	}
	sources := words[:len(words)-1]
	target := words[len(words)-1]
	look := os.Stat
	if noFollow {
		look = os.Lstat
	}
	fi, err := look(target)
	dir := err == nil && fi.IsDir()
	if !dir && len(sources) > 1 {
		return complain(std, who, fmt.Errorf("%s is not a directory", target))
	}
	return forEach(who, sources, std, func(from string) error {
		if dir {
			return do(from, filepath.Join(target, filepath.Base(from)))
		}
		return do(from, strings.TrimRight(target, "/"))
	})
}

// copier is one call of cp, or of mv between file systems.
type copier struct {
	deep  bool // directories, and links as links
	times bool // and owners
	force bool
}

func cp(args []string, std stdio) int {
	o, words, err := cpSyntax.parse(args)
	if err != nil {
		return complain(std, "cp", err)
	}
	c := copier{deep: o.has('r') || o.has('R') || o.has('a'), times: o.has('p') || o.has('a'), force: o.has('f')}
	return toTarget("cp", cpSyntax, words, false, std, c.copy)
}

// copy copies a file, or a tree with all that is in it.
func (c copier) copy(from, to string) error {
	look := os.Stat
	if c.deep {
		look = os.Lstat
	}
	fi, err := look(from)
	if err != nil {
		return err
	}
	if there, err := os.Stat(to); err == nil && os.SameFile(fi, there) {
		return fmt.Errorf("%s and %s are the same file", from, to)
	}
	switch {
	case fi.IsDir() && !c.deep:
		return fmt.Errorf("%s is a directory, which needs -r", from)
	case fi.IsDir():
		if inside, err := isBelow(from, to); err != nil || inside {
			return errors.Join(err, fmt.Errorf("%s cannot be copied into itself, %s", from, to))
		}
		return c.tree(from, to, fi)
	}
	return c.one(from, to, fi)
}

// isBelow reports whether a path, which need not exist, is a directory or in it.
func isBelow(dir, path string) (bool, error) {
	top, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return false, err
	}
	for {
		if fi, err := os.Stat(path); err == nil && os.SameFile(top, fi) {
			return true, nil
		}
		if path == filepath.Dir(path) {
			return false, nil
		}
		path = filepath.Dir(path)
	}
}

func (c copier) tree(from, to string, fi os.FileInfo) error {
	err := os.Mkdir(to, fi.Mode().Perm()|0o700)
	if there, serr := os.Stat(to); errors.Is(err, os.ErrExist) && serr == nil && there.IsDir() {
		err = nil
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	errs := []error{err}
	for _, e := range entries {
		info, err := e.Info()
		switch next, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name()); {
		case err != nil:
			errs = append(errs, err)
		case info.IsDir():
			errs = append(errs, c.tree(next, target, info))
		default:
			errs = append(errs, c.one(next, target, info))
		}
	}
	return errors.Join(append(errs, os.Chmod(to, fi.Mode().Perm()), c.keep(to, fi))...)
}

// one copies what is not a directory.
func (c copier) one(from, to string, fi os.FileInfo) error {
	switch {
	case fi.Mode()&os.ModeSymlink != 0:
		text, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.Symlink(text, to)
	case c.deep && !fi.Mode().IsRegular():
		return fmt.Errorf("%s is not a file, a directory or a link", from)
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	create := func() (*os.File, error) { return os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fi.Mode().Perm()) }
	out, err := create()
	if err != nil && c.force && os.Remove(to) == nil {
		out, err = create()
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), c.keep(to, fi))
}

// keep gives a copy the mode, the times and, if it may, the owner of the original.
func (c copier) keep(path string, fi os.FileInfo) error {
	if !c.times {
		return nil
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	return errors.Join(os.Chmod(path, fi.Mode()), os.Chtimes(path, fi.ModTime(), fi.ModTime()))
}

func mv(args []string, std stdio) int {
	o, words, err := mvSyntax.parse(args)
	if err != nil {
		return complain(std, "mv", err)
	}
	return toTarget("mv", mvSyntax, words, false, std, func(from, to string) error {
		if _, err := os.Lstat(to); err == nil && o.has('n') {
			return nil
		}
		err := os.Rename(from, to)
		if !errors.Is(err, syscall.EXDEV) {
			return err
		}
		if err := (copier{deep: true, times: true, force: true}).copy(from, to); err != nil {
			return err
		}
		return os.RemoveAll(from)
	})
}

// ln makes links: symbolic ones with -s. -f replaces what is there, -n replaces a link to a directory in place of a
// link in that directory.
func ln(args []string, std stdio) int {
	opts, words, err := lnSyntax.parse(args)
	if err != nil {
		return complain(std, "ln", err)
	}
	if len(words) == 1 {
		words = append(words, ".")
	}
	link := os.Link
	if opts.has('s') {
		link = os.Symlink
	}
	return toTarget("ln", lnSyntax, words, opts.has('n'), std, func(from, to string) error {
		if opts.has('f') {
			if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return link(from, to)
	})
}
