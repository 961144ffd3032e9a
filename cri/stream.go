// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// stream is a server-streaming call in one process: the server sends to a channel from which the client receives. The
// call ends when the server's method returns, or when the caller's context is done.
type stream[A any] struct {
	call  callContext
	items chan *A
	done  chan struct{} // closed after err is set
	err   error
}

// callContext returns a stream's context, which gRPC's stream interfaces require.
type callContext func() context.Context

func openStream[Q, A any](
	ctx context.Context, in *Q, serve func(*Q, grpc.ServerStreamingServer[A]) error,
) grpc.ServerStreamingClient[A] {
	s := &stream[A]{call: func() context.Context { return ctx }, items: make(chan *A), done: make(chan struct{})}
	go func() { // ends when the server's method returns, which it does when ctx is done
		s.err = serve(in, serverEnd[A]{s})
		if s.err == nil {
			// the server returned nil because the call was canceled, which is not io.EOF for the client
			s.err = ctx.Err()
		}
		close(s.done)
	}()
	return clientEnd[A]{s}
}

type serverEnd[A any] struct{ s *stream[A] }

func (e serverEnd[A]) Send(a *A) error {
	ctx := e.s.call()
	select {
	case e.s.items <- a:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (e serverEnd[A]) Context() context.Context { return e.s.call() }

func (serverEnd[A]) SetHeader(metadata.MD) error  { return nil }
func (serverEnd[A]) SendHeader(metadata.MD) error { return nil }
func (serverEnd[A]) SetTrailer(metadata.MD)       {}
func (serverEnd[A]) RecvMsg(any) error            { return io.EOF }

func (e serverEnd[A]) SendMsg(m any) error {
	a, ok := m.(*A)
	if !ok {
		return errors.New("send on an in-process stream: wrong message type")
	}
	return e.Send(a)
}

type clientEnd[A any] struct{ s *stream[A] }

// Recv returns the next message, or io.EOF after the server has returned nil, or the server's error.
func (e clientEnd[A]) Recv() (*A, error) {
	ctx := e.s.call()
	select {
	case a := <-e.s.items:
		return a, nil
	case <-e.s.done:
		if e.s.err == nil {
			return nil, io.EOF
		}
		return nil, asStatus(e.s.err)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (e clientEnd[A]) Context() context.Context   { return e.s.call() }
func (clientEnd[A]) Header() (metadata.MD, error) { return nil, nil }
func (clientEnd[A]) Trailer() metadata.MD         { return nil }
func (clientEnd[A]) CloseSend() error             { return nil }
func (clientEnd[A]) SendMsg(any) error            { return io.EOF }

func (clientEnd[A]) RecvMsg(any) error {
	return errors.New("receive on an in-process stream: use Recv, messages are not copied")
}
