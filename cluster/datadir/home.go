// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// homeFile stores the path of a node's data directory. The records of its containers name processes and cgroups of that
// path: a node on a copy would end them.
const homeFile = "home"

// keepHome stores the path, and returns an error if the directory is a copy of another one that is still there.
func (d Dir) keepHome() error {
	b, err := os.ReadFile(d.Sub(homeFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the path of the data directory: %w", err)
	}
	was := Dir(strings.TrimSuffix(string(b), "\n"))
	switch {
	case was == d:
		return nil
	case was != "" && d.copyOf(was):
		return fmt.Errorf("%s is a copy of %s, whose containers this node would end: use that one, or run `keelson "+
			"down --data-dir %s` and delete %s", d, was, was, d.Sub(homeFile))
	}
	// On a disk that is full it is left to the next start.
	_ = os.WriteFile(d.Sub(homeFile), []byte(d+"\n"), 0o600)
	return nil
}

// copyOf reports whether another directory has the node that is named there.
func (d Dir) copyOf(was Dir) bool {
	here, err := os.Stat(string(d))
	if err != nil {
		return false
	}
	there, err := os.Stat(string(was))
	return err == nil && !os.SameFile(here, there) && Exists(was.Sub(homeFile))
}
