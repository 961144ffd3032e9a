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

// logDir is the http.FileSystem of GET /logs/: listings and files below one directory. No path and no link leads out of
// it. Only files and directories exist in it; a FIFO, for instance, would block the reader.
type logDir string

// Open implements http.FileSystem.
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
	file, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fs.ErrNotExist // also for a link that leads out of the directory
	}
	st, err := file.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func (d logDir) handler() http.Handler { return http.StripPrefix("/logs/", http.FileServer(d)) }
