// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"keelson/runtime/shim"
)

// Exec runs a command with the streams connected. A non-zero exit code is a CodeExitError.
func (e ends) Exec(
	ctx context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	c, p, err := e.s.process(id, cmd, tty)
	if err != nil {
		return err
	}
	var code int
	if tty {
		code, err = e.s.execTerminal(ctx, c.ID, shim.Exec{Process: p}, in, out, resize)
	} else {
		code, err = e.s.execPipes(ctx, c.ID, shim.Exec{
			Process: p,
			Stdin:   in != nil,
			Stdout:  out != nil,
			Stderr:  errw != nil,
		}, in, out, errw)
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return &utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// execPipes runs an exec without a terminal. The command gets its ends of the pipes: data does not pass through the
// supervisor.
func (s *Service) execPipes(
	ctx context.Context, id string, exec shim.Exec, in io.Reader, out, errw io.WriteCloser,
) (int, error) {
	var theirs, ours []*os.File
	defer func() { shim.CloseAll(ours) }()
	defer func() { shim.CloseAll(theirs) }()
	var outputs sync.WaitGroup
	if in != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		theirs = append(theirs, r)
		ours = append(ours, w)
		go func() { // ends with the client's input, or with EPIPE when the command has closed its end
			defer func() { _ = w.Close() }()
			_, _ = io.Copy(w, in) // the command need not read everything
		}()
	}
	for _, o := range []io.Writer{out, errw} {
		if o == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		theirs = append(theirs, w)
		ours = append(ours, r)
		outputs.Go(func() { _, _ = io.Copy(o, r) }) // the client may have gone
	}
	x, err := s.shim.Exec(ctx, id, exec, theirs...)
	shim.CloseAll(theirs)
	theirs = nil
	if err != nil {
		shim.CloseAll(ours)
		ours = nil
		outputs.Wait()
		return 0, err
	}
	defer func() { _ = x.Close() }()
	code, err := x.Wait(ctx)
	waitFor(&outputs, execDrain)
	return code, err
}

// waitFor waits until the output of an ended command has been copied, or for limit: processes that it left behind may
// hold the streams open.
func waitFor(g *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() { // ends with the group: the caller closes the read ends
		g.Wait()
		close(done)
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// execTerminal runs an exec with a terminal. The command's init sends the master side over a socket pair.
func (s *Service) execTerminal(
	ctx context.Context, id string, exec shim.Exec, in io.Reader, out io.Writer,
	resize <-chan remotecommand.TerminalSize,
) (int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "console")
	theirs := os.NewFile(uintptr(fds[1]), "console")
	defer func() { _ = ours.Close() }()
	session, err := s.shim.Exec(ctx, id, exec, theirs)
	_ = theirs.Close() // sent
	if err != nil {
		return 0, err
	}
	defer func() { _ = session.Close() }()
	tty, err := shim.ReceiveTerminal(ours)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tty.Close() }()
	go func() { resizeTerminal(ctx, tty, resize) }() // ends with the client's connection
	if in != nil {
		go func() { _, _ = io.Copy(tty, in) }() // ends with the client's input, or with the terminal
	}
	var output sync.WaitGroup
	if out != nil {
		output.Go(func() { _, _ = io.Copy(out, tty) }) // a terminal ends with an error
	}
	code, err := session.Wait(ctx)
	waitFor(&output, execDrain)
	return code, err
}

func resizeTerminal(ctx context.Context, tty *os.File, resize <-chan remotecommand.TerminalSize) {
	for {
		select {
		case size, ok := <-resize:
			if !ok {
				return
			}
			_ = shim.SetSize(tty, size.Width, size.Height) // the terminal may be gone
		case <-ctx.Done():
			return
		}
	}
}
