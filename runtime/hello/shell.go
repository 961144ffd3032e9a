// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"
)

// sh is a running shell. Its variables are the process's environment: all of them are exported. What POSIX runs in a
// subshell (parentheses, parts of a pipeline, substitutions, background lists) runs as this program again.
type sh struct {
	io     stdio
	args   []string // $0 $1 ...
	status int
	lastBg int
	jobs   []*exec.Cmd
	exited bool
	// replace: the next simple command is the last thing this shell does.
	replace bool
	errs    bool // set -e
	jump    string
}

// shell is sh: interactive on a terminal, else a script from standard input, a file, or -c.
func shell(args []string, io stdio) int {
	s := &sh{io: io, args: []string{"sh"}}
	rest := args[1:]
	for len(rest) > 0 && len(rest[0]) > 1 && rest[0][0] == '-' {
		opt := rest[0]
		rest = rest[1:]
		if strings.Contains(opt, "e") {
			s.errs = true
		}
		if strings.Contains(opt, "c") {
			if len(rest) == 0 {
				return complain(io, "sh", errors.New("-c needs a command"))
			}
			if len(rest) > 1 {
				s.args = rest[1:]
			}
			return s.script(rest[0])
		}
	}
	if len(rest) > 0 {
		b, err := os.ReadFile(rest[0])
		if err != nil {
			return complain(io, "sh", err)
		}
		s.args = rest
		return s.script(string(b))
	}
	return s.session()
}

func (s *sh) script(src string) int {
	n, err := parse(src)
	if err != nil {
		fmt.Fprintf(s.io.err, "sh: %v\n", err)
		return 2
	}
	// "sh -c 'sleep 3600'" needs no second process.
	s.replace = len(n.list) == 1 && n.list[0].kind == kSimple && !n.list[0].bg
	return s.run(n)
}

// session reads commands line by line; on a terminal with a prompt, where an interrupt ends the command and not the shell.
func (s *sh) session() int {
	f, ok := s.io.in.(*os.File)
	tty := ok && isTerminal(f)
	if tty {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGINT, syscall.SIGQUIT)
		go func() { // ends with the process
			for range c {
				continue
			}
		}()
	}
	in := bufio.NewReaderSize(oneByte{s.io.in}, 16) // commands read the same input, so never ahead
	pending := ""
	for !s.exited {
		if tty {
			s.prompt(pending != "")
		}
		line, err := in.ReadString('\n')
		pending += line
		if err != nil && line == "" {
			if pending != "" {
				fmt.Fprintf(s.io.err, "sh: %v\n", errIncomplete)
				s.status = 2
			}
			break
		}
		n, perr := parse(pending)
		if errors.Is(perr, errIncomplete) {
			continue
		}
		pending = ""
		if perr != nil {
			fmt.Fprintf(s.io.err, "sh: %v\n", perr)
			s.status = 2
			continue
		}
		s.run(n)
	}
	return s.status
}

func (s *sh) prompt(more bool) {
	if more {
		fmt.Fprint(s.io.err, "> ")
		return
	}
	d, err := os.Getwd()
	if err != nil {
		d = "?"
	}
	sign := "$"
	if os.Getuid() == 0 {
		sign = "#"
	}
	fmt.Fprintf(s.io.err, "%s %s ", d, sign)
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func isTerminal(f *os.File) bool {
	var t syscall.Termios
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&t)))
	return e == 0
}

// run executes a node and returns its status.
func (s *sh) run(n *node) int {
	if n == nil || s.exited {
		return s.status
	}
	if len(n.redirs) > 0 && n.kind != kSimple {
		return s.redirected(n)
	}
	switch n.kind {
	case kSimple:
		s.status = s.simple(n)
	case kList:
		s.runList(n)
	case kAnd:
		if s.tested(n.list[0]) == 0 {
			s.run(n.list[1])
		}
	case kOr:
		if s.tested(n.list[0]) != 0 {
			s.run(n.list[1])
		}
	case kNot:
		s.status = map[bool]int{true: 1, false: 0}[s.tested(n.list[0]) == 0]
	case kPipe:
		s.status = s.pipe(n.list)
	case kGroup:
		s.run(n.list[0])
	case kSubshell:
		s.status = s.wait(s.child([]string{"sh", "-c", strings.TrimSuffix(strings.TrimPrefix(n.text, "("), ")")}, s.io))
	case kIf:
		s.runIf(n)
	case kWhile, kUntil:
		s.runLoop(n)
	case kFor:
		s.runFor(n)
	}
	return s.status
}

// tested runs what is only a condition: set -e does not apply.
func (s *sh) tested(n *node) int {
	e := s.errs
	s.errs = false
	defer func() { s.errs = e }()
	return s.run(n)
}

func (s *sh) runList(n *node) {
	for _, c := range n.list {
		if s.exited || s.jump != "" {
			return
		}
		if c.bg {
			s.background(c.text)
			continue
		}
		s.run(c)
		if s.errs && s.status != 0 && c.kind != kAnd && c.kind != kOr && c.kind != kNot {
			s.exited = true
		}
	}
}

func (s *sh) background(text string) {
	cmd := s.child([]string{"sh", "-c", text}, stdio{nil, s.io.out, s.io.err})
	if err := cmd.Start(); err != nil {
		s.status = complain(s.io, "sh", err)
		return
	}
	s.lastBg, s.status = cmd.Process.Pid, 0
	s.jobs = append(s.jobs, cmd)
}

