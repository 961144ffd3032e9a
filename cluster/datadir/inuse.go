// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// maxDescriptors limits the descriptors examined per process. The lock of a data directory is among the first.
const maxDescriptors = 256

// InUse are the data directories that processes of this machine have locked.
func InUse(proc string) []Dir {
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd"))
	var out []Dir
	for _, dir := range processes {
		f, err := os.Open(dir)
		if err != nil {
			continue // the process has ended
		}
		names, _ := f.Readdirnames(maxDescriptors)
		_ = f.Close()
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(dir, name))
			base := filepath.Base(target)
			if err != nil || base != "keelson.pid" && base != "node.pid" ||
				strings.ContainsFunc(target, func(r rune) bool { return !unicode.IsPrint(r) }) {
				continue
			}
			if d := Dir(filepath.Dir(target)); !slices.Contains(out, d) {
				out = append(out, d)
			}
		}
	}
	return out
}
