// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// followEvery is how often tail -f looks for more.
const followEvery = 200 * time.Millisecond

// follow prints the end of a file by first, then what is appended to it, and returns only with an error. A file that
// becomes shorter is read from its start. byName (-F) also follows the name: to another file that takes it, and to
// one that does not exist yet.
func follow(name string, byName bool, first func(io.Reader) error, std stdio) error {
	file, err := os.Open(name)
	switch {
	case err == nil:
		err = first(file)
	case byName:
		fmt.Fprintf(std.err, "tail: %v\n", err)
		err = nil
	}
	for ; err == nil; time.Sleep(followEvery) {
		if file == nil {
			if file, err = os.Open(name); err != nil {
				file = nil
				err = nil // it may come
				continue
			}
		}
		err = more(file, std)
		if err == nil && byName && replaced(name, file) {
			fmt.Fprintf(std.err, "tail: %s: another file follows\n", name)
			err = file.Close()
			file = nil
		}
	}
	return err
}

// more prints what a file has beyond the place where it was read to.
func more(file *os.File, std stdio) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	at, err := file.Seek(0, io.SeekCurrent)
	if err == nil && info.Mode().IsRegular() && info.Size() < at {
		fmt.Fprintf(std.err, "tail: %s: file truncated\n", file.Name())
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(std.out, file)
	}
	return err
}

// replaced reports whether the name is another file's now, or no file's.
func replaced(name string, file *os.File) bool {
	info, err := os.Stat(name)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	open, err := file.Stat()
	return err == nil && !os.SameFile(info, open)
}
