// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// patience is how long a script waits for what must come: much longer than it takes, for slow machines.
const patience = 60 * time.Second

// terminal SCRIPT COMMAND...: runs COMMAND with a terminal as its input and output and plays SCRIPT on it, line by
// line:
//
//	expect PATTERN   wait until what came since the last match matches
//	send TEXT        type TEXT and the enter key
//	type TEXT        type TEXT, a Go string without the quotes: \x03 is control-C
//	size COLSxROWS   change the size of the window
//	exit CODE        wait until COMMAND has ended, with this code; the last line
func terminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: terminal SCRIPT COMMAND...")
	}
	master, slave, err := openTerminal()
	ts.Check(err)
	t := &typist{ts: ts, master: master, ended: make(chan error, 1)}
	t.size("80x24")
	program := args[1]
	if !filepath.IsAbs(program) {
		program = lookPath(ts, program)
	}
	cmd := exec.Command(program, args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(environ(ts), "TERM=xterm")
	cmd.Stdin = slave
	cmd.Stdout = slave
	cmd.Stderr = slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = slave.Close()
	ts.Check(err)
	var reading sync.WaitGroup
	reading.Go(t.listen)
	go func() { t.ended <- cmd.Wait() }() // ends with the command, killed below at the latest
	defer func() {
		_ = cmd.Process.Kill() // it has ended, if all went well
		_ = master.Close()
		reading.Wait()
	}()
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			verb, rest, _ := strings.Cut(line, " ")
			t.play(verb, rest)
		}
	}
}

func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
		var n int
		if n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); err == nil {
			slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}

// typist plays a script on a terminal.
type typist struct {
	ts     *testscript.TestScript
	master *os.File
	ended  chan error

	mu   sync.Mutex
	said bytes.Buffer
	seen int // what an expect has matched already
}

// listen gathers what the command says until the terminal is closed.
func (t *typist) listen() {
	b := make([]byte, 4096)
	for {
		n, err := t.master.Read(b)
		t.mu.Lock()
		t.said.Write(b[:n])
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *typist) play(verb, rest string) {
	switch verb {
	case "expect":
		t.expect(rest)
	case "send":
		_, err := t.master.WriteString(rest + "\r")
		t.ts.Check(err)
	case "type":
		text, err := strconv.Unquote(`"` + rest + `"`)
		t.ts.Check(err)
		_, err = t.master.WriteString(text)
		t.ts.Check(err)
	case "size":
		t.size(rest)
	case "exit":
		t.exit(rest)
	default:
		t.ts.Fatalf("terminal: no verb %q", verb)
	}
}

func (t *typist) expect(pattern string) {
	re, err := regexp.Compile(pattern)
	t.ts.Check(err)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		t.mu.Lock()
		at := re.FindIndex(t.said.Bytes()[t.seen:])
		if at != nil {
			t.seen += at[1]
		}
		all := t.said.String()
		since := t.said.String()[t.seen:]
		t.mu.Unlock()
		if at != nil {
			return
		}
		if time.Now().After(end) {
			t.ts.Fatalf("terminal: %q did not come; since the last match came %q; all of it:\n%s", pattern, since, all)
		}
	}
}

func (t *typist) size(s string) {
	var w unix.Winsize
	_, err := fmt.Sscanf(s, "%dx%d", &w.Col, &w.Row)
	t.ts.Check(err)
	conn, err := t.master.SyscallConn()
	t.ts.Check(err)
	var wrong error
	err = conn.Control(func(fd uintptr) { wrong = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &w) })
	t.ts.Check(errors.Join(err, wrong))
}

func (t *typist) exit(code string) {
	select {
	case err := <-t.ended:
		got := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		}
		if strconv.Itoa(got) != code {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.ts.Fatalf("terminal: exit code %d (%v), want %s; all that came:\n%s", got, err, code, t.said.String())
		}
	case <-time.After(patience):
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ts.Fatalf("terminal: the command did not end; all that came:\n%s", t.said.String())
	}
}
