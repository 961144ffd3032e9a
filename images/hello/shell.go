// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh is a running shell. The library mvdan.cc/sh interprets the language. This package adds processes and signals:
// background lists are processes, for $! and wait; exec replaces the shell; and signals can be trapped.
type sh struct {
	std    stdio
	runner *interp.Runner
	name   string // $0
	parser *syntax.Parser

	// execs are the positions where exec replaces the shell; only is that of a single command, which needs no second
	// process.
	execs map[syntax.Pos]bool
	only  syntax.Pos
	funcs string // definitions of functions, for background lists
	ends  int    // exit status at the script's end; -1: not reached

	tracing bool // by "set -x"

	mu     sync.Mutex // the parts of a pipeline run concurrently
	jobs   []*job
	lastBg int
	traps  traps
}

// usage is the exit status of a syntax error.
const usage = 2

// shell implements sh: interactive on a terminal, else a script from standard input, a file, or -c. mortal undoes
// exitOnTerm; it may be nil.
func shell(args []string, io stdio, mortal func()) int {
	s := &sh{
		ends:   -1,
		traps:  traps{mortal: mortal},
		std:    io,
		name:   "sh",
		parser: syntax.NewParser(syntax.Variant(syntax.LangBash)),
		execs:  map[syntax.Pos]bool{},
	}
	var options []string
	command := ""
	given := false
	rest := args[1:]
	for len(rest) > 0 && len(rest[0]) > 1 && (rest[0][0] == '-' || rest[0][0] == '+') {
		opt := rest[0]
		rest = rest[1:]
		if opt == "--" {
			break
		}
		given = given || opt[0] == '-' && strings.Contains(opt, "c")
		for _, letter := range opt[1:] {
			if strings.ContainsRune("efnux", letter) { // c is handled above; l and i have no effect
				options = append(options, opt[:1]+string(letter))
			}
		}
	}
	switch {
	case given && len(rest) == 0:
		return complain(io, "sh", errors.New("-c needs a command"))
	case given:
		command = rest[0]
		rest = rest[1:]
	case len(rest) > 0:
		b, err := os.ReadFile(rest[0])
		if err != nil {
			return complain(io, "sh", err)
		}
		command = string(b)
		given = true
	}
	if len(rest) > 0 {
		s.name = rest[0]
		rest = rest[1:]
	}
	s.setOptions(options)
	var err error
	s.runner, err = interp.New(interp.StdIO(io.in, io.out, traced{io.err}),
		interp.Params(append(append(options, "--"), rest...)...),
		interp.CallHandler(s.call), interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc {
			return s.execute
		}))
	if err != nil {
		return complain(io, "sh", err)
	}
	if !given {
		return s.session()
	}
	return s.script(command)
}

func (s *sh) script(src string) int {
	f, err := s.parser.Parse(strings.NewReader(src), s.name)
	if err != nil {
		return s.wrong(err)
	}
	s.rewrite(f)
	if s.only = onlyCommand(f); !s.only.IsValid() {
		// pending traps run before it, as before any command
		f.Stmts = append(f.Stmts, &syntax.Stmt{Cmd: s.parsed(nameEnd)})
	}
	return s.run(context.Background(), f)
}

func (s *sh) wrong(err error) int {
	complain(s.std, "sh", err)
	return usage
}

// run interprets a file or statement and returns its status.
func (s *sh) run(ctx context.Context, n syntax.Node) int {
	err := s.runner.Run(ctx, n)
	if err == nil {
		return 0
	}
	if status, ok := errors.AsType[interp.ExitStatus](err); ok {
		return int(status)
	}
	if ctx.Err() != nil {
		return 128 + int(syscall.SIGINT)
	}
	return complain(s.std, "sh", err)
}

