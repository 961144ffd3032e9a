// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/shim"
)

// Exec returns a URL, valid once, for the streams of an interactive exec.
func (s *Server) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, _, err := s.execProcess(r.GetContainerId(), r.GetCmd(), r.GetTty()); err != nil {
		return nil, err
	}
	return s.stream.GetExec(r)
}

// Attach returns a URL, valid once, for the streams of a running container.
func (s *Server) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if rec := c.Record(); rec.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, fault.FailedPrecondition("attach to container %s: it is in state %s", c.ID, rec.State())
	}
	return s.stream.GetAttach(r)
}

// PortForward returns a URL, valid once, for connections to the pod's ports.
func (s *Server) PortForward(
	_ context.Context, r *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	sb, err := s.table.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !sb.Record().Ready {
		return nil, fault.FailedPrecondition("port-forward to pod sandbox %s: it is not ready", sb.ID)
	}
	return s.stream.GetPortForward(r)
}

// streams implements the streaming runtime behind those URLs.
type streams struct{ s *Server }

// Exec runs a command with the streams connected. A non-zero exit code is a CodeExitError.
func (w streams) Exec(
	ctx context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	c, p, err := w.s.execProcess(id, cmd, tty)
	if err != nil {
		return err
	}
	var code int
	if tty {
		code, err = w.s.execTerminal(ctx, c.ID, shim.Exec{Process: p}, in, out, resize)
	} else {
		code, err = w.s.execPipes(ctx, c.ID, shim.Exec{
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
func (s *Server) execPipes(
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
func (s *Server) execTerminal(
	ctx context.Context, id string, e shim.Exec, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize,
) (int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "console")
	theirs := os.NewFile(uintptr(fds[1]), "console")
	defer func() { _ = ours.Close() }()
	session, err := s.shim.Exec(ctx, id, e, theirs)
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

// Attach connects the streams of a running container until it ends, the client disconnects, or its input ends and the
// container goes on without it.
func (w streams) Attach(
	ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	container, err := w.s.table.Container(id)
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
	session, err := w.s.shim.Attach(ctx, container.ID,
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
				_ = w.s.shim.CloseStdin(ctx, container.ID) // the container may have ended
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

// PortForward connects the stream to a port on the pod's loopback interface.
func (w streams) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	sb, err := w.s.table.Sandbox(id)
	if err != nil {
		return err
	}
	rec := sb.Record()
	if !rec.Ready {
		return fault.FailedPrecondition("port-forward to pod sandbox %s: it is not ready", sb.ID)
	}
	var conn net.Conn
	dial := func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		for _, host := range []string{"127.0.0.1", "::1"} {
			// Dialling an address does no lookup, so it stays on this thread, which is in the pod's network namespace.
			if conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port)))); err == nil {
				return nil
			}
		}
		return fmt.Errorf("connect to port %d inside the pod: %w", port, err)
	}
	if rec.Options().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		err = dial()
	} else {
		err = linux.InNetwork(sb.NS(linux.NetworkNamespace), dial)
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	up := make(chan struct{})
	go func() { // ends with the client's half, or when conn is closed
		defer close(up)
		_, _ = io.Copy(conn, stream)
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite() // the pod may have closed it
		}
	}()
	down := make(chan struct{})
	go func() { // ends with the pod's half
		defer close(down)
		_, _ = io.Copy(stream, conn)
	}()
	select {
	case <-down:
	case <-ctx.Done():
	}
	return nil
}
