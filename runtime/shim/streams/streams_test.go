// SPDX-License-Identifier: Apache-2.0

//go:build linux

package streams_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"keelson/lib/logrotate"
	"keelson/runtime/shim"
	"keelson/runtime/shim/epoll"
	"keelson/runtime/shim/logfile"
	"keelson/runtime/shim/streams"
)

// container has streams, and the ends of them that its program would have.
type container struct {
	*streams.Streams
	dir                   string
	stdin, stdout, stderr *os.File
}

// newCopier returns a Copier whose loop runs.
func newCopier(t *testing.T) *streams.Copier {
	t.Helper()
	loop, err := epoll.New(&sync.RWMutex{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = loop.Run() }() // ends with the process
	return streams.NewCopier(loop, log.New(t.Output(), "", 0))
}

func openLog(t *testing.T, dir string) *logfile.Writer {
	t.Helper()
	w, err := logfile.Open(filepath.Join(dir, "log"), logrotate.Policy{}.Complete())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func start(t *testing.T, copier *streams.Copier) *container {
	t.Helper()
	dir := t.TempDir()
	c := &container{Streams: copier.New(dir, openLog(t, dir)), dir: dir}
	ends, err := c.MakeFIFOs(true, false)
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.stdin = ends[0]
	c.stdout = ends[1]
	c.stderr = ends[2]
	t.Cleanup(func() { shim.CloseAll(ends[:]) })
	return c
}

func (c *container) print(t *testing.T, to *os.File, text string) {
	t.Helper()
	if _, err := to.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// logged returns the lines of the log without their times.
func (c *container) logged(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		_, rest, _ := strings.Cut(line, " ")
		out = append(out, strings.TrimSpace(rest))
	}
	return strings.Join(out, "; ")
}

// attach attaches a client to standard output and returns what it reads.
func (c *container) attach(t *testing.T) (output *os.File, detach func()) {
	t.Helper()
	output, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	detach, err = c.Attach(shim.Attach{Stdout: true, Stdin: true}, false, []*os.File{theirs}, func(
		reply shim.Attached, files ...*os.File,
	) error {
		if !reply.Stdin || len(files) != 1 {
			t.Errorf("reply %+v with %d files, want standard input", reply, len(files))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return output, detach
}

// TestOutput: output goes to the log and to clients, what is in the FIFOs at the end too, and then clients are
// disconnected.
func TestOutput(t *testing.T) {
	c := start(t, newCopier(t))
	output, _ := c.attach(t)
	c.print(t, c.stdout, "one\n")
	c.print(t, c.stderr, "broken\n")
	got := make([]byte, 4)
	if _, err := io.ReadFull(output, got); err != nil || string(got) != "one\n" {
		t.Errorf("the client reads %q, %v", got, err)
	}
	c.print(t, c.stdout, "last")
	c.Close()
	rest, err := io.ReadAll(output)
	if err != nil || string(rest) != "last" {
		t.Errorf("the client reads %q, %v", rest, err)
	}
	text := c.logged(t)
	for _, want := range []string{"stdout F one", "stderr F broken", "stdout P last"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has %q, want %q", text, want)
		}
	}
	if _, err := c.Attach(shim.Attach{}, false, nil, nil); !errors.Is(err, shim.ErrNotRunning) {
		t.Errorf("attach afterwards: %v", err)
	}
	if err := c.Reopen(); !errors.Is(err, shim.ErrNotRunning) {
		t.Errorf("reopen afterwards: %v", err)
	}
}

// TestSlowClient: a client that does not read is disconnected, and blocks neither the container nor others.
func TestSlowClient(t *testing.T) {
	copier := newCopier(t)
	c := start(t, copier)
	slow, _ := c.attach(t)
	quick, _ := c.attach(t)
	text := bytes.Repeat([]byte(strings.Repeat("x", 1023)+"\n"), 6<<10)
	read := make(chan int, 1)
	go func() { // ends with the streams
		n, _ := io.Copy(io.Discard, quick)
		read <- int(n)
	}()
	c.print(t, c.stdout, string(text))
	c.Close()
	if n := <-read; n == 0 {
		t.Error("a client that reads gets nothing")
	}
	n, err := io.Copy(io.Discard, slow)
	if err != nil || n >= int64(len(text)) {
		t.Errorf("the slow client gets %d of %d bytes, %v; want less", n, len(text), err)
	}
}

// TestDetach: a client that leaves gets nothing more, and closing standard input ends the container's.
func TestDetach(t *testing.T) {
	c := start(t, newCopier(t))
	output, detach := c.attach(t)
	detach()
	detach()
	c.print(t, c.stdout, "more\n")
	if got, err := io.ReadAll(output); err != nil || len(got) > 0 {
		t.Errorf("the client reads %q, %v", got, err)
	}
	c.CloseIn()
	if got, err := io.ReadAll(c.stdin); err != nil || len(got) > 0 {
		t.Errorf("the container reads %q, %v", got, err)
	}
}

// TestNextProgram: another program goes on where the first one was, with its files or with the FIFOs alone.
func TestNextProgram(t *testing.T) {
	copier := newCopier(t)
	c := start(t, copier)
	c.print(t, c.stdout, "first\nbegin")
	waits, _ := c.attach(t)
	c.print(t, c.stdout, " of a line")
	got := make([]byte, 5)
	if _, err := io.ReadFull(waits, got); err != nil {
		t.Fatal(err)
	}
	state, open := c.State()
	if !open || len(state.Pending[logfile.Stdout]) == 0 || state.In == nil {
		t.Fatalf("state %+v, %v", state, open)
	}
	next := copier.New(c.dir, openLog(t, c.dir))
	next.Restore(state)
	if again, open := next.State(); !open || !bytes.Equal(again.Pending[0], state.Pending[0]) {
		t.Errorf("the next program has %q of a line, want %q", again.Pending[0], state.Pending[0])
	}
}
