// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// printHostname prints the host name; -i and -I print the addresses of the pod.
func printHostname(args []string, io stdio) int {
	set, rest := flags(args)
	switch {
	case len(rest) > 0:
		return complain(io, "hostname", errors.New("the name is not changed: usage: hostname [-i|-I|-s|-f]"))
	case strings.ContainsAny(set, "iI"):
		return write(io, "hostname", addresses()+"\n")
	case strings.Contains(set, "s"):
		name, _, _ := strings.Cut(hostname(), ".")
		return write(io, "hostname", name+"\n")
	}
	return write(io, "hostname", hostname()+"\n")
}

// id prints who the process runs as; -u, -g and -G print one part, which -n names where /etc/passwd or /etc/group does.
func id(args []string, io stdio) int {
	set, rest := flags(args)
	if len(rest) > 0 || strings.Trim(set, "ugGnr") != "" {
		return complain(io, "id", errors.New("usage: id [-u|-g|-G] [-n]"))
	}
	groups, err := os.Getgroups()
	if err != nil {
		return complain(io, "id", err)
	}
	all := []int{os.Getgid()}
	for _, g := range groups {
		if g != os.Getgid() {
			all = append(all, g)
		}
	}
	words := func(file string, named bool, ids ...int) []string {
		var out []string
		for _, n := range ids {
			word := strconv.Itoa(n)
			if name := nameOf(file, word); named && name != "" {
				word = name
			}
			out = append(out, word)
		}
		return out
	}
	named := strings.Contains(set, "n")
	switch {
	case strings.Contains(set, "u"):
		return write(io, "id", strings.Join(words("/etc/passwd", named, os.Geteuid()), " ")+"\n")
	case strings.Contains(set, "g"):
		return write(io, "id", strings.Join(words("/etc/group", named, os.Getegid()), " ")+"\n")
	case strings.Contains(set, "G"):
		return write(io, "id", strings.Join(words("/etc/group", named, all...), " ")+"\n")
	}
	return write(io, "id", fmt.Sprintf("uid=%d gid=%d groups=%s\n", os.Getuid(), os.Getgid(),
		strings.Join(words("", false, all...), ",")))
}

// nameOf returns the name of a number in /etc/passwd or /etc/group; empty: it has none.
func nameOf(file, number string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) > 2 && fields[2] == number {
			return fields[0]
		}
	}
	return ""
}

func whoami(_ []string, io stdio) int {
	number := strconv.Itoa(os.Geteuid())
	return write(io, "whoami", or(nameOf("/etc/passwd", number), number)+"\n")
}

func uname(args []string, io stdio) int {
	var utsname syscall.Utsname
	if err := syscall.Uname(&utsname); err != nil {
		return complain(io, "uname", err)
	}
	text := func(f [65]int8) string {
		var b []byte
		for _, c := range f {
			if c == 0 {
				break
			}
			b = append(b, byte(c))
		}
		return string(b)
	}
	set, _ := flags(args)
	fields := map[byte]string{
		's': text(utsname.Sysname),
		'n': text(utsname.Nodename),
		'r': text(utsname.Release),
		'm': text(utsname.Machine),
	}
	switch set {
	case "":
		set = "s"
	case "a":
		set = "snrm"
	}
	var out []string
	for _, c := range []byte(set) {
		out = append(out, fields[c])
	}
	return write(io, "uname", strings.Join(out, " ")+"\n")
}

func ls(args []string, io stdio) int {
	set, paths := flags(args)
	if len(paths) == 0 {
		paths = []string{"."}
	}
	code := 0
	for i, p := range paths {
		fi, err := os.Lstat(p)
		if err != nil {
			code = complain(io, "ls", err)
			continue
		}
		if fi.Mode()&os.ModeSymlink != 0 && !strings.Contains(set, "l") {
			if target, err := os.Stat(p); err == nil {
				fi = target
			}
		}
		if !fi.IsDir() || strings.Contains(set, "d") {
			list(io, filepath.Dir(p), p, fi, set)
			continue
		}
		if len(paths) > 1 {
			if i > 0 {
				fmt.Fprintln(io.out)
			}
			fmt.Fprintf(io.out, "%s:\n", p)
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			code = complain(io, "ls", err)
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && !strings.ContainsAny(set, "aA") {
				continue
			}
			if fi, err := e.Info(); err == nil {
				list(io, p, e.Name(), fi, set)
			}
		}
	}
	return code
}

func list(io stdio, dir, name string, fi os.FileInfo, set string) {
	if !strings.Contains(set, "l") {
		fmt.Fprintln(io.out, name)
		return
	}
	uid := uint32(0)
	gid := uint32(0)
	links := uint64(1)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		uid = st.Uid
		gid = st.Gid
		links = uint64(st.Nlink) //nolint:unconvert // 32 bits wide on some machines
	}
	arrow := ""
	if fi.Mode()&os.ModeSymlink != 0 {
		if to, err := os.Readlink(filepath.Join(dir, filepath.Base(name))); err == nil {
			arrow = " -> " + to
		}
	}
	fmt.Fprintf(io.out, "%s %3d %5d %5d %9d %s %s%s\n", fi.Mode(), links, uid, gid, fi.Size(),
		fi.ModTime().UTC().Format("2006-01-02 15:04"), name, arrow)
}

