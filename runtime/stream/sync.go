// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// maxExecOutput is the maximum of each stream in ExecSync's response, as CRI says; see cri.LimitOutput for less.
// Output beyond it is dropped.
const maxExecOutput = 16 << 20

// execDrain bounds the wait for output after the command has ended: processes that it left behind may hold its streams
// open.
const execDrain = time.Second

// ExecSync runs a command in a container and returns its output. After the timeout the command is killed.
func (s *Service) ExecSync(
	ctx context.Context, request *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	container, process, err := s.process(request.GetContainerId(), request.GetCmd(), false)
	if err != nil {
		return nil, err
	}
	limit := time.Duration(request.GetTimeout()) * time.Second
	run := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	most := cri.OutputLimit(ctx, maxExecOutput)
	out, err := newCollector(most)
	if err != nil {
		return nil, fault.Wrap(err, "exec in container %s", container.ID)
	}
	errs, err := newCollector(most)
	if err != nil {
		out.stop()
		return nil, fault.Wrap(err, "exec in container %s", container.ID)
	}
	defer out.stop()
	defer errs.stop()
	x, err := s.shim.Exec(run, container.ID, shim.Exec{Process: process, Stdout: true, Stderr: true}, out.w, errs.w)
	out.closeWriter()
	errs.closeWriter()
	var code int
	if err == nil {
		defer func() { _ = x.Close() }()
		code, err = x.Wait(run)
	}
	if err != nil {
		if limit > 0 && ctx.Err() == nil && errors.Is(run.Err(), context.DeadlineExceeded) {
			return nil, status.Errorf(codes.DeadlineExceeded, "command %q timed out: it ran for more than %s",
				strings.Join(request.GetCmd(), " "), limit)
		}
		return nil, fault.Status(err)
	}
	// exit codes are small
	return &runtimeapi.ExecSyncResponse{Stdout: out.wait(), Stderr: errs.wait(), ExitCode: int32(code)}, nil
}

// process returns the container's process with another command.
func (s *Service) process(id string, cmd []string, tty bool) (*pods.Container, *specs.Process, error) {
	ctr, err := s.table.Container(id)
	if err != nil {
		return nil, nil, err
	}
	r := ctr.Record()
	if !r.Running() {
		return nil, nil, fault.FailedPrecondition("exec in container %s: it is in state %s", ctr.ID, r.State())
	}
	if len(cmd) == 0 || cmd[0] == "" {
		return nil, nil, fault.InvalidArgument("exec in container %s: no command given", ctr.ID)
	}
	spec, err := s.specs.Read(ctr)
	if err != nil {
		return nil, nil, fault.Wrap(err, "exec in container %s", ctr.ID)
	}
	p := spec.Process
	p.Args = cmd
	p.Terminal = tty
	if tty && !hasEnv(p.Env, "TERM") {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return ctr, p, nil
}

func hasEnv(env []string, key string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			return true
		}
	}
	return false
}

// collector reads a pipe and keeps up to most bytes; the rest is dropped.
type collector struct {
	r, w *os.File
	most int
	done chan struct{}

	mu  sync.Mutex
	buf []byte
}

func newCollector(most int) (*collector, error) {
	file, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	k := &collector{
		r:    file,
		w:    w,
		most: most,
		done: make(chan struct{}),
	}
	go func() { // ends when all write ends are closed, or stop closes the read end
		defer close(k.done)
		_, _ = io.Copy(k, file) // an error means the end of the output, too
	}()
	return k, nil
}

// Write keeps p up to the limit.
func (k *collector) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf = append(k.buf, p[:min(len(p), k.most-len(k.buf))]...)
	return len(p), nil
}

func (k *collector) closeWriter() { _ = k.w.Close() } // the command has a copy

// wait returns the output of an ended command.
func (k *collector) wait() []byte {
	t := time.NewTimer(execDrain)
	defer t.Stop()
	select {
	case <-k.done:
	case <-t.C:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.buf
}

func (k *collector) stop() {
	_ = k.w.Close() // usually closed already
	_ = k.r.Close() // ends the reader
	<-k.done
}
