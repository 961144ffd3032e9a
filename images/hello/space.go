// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var (
	duSyntax   = optionSyntax{letters: "skhmxa", usage: "du [-s] [-h|-m] [PATH]..."}
	dfSyntax   = optionSyntax{letters: "hkmTPai", usage: "df [-h|-m] [PATH]..."}
	freeSyntax = optionSyntax{letters: "hkmb", usage: "free [-h|-m|-b]"}
)

// scaled formats a number of bytes as the options say: -h with a unit, -m in MiB, else in KiB, rounded up.
func scaled(opts options, bytes uint64) string {
	switch {
	case opts.has('h'):
		f := float64(bytes)
		unit := ""
		for _, u := range []string{"K", "M", "G", "T", "P"} {
			if f < 1024 {
				break
			}
			f = f / 1024
			unit = u
		}
		if unit == "" || f >= 100 {
			return strconv.FormatFloat(f, 'f', 0, 64) + unit
		}
		return strconv.FormatFloat(f, 'f', 1, 64) + unit
	case opts.has('b'):
		return strconv.FormatUint(bytes, 10)
	case opts.has('m'):
		return strconv.FormatUint((bytes+1<<20-1)>>20, 10)
	}
	return strconv.FormatUint((bytes+1<<10-1)>>10, 10)
}

// diskUsage counts the disk usage of trees.
type diskUsage struct {
	seen map[[2]uint64]bool // files with several names, by device and inode
	each func(path string, bytes uint64)
	fail func(error)
}

// of is the disk usage of a path and all that is below it.
func (u *diskUsage) of(path string, fi os.FileInfo) uint64 {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	id := [2]uint64{st.Dev, st.Ino}
	if !fi.IsDir() && st.Nlink > 1 {
		if u.seen[id] {
			return 0
		}
		u.seen[id] = true
	}
	total := uint64(st.Blocks) * 512 // not negative
	if !fi.IsDir() {
		return total
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		u.fail(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil {
			total += u.of(filepath.Join(path, e.Name()), info)
		} else if !errors.Is(err, fs.ErrNotExist) { // it has gone since
			u.fail(err)
		}
	}
	u.each(path, total)
	return total
}

// du prints the disk usage of directories; -s: only of those that are named.
func du(args []string, std stdio) int {
	opts, paths, err := duSyntax.parse(args)
	if err != nil {
		return complain(std, "du", err)
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	code := 0
	row := func(path string, bytes uint64) { fmt.Fprintf(std.out, "%s\t%s\n", scaled(opts, bytes), path) }
	u := &diskUsage{seen: map[[2]uint64]bool{}, each: row, fail: func(err error) { code = complain(std, "du", err) }}
	if opts.has('s') {
		u.each = func(string, uint64) {}
	}
	for _, p := range paths {
		fi, err := os.Lstat(p)
		if err != nil {
			code = complain(std, "du", err)
			continue
		}
		if total := u.of(p, fi); opts.has('s') || !fi.IsDir() {
			row(p, total)
		}
	}
	return code
}

// mount is a line of /proc/mounts.
type mount struct{ device, point string }

func parseMounts(text string) []mount {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []mount
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 {
			out = append(out, mount{unescape.Replace(f[0]), unescape.Replace(f[1])})
		}
	}
	return out
}

// mountOf is the mount that a path is on: the last of those with the longest prefix.
func mountOf(all []mount, path string) mount {
	best := mount{"-", "/"}
	for _, m := range all {
		if below := m.point == "/" || path == m.point || strings.HasPrefix(path, m.point+"/"); below &&
			len(m.point) >= len(best.point) {
			best = m
		}
	}
	return best
}

// df prints the sizes of the file systems with blocks, or of those that paths are on.
func df(args []string, std stdio) int {
	opts, paths, err := dfSyntax.parse(args)
	if err != nil {
		return complain(std, "df", err)
	}
	text, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return complain(std, "df", err)
	}
	all := parseMounts(string(text))
	shown := all
	code := 0
	if len(paths) > 0 {
		shown = nil
	}
	for _, p := range paths {
		path, err := filepath.Abs(p)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			code = complain(std, "df", err)
			continue
		}
		shown = append(shown, mountOf(all, path))
	}
	unit := "1K-blocks"
	if opts.has('h') {
		unit = "Size"
	} else if opts.has('m') {
		unit = "1M-blocks"
	}
	fmt.Fprintf(std.out, "%-20s %10s %10s %10s %4s %s\n", "Filesystem", unit, "Used", "Available", "Use%", "Mounted on")
	for _, mount := range shown {
		var st syscall.Statfs_t
		if err := syscall.Statfs(mount.point, &st); err != nil || st.Blocks == 0 && len(paths) == 0 {
			continue
		}
		size := uint64(st.Bsize) // not negative
		used := st.Blocks - st.Bfree
		free := st.Bavail
		percent := uint64(0)
		if used+free > 0 {
			percent = (used*100 + used + free - 1) / (used + free)
		}
		fmt.Fprintf(std.out, "%-20s %10s %10s %10s %3d%% %s\n", mount.device, scaled(opts, st.Blocks*size),
			scaled(opts, used*size), scaled(opts, free*size), percent, mount.point)
	}
	return code
}

// parseMeminfo reads /proc/meminfo. The values are in bytes.
func parseMeminfo(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 {
			if n, err := strconv.ParseUint(f[1], 10, 53); err == nil {
				out[strings.TrimSuffix(f[0], ":")] = n << 10
			}
		}
	}
	return out
}

// free prints the memory of the machine: a container's limit is not in it.
func free(args []string, std stdio) int {
	o, _, err := freeSyntax.parse(args)
	if err != nil {
		return complain(std, "free", err)
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return complain(std, "free", err)
	}
	return write(std, "free", freeText(o, parseMeminfo(string(text))))
}

func freeText(opts options, m map[string]uint64) string {
	cached := m["Buffers"] + m["Cached"] + m["SReclaimable"]
	rows := []struct {
		name   string
		values []uint64
	}{
		{
			"Mem:",
			[]uint64{
				m["MemTotal"], m["MemTotal"] - min(m["MemTotal"], m["MemFree"]+cached), m["MemFree"], m["Shmem"],
				cached, m["MemAvailable"],
			},
		},
		{"Swap:", []uint64{m["SwapTotal"], m["SwapTotal"] - min(m["SwapTotal"], m["SwapFree"]), m["SwapFree"]}},
	}
	var out strings.Builder
	out.WriteString(strings.Repeat(" ", 6))
	for _, title := range []string{"total", "used", "free", "shared", "buff/cache", "available"} {
		fmt.Fprintf(&out, " %12s", title)
	}
	for _, r := range rows {
		fmt.Fprintf(&out, "\n%-6s", r.name)
		for _, v := range r.values {
			fmt.Fprintf(&out, " %12s", scaled(opts, v))
		}
	}
	return out.String() + "\n"
}
