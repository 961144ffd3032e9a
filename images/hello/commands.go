// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/interp"
)

// own maps builtins for which the library does not use processes to the commands of this package that replace them.
var own = map[string]string{"wait": ownPrefix + "wait", "kill": ownPrefix + "kill", "umask": ownPrefix + "umask"}

// commands are the commands that run in the shell's own process.
func commands() map[string]func(s *sh, h interp.HandlerContext, args []string, std stdio) int {
	return map[string]func(*sh, interp.HandlerContext, []string, stdio) int{
		nameBackground: startJob,
		nameLastBg:     printLastJob,
		nameExec:       replace,
		nameEnd:        end,
		own["wait"]:    waitForJobs,
		own["umask"]:   umask,
		own["kill"]:    killJobs,
	}
}

// call is called before each command, and may replace it.
func (s *sh) call(ctx context.Context, args []string) ([]string, error) {
	handlerContext := interp.HandlerCtx(ctx)
	if args[0] == nameEnd && s.ends < 0 {
		s.ends = handlerContext.LastExitStatus
	}
	if action := s.traps.pending(); action != "" {
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = quoted(a)
		}
		// it calls this function again, without a pending signal
		return []string{"eval", action + "\n" + strings.Join(words, " ")}, nil
	}
	switch name := args[0]; {
	case own[name] != "":
		return append([]string{own[name]}, args[1:]...), nil
	case name == "exec" && s.execs[handlerContext.Pos]:
		return append([]string{nameExec}, args[1:]...), nil
	case name == "set":
		s.setOptions(args[1:])
	case name == "echo":
		return echoAtOnce(args), nil
	case name == "trap":
		return s.trap(args), nil
	case name == "eval" && len(args) > 1:
		return []string{"eval", s.rewritten(strings.Join(args[1:], " "))}, nil
	case name == "command" && len(args) > 2 && args[1] == "-v" && !interp.IsBuiltin(args[2]):
		if path, _, err := lookup(handlerContext.Dir, handlerContext.Env, args[2]); err == nil {
			return []string{"echo", path}, nil
		}
	}
	return args, nil
}

// echoAtOnce makes an echo one printf, which writes once: the library's echo writes word by word, so that lines of
// concurrent jobs would mix.
func echoAtOnce(args []string) []string {
	end := "\n"
	words := args[1:]
	for len(words) > 0 && (words[0] == "-n" || words[0] == "-E") {
		if words[0] == "-n" {
			end = ""
		}
		words = words[1:]
	}
	if len(words) > 0 && words[0] == "-e" {
		return args
	}
	return []string{"printf", "%s", strings.Join(words, " ") + end}
}

// end returns the exit status of a script at its end.
func end(s *sh, _ interp.HandlerContext, _ []string, _ stdio) int { return s.ends }

// killJobs implements kill. A trapped signal to this shell has arrived when it returns.
func killJobs(s *sh, _ interp.HandlerContext, args []string, std stdio) int {
	code := kill(args, std)
	if !slices.Contains(args[1:], strconv.Itoa(os.Getpid())) {
		return code
	}
	select {
	case sig := <-s.traps.arrived():
		s.traps.took(sig)
	case <-time.After(50 * time.Millisecond): // the signal is not trapped
	}
	return code
}

// job is a process in the background. err is the result of Wait, valid once ended is closed.
type job struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// startJob starts the list in args[1] as a shell process; the other arguments are its $0, $1 and so on.
func startJob(s *sh, h interp.HandlerContext, args []string, std stdio) int {
	options := "-c"
	if s.tracing {
		options = "-xc"
	}
	cmd := s.child(h, append([]string{"sh", options}, args[1:]...), stdio{nil, std.out, std.err}, true)
	if err := cmd.Start(); err != nil {
		return s.code(cmd, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &job{cmd: cmd, ended: make(chan struct{})}
	go func() { // ends with the process
		j.err = cmd.Wait()
		close(j.ended)
	}()
	s.lastBg = cmd.Process.Pid
	s.jobs = append(s.jobs, j)
	return 0
}

func printLastJob(s *sh, _ interp.HandlerContext, _ []string, std stdio) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastBg == 0 {
		return 0
	}
	return write(std, "sh", strconv.Itoa(s.lastBg)+"\n")
}

// waitForJobs waits for the jobs with the given process ids, or for all. A trapped signal interrupts it.
func waitForJobs(s *sh, _ interp.HandlerContext, args []string, std stdio) int {
	s.mu.Lock()
	jobs := s.jobs
	s.mu.Unlock()
	code := 0
	if len(args) > 1 {
		var chosen []*job
		for _, a := range args[1:] {
			i := slices.IndexFunc(jobs, func(j *job) bool { return strconv.Itoa(j.cmd.Process.Pid) == a })
			if i < 0 {
				fmt.Fprintf(std.err, "wait: %s is not a job of this shell\n", a)
				code = 127
				continue
			}
			chosen = append(chosen, jobs[i])
		}
		jobs = chosen
	}
	for _, j := range jobs {
		select {
		case <-j.ended:
			if len(args) > 1 {
				code = s.code(j.cmd, j.err)
			}
			s.forget(j)
		case sig := <-s.traps.arrived():
			return 128 + int(s.traps.took(sig))
		}
	}
	return code
}

func (s *sh) forget(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// another goroutine may iterate over the list
	s.jobs = slices.DeleteFunc(slices.Clone(s.jobs), func(o *job) bool { return o == j })
}

// replace implements exec: the command replaces this process.
func replace(s *sh, h interp.HandlerContext, args []string, std stdio) int {
	if args[0] == nameExec {
		args = args[1:]
	}
	cmd := s.child(h, args, std, false)
	if cmd.Err != nil {
		complain(std, "exec", cmd.Err)
		os.Exit(127)
	}
	if err := os.Chdir(h.Dir); err != nil {
		complain(std, "exec", err)
		os.Exit(126)
	}
	for fd, f := range []any{std.in, std.out, std.err} {
		if file, ok := f.(*os.File); ok && int(file.Fd()) != fd {
			if err := syscall.Dup3(int(file.Fd()), fd, 0); err != nil {
				return complain(std, "exec", err)
			}
		}
	}
	complain(std, "exec", syscall.Exec(cmd.Path, cmd.Args, cmd.Env))
	os.Exit(126)
	return 0
}

func umask(_ *sh, _ interp.HandlerContext, args []string, std stdio) int {
	if len(args) > 1 {
		mask, err := strconv.ParseUint(args[1], 8, 9)
		if err != nil {
			return complain(std, "umask", errors.New("wants an octal number, such as 022"))
		}
		syscall.Umask(int(mask))
		return 0
	}
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return write(std, "umask", fmt.Sprintf("%04o\n", mask))
}