func (s *sh) runIf(n *node) {
	if s.tested(n.list[0]) == 0 {
		s.status = 0
		s.run(n.list[1])
		return
	}
	s.status = 0
	if len(n.list) > 2 {
		s.run(n.list[2])
	}
}

func (s *sh) runLoop(n *node) {
	last := 0
	for !s.exited && (s.tested(n.list[0]) == 0) == (n.kind == kWhile) {
		last = s.run(n.list[1])
		if s.broken() {
			break
		}
	}
	if !s.exited {
		s.status = last
	}
}

func (s *sh) runFor(n *node) {
	s.status = 0
	for _, v := range s.expand(n.words) {
		if s.exited {
			return
		}
		if err := os.Setenv(n.name, v); err != nil {
			s.status = complain(s.io, "sh", err)
			return
		}
		s.run(n.list[0])
		if s.broken() {
			return
		}
	}
}

// broken takes a pending break or continue; true ends the loop.
func (s *sh) broken() bool {
	j := s.jump
	s.jump = ""
	return j == "break"
}

// redirected runs a compound command with its redirections.
func (s *sh) redirected(n *node) int {
	outer := s.io
	inner, closeAll, err := s.redirect(n.redirs)
	defer closeAll()
	if err != nil {
		s.status = complain(s.io, "sh", err)
		return s.status
	}
	bare := *n
	bare.redirs = nil
	s.io = inner
	defer func() { s.io = outer }()
	return s.run(&bare)
}

func (s *sh) redirect(rs []redirect) (stdio, func(), error) {
	std := s.io
	var open []*os.File
	closeAll := func() {
		for _, f := range open {
			_ = f.Close() // errors of writing were seen by the writer
		}
	}
	for _, r := range rs {
		target := s.expandOne(r.target)
		if r.op == ">&" {
			switch {
			case r.fd == 2 && target == "1":
				std.err = std.out
			case r.fd == 1 && target == "2":
				std.out = std.err
			default:
				return std, closeAll, fmt.Errorf("cannot redirect %d to %s", r.fd, target)
			}
			continue
		}
		mode := map[string]int{"<": os.O_RDONLY, ">": os.O_WRONLY | os.O_CREATE | os.O_TRUNC, ">>": os.O_WRONLY | os.O_CREATE | os.O_APPEND}[r.op]
		f, err := os.OpenFile(target, mode, 0o644)
		if err != nil {
			return std, closeAll, err
		}
		open = append(open, f)
		switch r.fd {
		case 0:
			std.in = f
		case 1:
			std.out = f
		case 2:
			std.err = f
		}
	}
	return std, closeAll, nil
}

// simple runs one command with its assignments and redirections.
func (s *sh) simple(n *node) int {
	words := n.words
	var assigns []string
	for len(words) > 0 {
		k, v, ok := strings.Cut(words[0], "=")
		if !ok || !isName(k) {
			break
		}
		assigns = append(assigns, k+"="+s.expandOne(v))
		words = words[1:]
	}
	args := s.expand(words)
	std, closeAll, err := s.redirect(n.redirs)
	defer closeAll()
	if err != nil {
		return complain(s.io, "sh", err)
	}
	if len(args) == 0 {
		s.status = 0
		for _, a := range assigns {
			k, v, _ := strings.Cut(a, "=")
			if err := os.Setenv(k, v); err != nil {
				return complain(std, "sh", err)
			}
		}
		return s.status
	}
	if f, ok := builtins()[args[0]]; ok {
		return f(s, args, std)
	}
	if s.replace && len(assigns)+len(n.redirs) == 0 {
		return execute(s, append([]string{"exec"}, args...), std)
	}
	cmd := s.child(args, std)
	cmd.Env = append(os.Environ(), assigns...)
	return s.wait(cmd)
}

// child prepares a command: from $PATH, or one of this program's tools.
func (s *sh) child(args []string, std stdio) *exec.Cmd {
	path, argv0, err := lookup(args[0])
	return &exec.Cmd{
		Path: path, Args: append([]string{argv0}, args[1:]...), Err: err,
		Stdin: std.in, Stdout: std.out, Stderr: std.err,
	}
}

func (s *sh) wait(cmd *exec.Cmd) int {
	return s.code(cmd, cmd.Run())
}

func (s *sh) code(cmd *exec.Cmd, err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	}
	fmt.Fprintf(s.io.err, "sh: %v\n", err)
	if cmd.Err != nil || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

// pipe runs all parts at once; the last one's status counts.
func (s *sh) pipe(parts []*node) int {
	in := s.io.in
	var cmds []*exec.Cmd
	var ends []*os.File
	for i, p := range parts {
		std := stdio{in, s.io.out, s.io.err}
		if i < len(parts)-1 {
			r, w, err := os.Pipe()
			if err != nil {
				return complain(s.io, "sh", err)
			}
			std.out, in = w, r
			ends = append(ends, r, w)
		}
		cmd := s.child([]string{"sh", "-c", p.text}, std)
		if err := cmd.Start(); err != nil {
			s.code(cmd, err)
			continue
		}
		cmds = append(cmds, cmd)
	}
	for _, f := range ends {
		_ = f.Close() // the children have their own
	}
	code := 0
	for _, c := range cmds {
		code = s.code(c, c.Wait())
	}
	return code
}

// capture is $(src).
func (s *sh) capture(src string) string {
	var out bytes.Buffer
	s.status = s.wait(s.child([]string{"sh", "-c", src}, stdio{s.io.in, &out, s.io.err}))
	return strings.TrimRight(out.String(), "\n")
}
