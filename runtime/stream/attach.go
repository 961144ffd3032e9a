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
		go func() { // ends with the client's input, or the container
			_, err := io.Copy(session.Stdin, in)
			switch {
			case err != nil:
			case container.Record().Config.V.GetStdinOnce() && !session.Terminal:
				_ = session.Stdin.Close()                  // the container sees the end when the last copy is closed
				_ = e.s.shim.CloseStdin(ctx, container.ID) // the container may have ended
			default: // the container waits for the next client's input; this client gets what answers its own
				timer := time.NewTimer(execDrain)
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
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
