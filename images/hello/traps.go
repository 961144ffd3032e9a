// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// traps are the trapped signals of a script. The zero value traps none.
type traps struct {
	mu      sync.Mutex
	actions map[syscall.Signal]string
	came    []syscall.Signal // arrived, and not handled yet
	arrive  chan os.Signal   // nil: no signal was ever trapped
	mortal  func()           // undoes exitOnTerm; nil: nothing to undo
}

var signalNames = map[string]syscall.Signal{
	"HUP":  syscall.SIGHUP,
	"INT":  syscall.SIGINT,
	"QUIT": syscall.SIGQUIT,
	"KILL": syscall.SIGKILL,
	"ALRM": syscall.SIGALRM,
	"USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2,
	"TERM": syscall.SIGTERM,
	"STOP": syscall.SIGSTOP,
	"CONT": syscall.SIGCONT,
}

// signalOf parses TERM, SIGTERM or 15.
func signalOf(name string) (syscall.Signal, bool) {
	if s, ok := signalNames[strings.TrimPrefix(name, "SIG")]; ok {
		return s, true
	}
	n, err := strconv.Atoi(name)
	return syscall.Signal(n), err == nil && n >= 0 && n <= 64
}

// trap records the actions for signals. It returns the command that the library must run, for EXIT and ERR.
func (s *sh) trap(args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	if len(rest) < 2 || rest[0] == "-p" || rest[0] == "-l" {
		return args
	}
	left := []string{"trap", rest[0]}
	for _, name := range rest[1:] {
		sig, ok := signalOf(name)
		switch {
		case sig == 0 && ok:
			left = append(left, "EXIT")
		case !ok:
			left = append(left, name)
		default:
			s.traps.set(sig, s.rewritten(rest[0]))
		}
	}
	if len(left) == 2 {
		return []string{"true"}
	}
	return left
}

func (t *traps) set(sig syscall.Signal, action string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.arrive == nil {
		t.arrive = make(chan os.Signal, 16)
		t.actions = map[syscall.Signal]string{}
	}
	delete(t.actions, sig)
	if sig == syscall.SIGTERM && t.mortal != nil {
		t.mortal()
		t.mortal = nil
	}
	switch action {
	case "-":
		signal.Reset(sig)
		if sig == syscall.SIGTERM {
			t.mortal = exitOnTerm()
		}
	case "":
		signal.Ignore(sig)
	default:
		t.actions[sig] = action
		signal.Notify(t.arrive, sig)
	}
}

// arrived returns the channel of trapped signals. The receiver of a signal must call took.
func (t *traps) arrived() <-chan os.Signal {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.arrive
}

func (t *traps) took(s os.Signal) syscall.Signal {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.came = append(t.came, sig)
	return sig
}

// pending returns the action of a signal that has arrived; empty: none has.
func (t *traps) pending() string {
	select {
	case s := <-t.arrived():
		t.took(s)
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.came) == 0 {
		return ""
	}
	sig := t.came[0]
	t.came = slices.Delete(t.came, 0, 1)
	return t.actions[sig]
}