// session reads commands line by line. On a terminal it prints a prompt, and an interrupt ends the command, not the
// shell.
func (s *sh) session() int {
	interrupts := make(chan os.Signal, 1)
	next := s.lines(interrupts)
	pending := ""
	status := 0
	for {
		line, err := next(pending != "")
		if errors.Is(err, errInterrupted) {
			pending = ""
			status = 128 + int(syscall.SIGINT)
			continue
		}
		pending += line
		parsed, perr := s.parser.Parse(strings.NewReader(pending), s.name)
		ended := err != nil && line == ""
		if perr != nil && syntax.IsIncomplete(perr) && !ended {
			continue
		}
		pending = ""
		if perr != nil {
			status = s.wrong(perr)
		} else {
			s.rewrite(parsed)
			for _, stmt := range parsed.Stmts {
				if status = s.line(stmt, interrupts); s.runner.Exited() {
					return status
				}
			}
		}
		if ended {
			return status
		}
	}
}

// lines returns the function that reads the next line, with its end. more says that it continues a command. On a
// terminal lines are edited, and interrupts are sent to the channel.
func (s *sh) lines(interrupts chan<- os.Signal) func(more bool) (string, error) {
	file, ok := s.std.in.(*os.File)
	if !ok || !isTerminal(file) {
		in := bufio.NewReaderSize(oneByte{s.std.in}, 16) // commands read the same input, so it must not read ahead
		return func(bool) (string, error) { return in.ReadString('\n') }
	}
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGQUIT)
	editor := newLineEditor(file, s.std.err, func() string { return s.runner.Dir })
	return func(more bool) (string, error) {
		line, err := editor.read(s.prompt(more))
		if errors.Is(err, io.EOF) {
			fmt.Fprintln(s.std.err)
		}
		if err != nil {
			return "", err
		}
		return line + "\n", nil
	}
}

// line runs a statement until it ends or is interrupted.
func (s *sh) line(stmt *syntax.Stmt, interrupts <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-interrupts:
			cancel()
		case <-ended:
		}
	})
	defer func() {
		close(ended)
		wg.Wait()
		cancel()
	}()
	return s.run(ctx, stmt)
}

func (s *sh) prompt(more bool) string {
	if more {
		return "> "
	}
	sign := "$"
	if os.Getuid() == 0 {
		sign = "#"
	}
	return s.runner.Dir + " " + sign + " "
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// execute runs a command that is neither a function nor a builtin: a command of this package, a program from $PATH, or
// a tool.
func (s *sh) execute(ctx context.Context, args []string) error {
	h := interp.HandlerCtx(ctx)
	std := stdio{h.Stdin, plain(h.Stdout), plain(h.Stderr)}
	if own, ok := commands()[args[0]]; ok {
		return status(own(s, h, args, std))
	}
	if h.Pos == s.only && h.Pos.IsValid() {
		return status(replace(s, h, args, std))
	}
	cmd := s.child(h, args, std, false)
	return status(s.code(cmd, cmd.Run()))
}

func status(code int) error {
	if code == 0 {
		return nil
	}
	return interp.ExitStatus(uint8(code)) // an exit status
}

// child prepares a command: a program from $PATH, or a tool. all passes variables that are not exported, too.
func (s *sh) child(h interp.HandlerContext, args []string, std stdio, all bool) *exec.Cmd {
	path, argv0, err := lookup(h.Dir, h.Env, args[0])
	return &exec.Cmd{
		Path:   path,
		Args:   append([]string{argv0}, args[1:]...),
		Err:    err,
		Env:    childEnv(h.Env, all),
		Dir:    h.Dir,
		Stdin:  std.in,
		Stdout: std.out,
		Stderr: std.err,
	}
}

func childEnv(env expand.Environ, all bool) []string {
	out := []string{}
	env.Each(func(name string, v expand.Variable) bool {
		if v.IsSet() && v.Kind == expand.String && (v.Exported || all) {
			out = append(out, name+"="+v.Str)
		}
		return true
	})
	return out
}

// code returns the exit status of a command that has ended, or failed to start.
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
	to := cmd.Stderr
	if to == nil {
		to = s.std.err
	}
	fmt.Fprintf(to, "sh: %v\n", err)
	if cmd.Err != nil || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}
