// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// logDir is the directory whose files GET /logs/ shows: a listing, and each file beneath it. No path and no link leads out of it; what is
// neither a file nor a directory, such as a pipe that nobody writes to, is not there.
type logDir string

// Open is http.FileSystem's.
func (d logDir) Open(name string) (http.File, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // what was opened in it stays open
	rel := strings.TrimPrefix(path.Clean("/"+name), "/")
	if rel == "" {
		rel = "."
	}
	f, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fs.ErrNotExist // a link that leads out is answered like what is not there
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (d logDir) handler() http.Handler { return http.StripPrefix("/logs/", http.FileServer(d)) }
