// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	idleTimeout  = 2 * time.Minute
	readTimeout  = 10 * time.Second
	stopTimeout  = time.Second
	maxOpenConns = 512
)

// server serves HTTP until it is stopped.
type server struct {
	log   func(format string, args ...any)
	start time.Time
	exit  chan int
	slots chan struct{} // one per open connection

	mu      sync.Mutex
	working sync.WaitGroup // requests in progress
}

func newServer(out io.Writer) *server {
	s := &server{start: time.Now(), exit: make(chan int, 1), slots: make(chan struct{}, maxOpenConns)}
	s.log = func(format string, args ...any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		// there is no other log
		_, _ = fmt.Fprintf(out, time.Now().UTC().Format("2006-01-02T15:04:05.000Z ")+format+"\n", args...)
	}
	return s
}

// serve runs until SIGTERM or SIGINT (exit code 0) or a request to /exit.
func serve(std stdio) int {
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	listener, err := net.Listen("tcp", ":"+port) //nolint:noctx // a program of its own: there is no context
	if err != nil {
		return complain(std, "hello", err)
	}
	server := newServer(std.out)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	server.log("hello: %s serves HTTP on %s", podName(), listener.Addr())
	go server.accept(listener) // ends when the listener is closed
	for {
		select {
		case code := <-server.exit:
			_ = listener.Close() // the process ends
			server.wait()
			server.log("hello: exits with %d, as asked", code)
			return code
		case sig := <-signals:
			if sig == syscall.SIGCHLD {
				reap()
				continue
			}
			_ = listener.Close() // the process ends
			server.wait()
			server.log("hello: %s, goodbye", sig)
			return 0
		}
	}
}

// reap collects orphans: as a container's first process this one inherits them, and it has no children of its own.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}

// wait waits for the requests in progress, at most for stopTimeout.
func (s *server) wait() {
	done := make(chan struct{})
	go func() { // ends with the last request or with the process
		s.working.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
	}
}

func (s *server) accept(l net.Listener) {
	for {
		s.slots <- struct{}{}
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors: other connections may close soon
			s.log("hello: accept: %v", err)
			<-s.slots
			time.Sleep(50 * time.Millisecond)
			continue
		}
		go s.converse(c) // ends when the peer closes, is idle for too long, or errs
	}
}

func (s *server) converse(conn net.Conn) {
	defer func() {
		_ = conn.Close() // nothing was lost
		<-s.slots
	}()
	r := bufio.NewReaderSize(conn, 4096)
	for {
		_ = conn.SetDeadline(time.Now().Add(idleTimeout)) // an error shows at the next read
		if _, err := r.Peek(1); err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(readTimeout))
		if !s.one(conn, r) {
			return
		}
	}
}

// one serves one request; false closes the connection.
func (s *server) one(conn net.Conn, r *bufio.Reader) bool {
	s.working.Add(1)
	defer s.working.Done()
	begin := time.Now()
	req, err := readRequest(r)
	if err != nil {
		if bad, ok := errors.AsType[badRequest](err); ok {
			_ = writeResponse(conn, req, response{bad.status, err.Error() + "\n"}, false)
			s.log("%s %d %v", conn.RemoteAddr(), bad.status, err)
		}
		return false
	}
	resp := s.answer(req, conn)
	keep := req.keepAlive
	err = writeResponse(conn, req, resp, keep)
	s.log("%s %s %s %d %s", conn.RemoteAddr(), req.method, req.target, resp.status,
		time.Since(begin).Round(time.Microsecond))
	return err == nil && keep
}

type response struct {
	status int
	body   string
}

// answer returns the response to a request.
func (s *server) answer(req request, c net.Conn) response {
	if req.method != "GET" && req.method != "HEAD" && req.method != "POST" && req.method != "PUT" {
		return response{405, "method not allowed\n"}
	}
	switch path, query, _ := strings.Cut(req.target, "?"); path {
	case "/":
		return response{200, s.describe(req, c)}
	case "/healthz", "/readyz", "/livez":
		return response{200, "ok\n"}
	case "/hostname":
		return response{200, hostname() + "\n"}
	case "/env":
		return response{200, environment("")}
	case "/exit":
		code := 0
		for kv := range strings.SplitSeq(query, "&") {
			if v, ok := strings.CutPrefix(kv, "code="); ok {
				code = atoi(v, -1)
			}
		}
		if code < 0 || code > 255 {
			return response{400, "code must be a number from 0 to 255\n"}
		}
		select {
		case s.exit <- code:
		default: // another request was first
		}
		return response{200, fmt.Sprintf("exiting with %d\n", code)}
	}
	return response{404, "not found; try / /healthz /readyz /env /hostname /exit?code=N\n"}
}

func (s *server) describe(req request, conn net.Conn) string {
	var out strings.Builder
	row := func(k, v string) { fmt.Fprintf(&out, "  %-10s %s\n", k, v) }
	fmt.Fprintf(&out, "Hello from %s\n\n", podName())
	row("pod", podName())
	row("namespace", namespace())
	row("node", or(os.Getenv("NODE_NAME"), "unknown (set NODE_NAME from spec.nodeName)"))
	row("hostname", hostname())
	row("address", addresses())
	row("request", req.method+" "+req.target+" "+req.proto)
	row("host", req.header["host"])
	row("from", conn.RemoteAddr().String())
	row("to", conn.LocalAddr().String())
	row("up", time.Since(s.start).Round(time.Millisecond).String())
	out.WriteString("\nEnvironment\n")
	out.WriteString(environment("  "))
	return out.String()
}

func environment(indent string) string {
	env := os.Environ()
	slices.Sort(env)
	var b strings.Builder
	for _, e := range env {
		b.WriteString(indent + e + "\n")
	}
	return b.String()
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return h
}

func podName() string { return or(os.Getenv("POD_NAME"), hostname()) }

func namespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "unknown (set POD_NAMESPACE from metadata.namespace)"
	}
	return strings.TrimSpace(string(b))
}

func addresses() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "unknown"
	}
	var out []string
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			out = append(out, ip.IP.String())
		}
	}
	return or(strings.Join(out, " "), "none")
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
