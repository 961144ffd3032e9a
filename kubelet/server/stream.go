// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/lib/streams"
)

// running returns the ID of the running container of a request. If there is none, it answers with an error.
func (s *Server) running(w http.ResponseWriter, r *http.Request) (string, bool) {
	pod := s.find(w, r)
	if pod == nil {
		return "", false
	}
	name := r.PathValue("container")
	seen, err := runtimestate.Read(r.Context(), s.cfg.Runtime, string(pod.UID))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return "", false
	}
	c := seen.Latest(name)
	if spec, _ := podinfo.Find(pod, name); spec == nil || !c.Running() {
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
		return "", false
	}
	return c.ID, true
}

// flag reads a parameter of the API server ("input=1") or of older clients ("stdin=true").
func flag(q url.Values, names ...string) bool {
	for _, n := range names {
		if b, err := strconv.ParseBool(q.Get(n)); err == nil && b {
			return true
		}
	}
	return false
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	id, ok := s.running(w, r)
	if !ok {
		return
	}
	q := r.URL.Query()
	req := &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         q["command"],
		Tty:         flag(q, "tty"),
		Stdin:       flag(q, "input", "stdin"),
		Stdout:      flag(q, "output", "stdout"),
		Stderr:      flag(q, "error", "stderr") && !flag(q, "tty"),
	}
	if len(req.Cmd) == 0 {
		http.Error(w, "you must specify at least 1 command", http.StatusBadRequest)
		return
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.cfg.Runtime.Exec(r.Context(), req)
	if target := runtimeURL(w, resp.GetUrl(), err); target != nil {
		s.passRemote(w, r, target, streams.Options{
			Stdin:  req.GetStdin(),
			Stdout: req.GetStdout(),
			Stderr: req.GetStderr(),
			TTY:    req.GetTty(),
		})
	}
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	id, ok := s.running(w, r)
	if !ok {
		return
	}
	q := r.URL.Query()
	req := &runtimeapi.AttachRequest{
		ContainerId: id,
		Tty:         flag(q, "tty"),
		Stdin:       flag(q, "input", "stdin"),
		Stdout:      flag(q, "output", "stdout"),
		Stderr:      flag(q, "error", "stderr") && !flag(q, "tty"),
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.cfg.Runtime.Attach(r.Context(), req)
	if target := runtimeURL(w, resp.GetUrl(), err); target != nil {
		s.passRemote(w, r, target, streams.Options{
			Stdin:  req.GetStdin(),
			Stdout: req.GetStdout(),
			Stderr: req.GetStderr(),
			TTY:    req.GetTty(),
		})
	}
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	pod := s.find(w, r)
	if pod == nil {
		return
	}
	seen, err := runtimestate.Read(r.Context(), s.cfg.Runtime, string(pod.UID))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	box := seen.Current()
	if box == nil {
		http.Error(w, fmt.Sprintf("sandbox of pod %s/%s is not running", pod.Namespace, pod.Name), http.StatusNotFound)
		return
	}
	req := &runtimeapi.PortForwardRequest{PodSandboxId: box.ID}
	for _, v := range append(r.URL.Query()["port"], r.URL.Query()["ports"]...) {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 || n > 65535 {
			http.Error(w, fmt.Sprintf("invalid port %q", v), http.StatusBadRequest)
			return
		}
		req.Port = append(req.Port, int32(n))
	}
	resp, err := s.cfg.Runtime.PortForward(r.Context(), req)
	target := runtimeURL(w, resp.GetUrl(), err)
	switch {
	case target == nil:
	case streams.IsTunnel(r):
		if err := streams.Tunnel(bounded(w, r), r, target, s.streams); err != nil {
			code := http.StatusInternalServerError
			if apierrors.IsBadRequest(err) {
				code = http.StatusBadRequest
			}
			http.Error(w, err.Error(), code)
		}
	default:
		s.pass(w, r, target)
	}
}

// runtimeURL is the URL of a stream in the runtime's answer. If there is none, it answers with an error.
func runtimeURL(w http.ResponseWriter, target string, err error) *url.URL {
	if err != nil {
		code := http.StatusInternalServerError
		switch status.Code(err) {
		case codes.NotFound:
			code = http.StatusNotFound
		case codes.InvalidArgument:
			code = http.StatusBadRequest
		default:
		}
		http.Error(w, status.Convert(err).Message(), code)
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		http.Error(w, fmt.Sprintf("the container runtime answered with a bad address %q", target),
			http.StatusInternalServerError)
		return nil
	}
	return u
}

// passRemote connects an exec or attach to the runtime's streaming server. Runtimes do not know the last protocol of
// websockets, which is translated for them.
func (s *Server) passRemote(w http.ResponseWriter, r *http.Request, target *url.URL, wants streams.Options) {
	if !streams.IsRemote(r) {
		s.pass(w, r, target)
		return
	}
	via := s.streams
	if target.Scheme == "https" {
		via = &http.Transport{DialContext: s.dialTLS}
	}
	plain := *target
	plain.Scheme = "http"
	streams.Remote(bounded(w, r), r, &plain, via, wants)
}

// dialTLS connects to a runtime's streaming server that uses TLS.
func (s *Server) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial := s.cfg.DialStreams; dial != nil {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return tls.Client(conn, s.streams.TLSClientConfig), nil
	}
	return (&tls.Dialer{Config: s.streams.TLSClientConfig}).DialContext(ctx, network, addr)
}

// pass proxies the connection to the runtime's streaming server.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, target *url.URL) {
	proxy := &httputil.ReverseProxy{
		Transport: s.streams,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = target
			pr.Out.Host = target.Host
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "stream to the container runtime: "+err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(bounded(w, r), r)
}

// bounded bounds what an upgraded connection makes this process and the runtime keep.
func bounded(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" {
		return boundedUpgrade{w, upgrade}
	}
	return w
}

// runTimeout bounds a command of /run, in seconds, maxRunOutput its output.
const (
	runTimeout   = 60
	maxRunOutput = 1 << 20
)

// run runs a command (ExecSync) and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	id, ok := s.running(w, r)
	if !ok {
		return
	}
	cmd := r.URL.Query()["cmd"]
	req := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: runTimeout}
	out, code, err := cri.Output(r.Context(), s.cfg.Runtime, req, maxRunOutput)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if code != 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(out) // the client may have gone
}
