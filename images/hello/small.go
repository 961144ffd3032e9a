// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
)

// printenv prints the named variables, or all; the exit code is 1 if one is not set.
func printenv(args []string, std stdio) int {
	if len(args) == 1 {
		return env(args, std)
	}
	code := 0
	for _, name := range args[1:] {
		value, ok := os.LookupEnv(name)
		if !ok {
			code = 1
			continue
		}
		fmt.Fprintln(std.out, value)
	}
	return code
}

// chroot runs a command, or a shell, with another root directory.
func chroot(args []string, std stdio) int {
	if len(args) < 2 {
		return complain(std, "chroot", errors.New("usage: chroot DIRECTORY [COMMAND [ARG]...]"))
	}
	command := args[2:]
	if len(command) == 0 {
		command = []string{"/bin/sh", "-i"}
	}
	if err := syscall.Chroot(args[1]); err != nil {
		return complain(std, "chroot", fmt.Errorf("change root to %s: %w", args[1], err))
	}
	if err := os.Chdir("/"); err != nil {
		return complain(std, "chroot", err)
	}
	path, argv0, err := lookup("/", expand.ListEnviron(os.Environ()...), command[0])
	if err != nil {
		complain(std, "chroot", err)
		return 127
	}
	err = syscall.Exec(path, append([]string{argv0}, command[1:]...), os.Environ())
	complain(std, "chroot", fmt.Errorf("%s: %w", command[0], err))
	return 126
}

func basename(args []string, std stdio) int {
	if len(args) < 2 || len(args) > 3 {
		return complain(std, "basename", errors.New("usage: basename PATH [SUFFIX]"))
	}
	name := filepath.Base(args[1])
	if len(args) == 3 && name != args[2] {
		name = strings.TrimSuffix(name, args[2])
	}
	return write(std, "basename", name+"\n")
}

func dirname(args []string, std stdio) int {
	if len(args) < 2 {
		return complain(std, "dirname", errors.New("missing operand"))
	}
	for _, path := range args[1:] {
		fmt.Fprintln(std.out, filepath.Dir(filepath.Clean(path)))
	}
	return 0
}

// readlink prints where symbolic links lead; -f follows all of them.
func readlink(args []string, std stdio) int {
	set, paths := flags(args)
	return forEach("readlink", paths, std, func(path string) error {
		target, err := os.Readlink(path)
		if strings.Contains(set, "f") {
			target, err = realPath(path)
		}
		if err == nil {
			_, err = fmt.Fprintln(std.out, target)
		}
		return err
	})
}

func realpath(args []string, std stdio) int {
	_, paths := flags(args)
	return forEach("realpath", paths, std, func(path string) error {
		target, err := realPath(path)
		if err == nil {
			_, err = fmt.Fprintln(std.out, target)
		}
		return err
	})
}

func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// uniq prints each of several equal lines in a row once; -c counts them, -d prints only those, -u only the others.
func uniq(args []string, std stdio) int {
	set, files := flags(args)
	if len(files) == 0 {
		files = []string{"-"}
	}
	return each("uniq", files[:1], std, func(in io.Reader) error {
		out := bufio.NewWriter(std.out)
		var line string
		count := 0
		flush := func() {
			switch {
			case count == 0, strings.Contains(set, "d") && count == 1, strings.Contains(set, "u") && count > 1:
			case strings.Contains(set, "c"):
				fmt.Fprintf(out, "%7d %s\n", count, line)
			default:
				fmt.Fprintln(out, line)
			}
		}
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if count > 0 && lines.Text() == line {
				count++
				continue
			}
			flush()
			line = lines.Text()
			count = 1
		}
		flush()
		return errors.Join(lines.Err(), out.Flush())
	})
}

// yes prints a line until its output closes.
func yes(args []string, std stdio) int {
	line := "y"
	if len(args) > 1 {
		line = strings.Join(args[1:], " ")
	}
	for {
		if _, err := fmt.Fprintln(std.out, line); err != nil {
			return 1
		}
	}
}

func nproc(_ []string, std stdio) int { return write(std, "nproc", fmt.Sprintln(runtime.NumCPU())) }

// uptime prints how long the machine runs, and its load.
func uptime(_ []string, std stdio) int {
	text, err := os.ReadFile("/proc/uptime")
	var load []byte
	if err == nil {
		load, err = os.ReadFile("/proc/loadavg")
	}
	if err != nil {
		return complain(std, "uptime", err)
	}
	seconds := 0.0
	if _, err := fmt.Sscan(string(text), &seconds); err != nil {
		return complain(std, "uptime", err)
	}
	minutes := int(seconds) / 60
	loads := strings.Join(strings.Fields(string(load))[:3], ", ")
	return write(std, "uptime", fmt.Sprintf("up %d days, %d:%02d, load average: %s\n", minutes/1440, minutes/60%24,
		minutes%60, loads))
}

// clearScreen clears a terminal.
func clearScreen(_ []string, std stdio) int { return write(std, "clear", "\033[H\033[2J") }
