// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Options are the streams of an exec or attach.
type Options struct{ Stdin, Stdout, Stderr, TTY bool }

// pingInterval is the interval of pings to an idle SPDY connection.
const pingInterval = 5 * time.Second

// Remote serves exec or attach over a websocket (v5.channel.k8s.io) and uses SPDY to the kubelet or runtime at
// target, which has the scheme http: the dialer of via does TLS. It returns when both connections are closed. Errors
// after the handshake are sent on the error channel.
func Remote(w http.ResponseWriter, r *http.Request, target *url.URL, via http.RoundTripper, wants Options) {
	ws, err := accept(w, r, constants.StreamProtocolV5Name)
	if err != nil {
		return // the error response is written
	}
	defer func() { _ = ws.Close() }() // the client may have closed it
	// The HTTP server does not watch hijacked connections: a disconnect is noticed by reading.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s := newSession(ws, wants)
	gone := make(chan struct{})
	go func() { // ends with the websocket
		defer close(gone)
		defer cancel()
		s.read()
	}()
	if err := s.sendReady(); err == nil {
		_ = s.send(constants.StreamErr, exitStatus(s.run(ctx, target, via))) // the client may be gone
	}
	_ = s.stdin.CloseWithError(io.ErrClosedPipe) // further input is useless, and read may block on the pipe
	end := time.Now().Add(closeTimeout)
	_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), end)
	_ = ws.SetReadDeadline(end)
	<-gone // closing with unread data would reset the connection and lose the last message
}

// session is the client's side: five channels in one websocket, selected by the first byte of a message.
type session struct {
	ws          *websocket.Conn
	options     Options
	stdin       *io.PipeReader
	stdinWriter *io.PipeWriter
	sizes       chan remotecommand.TerminalSize // the latest size not yet taken
	done        chan struct{}                   // closed when read ends

	mu sync.Mutex // one message at a time
}

func newSession(ws *websocket.Conn, wants Options) *session {
	s := &session{
		ws:      ws,
		options: wants,
		sizes:   make(chan remotecommand.TerminalSize, 1),
		done:    make(chan struct{}),
	}
	s.stdin, s.stdinWriter = io.Pipe()
	return s
}

// sendReady sends an empty message on a channel that the client reads: the connection is established.
func (s *session) sendReady() error {
	switch {
	case s.options.Stdout:
		return s.send(constants.StreamStdOut, nil)
	case s.options.Stderr:
		return s.send(constants.StreamStdErr, nil)
	}
	return s.send(constants.StreamErr, nil)
}

func (s *session) send(channel byte, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	if _, err = m.Write([]byte{channel}); err == nil {
		_, err = m.Write(b)
	}
	return errors.Join(err, m.Close())
}

// closeSignal as the first byte means that the client has closed the channel in the second byte.
const closeSignal = 255

// read handles the client's messages until the websocket ends.
func (s *session) read() {
	defer close(s.done)
	defer func() { _ = s.stdinWriter.Close() }()
	for {
		_, in, err := s.ws.NextReader()
		if err != nil {
			return
		}
		var first [1]byte
		if _, err := io.ReadFull(in, first[:]); err != nil {
			continue // ignore an empty message
		}
		switch channel := first[0]; {
		case channel == closeSignal:
			if _, err := io.ReadFull(in, first[:]); err == nil && first[0] == constants.StreamStdIn {
				_ = s.stdinWriter.Close() // never fails
			}
		case channel == constants.StreamStdIn && s.options.Stdin:
			_, _ = io.Copy(s.stdinWriter, in) // an ended command reads no more
		case channel == constants.StreamResize:
			s.queueSize(in)
		}
	}
}

// queueSize keeps only the latest size.
func (s *session) queueSize(m io.Reader) {
	var size remotecommand.TerminalSize
	if json.NewDecoder(m).Decode(&size) != nil {
		return
	}
	select {
	case <-s.sizes:
	default:
	}
	s.sizes <- size // does not block: only read sends, and has just drained the channel
}

// Next implements remotecommand.TerminalSizeQueue: nil ends it.
func (s *session) Next() *remotecommand.TerminalSize {
	select {
	case size := <-s.sizes:
		return &size
	case <-s.done:
		return nil
	}
}

// run connects the kubelet's streams with the client's until the command ends.
func (s *session) run(ctx context.Context, target *url.URL, via http.RoundTripper) error {
	bounded, err := boundedTransport(via)
	if err != nil {
		return err
	}
	rt, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		UpgradeTransport: bounded,
		PingPeriod:       pingInterval,
	})
	if err != nil {
		return err
	}
	remote, err := remotecommand.NewSPDYExecutorRejectRedirects(rt,
		clientspdy.NewUpgraderForStreaming(boundedUpgrader{rt}), http.MethodPost, target)
	if err != nil {
		return err
	}
	opts := remotecommand.StreamOptions{Tty: s.options.TTY}
	if s.options.Stdin {
		opts.Stdin = s.stdin
	}
	if s.options.Stdout {
		opts.Stdout = output{s, constants.StreamStdOut}
	}
	if s.options.Stderr && !s.options.TTY {
		opts.Stderr = output{s, constants.StreamStdErr}
	}
	if s.options.TTY {
		opts.TerminalSizeQueue = s
	}
	return remote.StreamWithContext(ctx, opts)
}

// output writes to one channel.
type output struct {
	s       *session
	channel byte
}

func (o output) Write(b []byte) (int, error) {
	if err := o.s.send(o.channel, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// exitStatus is the final Status of a session as JSON.
func exitStatus(err error) []byte {
	var status apierrors.APIStatus
	var exit exec.CodeExitError
	var s metav1.Status
	switch {
	case err == nil:
		s = metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit) && exit.Exited():
		s = metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  constants.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: constants.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitStatus())},
			}},
		}
	case errors.As(err, &status):
		s = status.Status()
	default:
		// the kubelet has added this prefix already
		text := strings.TrimPrefix(err.Error(), "Internal error occurred: ")
		s = apierrors.NewInternalError(errors.New(text)).Status()
	}
	b, err := json.Marshal(&s)
	if err != nil {
		return []byte(`{"status":"Failure"}`) // cannot happen: a Status can be encoded
	}
	return b
}
