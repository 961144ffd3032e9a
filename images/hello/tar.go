// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// archiver is one call of tar: enough for `kubectl cp`, which runs "tar cf - PATH" and "tar -xmf - -C DIR".
type archiver struct {
	mode  byte // c, x or t
	file  string
	dir   string
	names []string
	io    stdio
}

func tarTool(args []string, std stdio) int {
	a, err := parseTar(args[1:], std)
	if err == nil {
		err = a.run()
	}
	if err != nil {
		return complain(std, "tar", err)
	}
	return 0
}

//nolint:revive,staticcheck // the dots are of the usage
var errTarUsage = errors.New("usage: tar c|x|t[f FILE] [-C DIR] [PATH]...")

func parseTar(args []string, std stdio) (*archiver, error) {
	a := &archiver{file: "-", dir: ".", io: std}
	for first := true; len(args) > 0; first = false {
		arg := args[0]
		args = args[1:]
		switch {
		case strings.HasPrefix(arg, "--"): // options such as --no-same-owner are ignored
			continue
		case !first && !strings.HasPrefix(arg, "-") || arg == "-":
			a.names = append(a.names, arg)
			continue
		}
		for _, letter := range strings.TrimPrefix(arg, "-") {
			switch letter {
			case 'c', 'x', 't':
				a.mode = byte(letter)
			case 'f', 'C':
				if len(args) == 0 {
					return nil, errTarUsage
				}
				if letter == 'f' {
					a.file = args[0]
				} else {
					a.dir = args[0]
				}
				args = args[1:]
			case 'm', 'p', 'o', 'v':
			default:
				return nil, fmt.Errorf("option %q is not known; %w", letter, errTarUsage)
			}
		}
	}
	if a.mode == 0 || a.mode == 'c' && len(a.names) == 0 {
		return nil, errTarUsage
	}
	return a, nil
}

func (a *archiver) run() error {
	if a.mode == 'c' {
		out := a.io.out
		if a.file != "-" {
			f, err := os.Create(a.file)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // the end of the archive has been written
			out = f
		}
		return a.create(out)
	}
	in := a.io.in
	if a.file != "-" {
		f, err := os.Open(a.file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	return a.read(in)
}

func (a *archiver) create(out io.Writer) error {
	writer := tar.NewWriter(out)
	for _, name := range a.names {
		err := filepath.WalkDir(filepath.Join(a.dir, name), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			stored := p
			if !filepath.IsAbs(name) && a.dir != "." {
				if stored, err = filepath.Rel(a.dir, p); err != nil {
					return err
				}
			}
			return pack(writer, p, stored, d)
		})
		if err != nil {
			return err
		}
	}
	return writer.Close()
}

// pack adds one file, directory or link. Pipes, sockets and devices are left out.
func pack(writer *tar.Writer, p, stored string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(p); err != nil {
			return err
		}
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = strings.TrimLeft(filepath.ToSlash(stored), "/") // relative names, as in tar
	if info.IsDir() {
		header.Name += "/"
	}
	if err := writer.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.CopyN(writer, f, header.Size)
	return err
}

// read lists or extracts an archive. Files stay below the directory: os.Root refuses ".." and links that lead out.
func (a *archiver) read(in io.Reader) error {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	reader := tar.NewReader(in)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if a.mode == 't' {
			if _, err := fmt.Fprintln(a.io.out, header.Name); err != nil {
				return err
			}
			continue
		}
		if err := unpack(root, reader, header); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func unpack(root *os.Root, in io.Reader, header *tar.Header) error {
	name := path.Clean(strings.TrimLeft(header.Name, "/"))
	if name == "." {
		return nil
	}
	mode := fs.FileMode(header.Mode) & fs.ModePerm // the rest is masked away
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeSymlink:
		_ = root.Remove(name) // if it fails, so does the next step
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		_ = root.Remove(name) // do not write through a link
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close())
	}
	return nil // hard links, devices and pipes are skipped
}