func stat(args []string, io stdio) int {
	code := 0
	for _, p := range args[1:] {
		fi, err := os.Lstat(p)
		if err != nil {
			code = complain(io, "stat", err)
			continue
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		fmt.Fprintf(io.out, "%s: %s mode=%04o uid=%d gid=%d size=%d inode=%d links=%d modified=%s\n", p, fi.Mode(),
			st.Mode&0o7777, st.Uid, st.Gid, fi.Size(), st.Ino, st.Nlink, fi.ModTime().UTC().Format(time.RFC3339))
	}
	return code
}

func mkdir(args []string, io stdio) int {
	set, paths := flags(args)
	create := os.Mkdir
	if strings.Contains(set, "p") {
		create = os.MkdirAll
	}
	return forEach("mkdir", paths, io, func(p string) error { return create(p, 0o755) })
}

func rm(args []string, io stdio) int {
	set, paths := flags(args)
	return forEach("rm", paths, io, func(p string) error {
		if strings.ContainsAny(set, "rR") {
			return os.RemoveAll(p)
		}
		fi, err := os.Lstat(p)
		if err == nil && fi.IsDir() {
			return fmt.Errorf("%s is a directory", p)
		}
		if err == nil {
			err = os.Remove(p)
		}
		if errors.Is(err, os.ErrNotExist) && strings.Contains(set, "f") {
			return nil
		}
		return err
	})
}

func touch(args []string, io stdio) int {
	_, paths := flags(args)
	return forEach("touch", paths, io, func(p string) error {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		now := time.Now()
		return errors.Join(f.Close(), os.Chtimes(p, now, now))
	})
}

func forEach(who string, paths []string, io stdio, do func(string) error) int {
	code := 0
	for _, p := range paths {
		if err := do(p); err != nil {
			code = complain(io, who, err)
		}
	}
	return code
}

func ps(_ []string, io stdio) int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return complain(io, "ps", err)
	}
	slices.SortFunc(dirs, func(a, b string) int { return atoi(filepath.Base(a), 0) - atoi(filepath.Base(b), 0) })
	fmt.Fprintln(io.out, "  PID   UID STATE COMMAND")
	for _, d := range dirs {
		status, err := os.ReadFile(d + "/status")
		if err != nil {
			continue // it has ended
		}
		field := func(name string) string {
			for line := range strings.SplitSeq(string(status), "\n") {
				if v, ok := strings.CutPrefix(line, name+":\t"); ok {
					v, _, _ = strings.Cut(v, "\t")
					return v
				}
			}
			return "?"
		}
		cmd, err := os.ReadFile(d + "/cmdline")
		line := strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		if err != nil || line == "" {
			line = "[" + field("Name") + "]"
		}
		state, _, _ := strings.Cut(field("State"), " ")
		fmt.Fprintf(io.out, "%5s %5s %-5s %s\n", filepath.Base(d), field("Uid"), state, line)
	}
	return 0
}

func kill(args []string, io stdio) int {
	sig := syscall.SIGTERM
	pids := args[1:]
	if len(pids) > 0 && strings.HasPrefix(pids[0], "-") {
		name := pids[0][1:]
		if pids = pids[1:]; name == "s" && len(pids) > 0 {
			name = pids[0]
			pids = pids[1:]
		}
		s, ok := signalOf(name)
		if !ok {
			return complain(io, "kill", fmt.Errorf("%s: unknown signal", name))
		}
		sig = s
	}
	return forEach("kill", pids, io, func(p string) error {
		pid, err := strconv.Atoi(p)
		if err != nil {
			return fmt.Errorf("%s is not a process id", p)
		}
		return syscall.Kill(pid, sig)
	})
}

// test supports -e -f -d -r -w -x -s -n -z, = != -eq -ne -lt -le -gt -ge and !.
func test(args []string, io stdio) int {
	a := args[1:]
	if args[0] == "[" {
		if len(a) == 0 || a[len(a)-1] != "]" {
			fmt.Fprintln(io.err, "[: no closing ]")
			return 2
		}
		a = a[:len(a)-1]
	}
	not := false
	for len(a) > 0 && a[0] == "!" {
		not = !not
		a = a[1:]
	}
	ok, err := evalTest(a)
	if err != nil {
		fmt.Fprintf(io.err, "test: %v\n", err)
		return 2
	}
	if ok == not {
		return 1
	}
	return 0
}

func evalTest(a []string) (bool, error) {
	switch len(a) {
	case 0:
		return false, nil
	case 1:
		return a[0] != "", nil
	case 2:
		return evalUnary(a[0], a[1])
	case 3:
		return evalBinary(a[0], a[1], a[2])
	}
	return false, errors.New("too many arguments")
}

func evalUnary(op, x string) (bool, error) {
	access := map[string]uint32{"-r": 4, "-w": 2, "-x": 1}
	fi, err := os.Stat(x)
	switch op {
	case "-n":
		return x != "", nil
	case "-z":
		return x == "", nil
	case "-e":
		return err == nil, nil
	case "-f":
		return err == nil && fi.Mode().IsRegular(), nil
	case "-d":
		return err == nil && fi.IsDir(), nil
	case "-s":
		return err == nil && fi.Size() > 0, nil
	case "-r", "-w", "-x":
		return syscall.Access(x, access[op]) == nil, nil
	}
	return false, fmt.Errorf("%s: unknown operator", op)
}

func evalBinary(x, op, y string) (bool, error) {
	switch op {
	case "=", "==":
		return x == y, nil
	case "!=":
		return x != y, nil
	}
	a, err1 := strconv.Atoi(x)
	b, err2 := strconv.Atoi(y)
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	switch op {
	case "-eq":
		return a == b, nil
	case "-ne":
		return a != b, nil
	case "-lt":
		return a < b, nil
	case "-le":
		return a <= b, nil
	case "-gt":
		return a > b, nil
	case "-ge":
		return a >= b, nil
	}
	return false, fmt.Errorf("%s: unknown operator", op)
}
