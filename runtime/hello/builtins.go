// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// builtins are the commands that must run in the shell's own process, and quick tools that need none of their own.
func builtins() map[string]func(s *sh, args []string, std stdio) int {
	inProcess := func(t tool) func(*sh, []string, stdio) int {
		return func(_ *sh, args []string, std stdio) int { return t(args, std) }
	}
	return map[string]func(*sh, []string, stdio) int{
		":":        func(*sh, []string, stdio) int { return 0 },
		"break":    func(s *sh, _ []string, _ stdio) int { s.jump = "break"; return 0 },
		"cd":       cd,
		"command":  command,
		"continue": func(s *sh, _ []string, _ stdio) int { s.jump = "continue"; return 0 },
		"exec":     execute,
		"exit":     leave,
		"export":   export,
		"read":     read,
		"return":   leave,
		"set":      set,
		"shift":    shift,
		"unset":    unset,
		"wait":     waitJobs,
		"echo":     inProcess(echo), "printf": inProcess(printf), "pwd": inProcess(pwd),
		"test": inProcess(test), "[": inProcess(test), "kill": inProcess(kill),
		"true":  func(*sh, []string, stdio) int { return 0 },
		"false": func(*sh, []string, stdio) int { return 1 },
	}
}

func cd(_ *sh, args []string, std stdio) int {
	to := or(os.Getenv("HOME"), "/")
	if len(args) > 1 {
		to = args[1]
	}
	if err := os.Chdir(to); err != nil {
		return complain(std, "cd", err)
	}
	return 0
}

func command(s *sh, args []string, std stdio) int {
	if len(args) > 2 && args[1] == "-v" {
		path, _, err := lookup(args[2])
		if err != nil {
			return 127
		}
		return write(std, "command", path+"\n")
	}
	if len(args) < 2 {
		return 0
	}
	return s.wait(s.child(args[1:], std))
}

func execute(s *sh, args []string, std stdio) int {
	if len(args) < 2 {
		return 0
	}
	path, argv0, err := lookup(args[1])
	if err != nil {
		s.exited = true
		complain(std, "exec", err)
		return 127
	}
	for fd, f := range []any{std.in, std.out, std.err} {
		if file, ok := f.(*os.File); ok && int(file.Fd()) != fd {
			if err := syscall.Dup3(int(file.Fd()), fd, 0); err != nil {
				return complain(std, "exec", err)
			}
		}
	}
	s.exited = true
	return complain(std, "exec", syscall.Exec(path, append([]string{argv0}, args[2:]...), os.Environ()))
}

func leave(s *sh, args []string, _ stdio) int {
	s.exited = true
	if len(args) > 1 {
		return atoi(args[1], 2) & 0xff
	}
	return s.status
}

func export(_ *sh, args []string, std stdio) int {
	for _, a := range args[1:] {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			continue // every variable is exported already
		}
		if err := os.Setenv(k, v); err != nil {
			return complain(std, "export", err)
		}
	}
	return 0
}

func unset(_ *sh, args []string, std stdio) int {
	for _, a := range args[1:] {
		if err := os.Unsetenv(a); err != nil {
			return complain(std, "unset", err)
		}
	}
	return 0
}

func set(s *sh, args []string, _ stdio) int {
	for _, a := range args[1:] {
		switch {
		case strings.HasPrefix(a, "-") && strings.Contains(a, "e"):
			s.errs = true
		case strings.HasPrefix(a, "+") && strings.Contains(a, "e"):
			s.errs = false
		}
	}
	return 0
}

func shift(s *sh, _ []string, _ stdio) int {
	if len(s.args) < 2 {
		return 1
	}
	s.args = append(s.args[:1:1], s.args[2:]...)
	return 0
}

// read puts one line into variables, the rest of it into the last.
func read(_ *sh, args []string, std stdio) int {
	_, names := flags(args)
	if len(names) == 0 {
		names = []string{"REPLY"}
	}
	var line []byte
	b := make([]byte, 1)
	for {
		n, err := std.in.Read(b)
		if n == 1 && b[0] == '\n' {
			break
		}
		if n == 1 {
			line = append(line, b[0])
		}
		if err != nil {
			if len(line) == 0 {
				return 1
			}
			break
		}
	}
	rest := strings.TrimSpace(string(line))
	for i, name := range names {
		v := rest
		if i < len(names)-1 {
			v, rest, _ = strings.Cut(rest, " ")
			rest = strings.TrimSpace(rest)
		}
		if err := os.Setenv(name, v); err != nil {
			return complain(std, "read", err)
		}
	}
	return 0
}

func waitJobs(s *sh, _ []string, _ stdio) int {
	code := 0
	for _, j := range s.jobs {
		code = s.code(j, j.Wait())
	}
	s.jobs = []*exec.Cmd(nil)
	return code
}
