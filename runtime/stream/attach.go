// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"keelson/runtime/shim"
)

// Attach connects the streams of a running container until it ends, the client disconnects, or its input ends and the
// container continues without it.
func (e ends) Attach(
	ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	container, err := e.s.table.Container(id)
	if err != nil {
		return err
	}
	var theirs, ours []*os.File
	defer func() { shim.CloseAll(ours) }()
	var outputs sync.WaitGroup
	for _, o := range []io.Writer{out, errw} {
		if o == nil {
			continue
		}
		r, pw, err := os.Pipe()
		if err != nil {
			shim.CloseAll(theirs)
			return err
		}
		theirs = append(theirs, pw)
		ours = append(ours, r)
		outputs.Go(func() { _, _ = io.Copy(o, r) }) // the client may have gone
	}
	session, err := e.s.shim.Attach(ctx, container.ID,
		shim.Attach{Stdin: in != nil, Stdout: out != nil, Stderr: errw != nil},
		theirs...)
	shim.CloseAll(theirs)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if session.Stdin != nil {
		defer func() { _ = session.Stdin.Close() }()
		if session.Terminal {
			go func() { resizeTerminal(ctx, session.Stdin, resize) }() // ends with the client's connection
		}
		once := container.Record().Config.V.GetStdinOnce() && !session.Terminal
		go func() { // ends with the client's input, or the container
			if e.sendInput(ctx, container.ID, session.Stdin, in, once) {
				cancel(nil)
			}
		}()
	}
	_, err = session.Wait(ctx)
	waitFor(&outputs, execDrain)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// sendInput copies a client's input into a container. It reports whether the client is done when its input has ended:
// once means that the container's input has ended, too, and that the client waits for its end. Otherwise the container
// waits for the next client's input, and this client gets what answers its own.
func (e ends) sendInput(ctx context.Context, id string, to io.WriteCloser, in io.Reader, once bool) (done bool) {
	if _, err := io.Copy(to, in); err != nil {
		return false
	}
	if once {
		_ = to.Close()                   // the container sees the end when the last copy is closed
		_ = e.s.shim.CloseStdin(ctx, id) // the container may have ended
		return false
	}
	timer := time.NewTimer(execDrain)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}
