// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// span is a part of the process's address space.
type span struct{ from, to uintptr }

// releaseText releases the resident pages of the program's file, most of which were needed for the start only. They
// stay in the page cache, and are mapped again at the next access.
func releaseText() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program's file: %w", err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read the memory map: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	spans, err := cleanSpans(f, exe)
	if err != nil {
		return err
	}
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release %x-%x: %w", s.from, s.to, errno)
		}
	}
	return nil
}

// cleanSpans lists the mappings of file exe in smaps that are not writable and have no page that differs from the file.
func cleanSpans(smaps io.Reader, exe string) ([]span, error) {
	var out []span
	var at span
	ours := false
	dirty := false
	end := func() {
		if ours && !dirty {
			out = append(out, at)
		}
	}
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 {
			continue
		}
		if name, ok := strings.CutSuffix(f[0], ":"); ok { // a fact about the mapping above
			switch name {
			case "Anonymous", "Swap": // pages may be dirty because the file is not written to disk yet
				dirty = dirty || len(f) < 2 || f[1] != "0"
			}
			continue
		}
		end()
		ours = false
		dirty = false
		from, to, ok := strings.Cut(f[0], "-")
		if !ok || len(f) < 6 {
			continue
		}
		lo, err1 := strconv.ParseUint(from, 16, 64)
		hi, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil || hi <= lo {
			return nil, fmt.Errorf("memory map: %q is no mapping", lines.Text())
		}
		at = span{uintptr(lo), uintptr(hi)}
		ours = f[5] == exe && strings.HasPrefix(f[1], "r") && f[1][1] == '-' && f[1][3] == 'p'
	}
	end()
	return out, lines.Err()
}
