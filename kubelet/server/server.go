// SPDX-License-Identifier: Apache-2.0

// Package server is the kubelet's HTTPS server: logs, exec, attach, port-forward, run, statistics and metrics. The API
// server calls it with a client certificate, monitoring with the token of a service account. Streams are proxied to the
// runtime's streaming server. Nothing here changes a pod.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/reach"
	"keelson/lib/connlimit"
)

// Pods returns the node's pods. Objects are shared: never modify them.
type Pods interface {
	// Find returns the pod of this name; uid may be empty. nil: there is none.
	Find(namespace, name, uid string) *corev1.Pod
	All() []*corev1.Pod
}

// Config has the dependencies of the server, and who may call it.
type Config struct {
	TLS *tls.Config
	// TLSCurves are the key exchanges that are taken; none: Go's default.
	TLSCurves []tls.CurveID
	// ClientCA returns the current CA of client certificates. It never returns nil, which would mean the system's CAs.
	// AllowedNames are the common names that may call; empty: all certificates of the CA.
	ClientCA     func() *x509.CertPool
	AllowedNames []string
	// ByToken reports whether the caller, who has sent a bearer token, is authenticated and may use one of these
	// subresources of the node with this verb; if not, it has written the response. nil: tokens are not accepted.
	ByToken func(w http.ResponseWriter, r *http.Request, verb string, subresources []string) bool
	Pods    Pods
	Runtime runtimeapi.RuntimeServiceClient
	// DialStreams connects to the runtime's streaming server; nil: dial the address of the runtime's answer.
	DialStreams func(ctx context.Context) (net.Conn, error)
	NodeName    string
	// Reach makes the connection tests; nil: they are not served.
	Reach *reach.Prober
	Stats http.Handler // of /stats/summary
	// LogDir is served at /logs/; empty: not served.
	LogDir string
	// Metrics are served at /metrics and below, by what follows: "", "/probes", "/resource".
	Metrics map[string]http.Handler
	// Pages serves /statusz, /flagz and /configz; nil: they are not served.
	Pages http.Handler
	Log   *slog.Logger
}

// Server is the kubelet's HTTPS server; see New.
type Server struct {
	cfg Config
	mux *http.ServeMux
	// streams is the transport to the runtime's streaming server: without proxy and without keep-alive.
	streams *http.Transport
}

// New returns a server. It does not listen; see Serve.
func New(cfg Config) *Server {
	server := &Server{
		cfg: cfg,
		mux: http.NewServeMux(),
		streams: &http.Transport{
			DisableKeepAlives:   true,
			TLSHandshakeTimeout: 10 * time.Second,
			// CRI has no field for a CA, so runtimes with TLS use self-signed certificates. The URL comes from the
			// runtime, is valid once and cannot be guessed.
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, // see above
		},
	}
	if dial := cfg.DialStreams; dial != nil {
		server.streams.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	}
	server.pages()
	server.debugPages()
	return server
}

// pages adds the paths of pods, containers and the node.
func (s *Server) pages() {
	// the client may have gone
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	s.mux.HandleFunc("GET /pods", s.pods)
	s.mux.HandleFunc("GET /runningpods/", s.pods)
	s.mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, method := range []string{"GET", "POST"} {
		s.mux.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", s.exec)
		s.mux.HandleFunc(method+" /exec/{namespace}/{pod}/{uid}/{container}", s.exec)
		s.mux.HandleFunc(method+" /attach/{namespace}/{pod}/{container}", s.attach)
		s.mux.HandleFunc(method+" /attach/{namespace}/{pod}/{uid}/{container}", s.attach)
		s.mux.HandleFunc(method+" /portForward/{namespace}/{pod}", s.portForward)
		s.mux.HandleFunc(method+" /portForward/{namespace}/{pod}/{uid}", s.portForward)
	}
	s.mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	if s.cfg.Reach != nil {
		s.mux.HandleFunc("POST /keelson/probe/{namespace}/{pod}", s.probe)
		s.mux.HandleFunc("GET /keelson/service/{namespace}/{name}", s.serving)
	}
	if s.cfg.Stats != nil {
		s.mux.Handle("GET /stats/summary", s.cfg.Stats)
	}
}

// debugPages adds the paths that show the kubelet itself: profiles, logs, flags and metrics.
func (s *Server) debugPages() {
	s.mux.HandleFunc("GET /debug/pprof/", pprof.Index) // not the command line, which may have secrets
	s.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	s.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	s.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	if s.cfg.LogDir != "" {
		s.mux.Handle("GET /logs/", logDir(s.cfg.LogDir).handler())
	}
	if s.cfg.Pages != nil {
		s.mux.Handle("GET /statusz", s.cfg.Pages)
		s.mux.Handle("GET /flagz", s.cfg.Pages)
		s.mux.Handle("GET /configz", s.cfg.Pages)
	}
	for rest, h := range s.cfg.Metrics {
		s.mux.Handle("GET /metrics"+rest, h)
	}
}

// ServeHTTP authenticates, authorizes and handles a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	connlimit.Request(r.Context())
	if r.URL.Path == "/healthz" {
		s.mux.ServeHTTP(w, r)
		return
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		if s.cfg.ByToken == nil || r.Header.Get("Authorization") == "" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb, subresources := access(r)
		if s.cfg.ByToken(w, r, verb, subresources) {
			s.mux.ServeHTTP(w, r)
		}
		return
	}
	who := r.TLS.VerifiedChains[0][0].Subject.CommonName
	if len(s.cfg.AllowedNames) > 0 && !slices.Contains(s.cfg.AllowedNames, who) {
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource=proxy)", who, r.Method),
			http.StatusForbidden)
		return
	}
	connlimit.Identify(r.Context(), connlimit.Owner{Name: who, Rank: connlimit.System})
	s.mux.ServeHTTP(w, r)
}

// verbs are those of the API for the methods of HTTP.
var verbs = map[string]string{
	http.MethodGet:    "get",
	http.MethodHead:   "get",
	http.MethodPost:   "create",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

// subresources are the subresources of a node whose right opens a path, by the path's first element (Kubernetes'
// KubeletFineGrainedAuthz). The right to nodes/proxy opens all others.
var subresources = map[string][]string{
	"metrics":     {"metrics"},
	"stats":       {"stats"},
	"logs":        {"log"},
	"pods":        {"pods", "proxy"},
	"runningpods": {"pods", "proxy"},
	"statusz":     {"statusz", "proxy"},
	"configz":     {"configz", "proxy"},
}

// access returns what a caller needs the right to. What runs a program or reaches a port needs the right to create,
// whatever the method: Kubernetes takes a websocket's GET for a read.
func access(r *http.Request) (verb string, of []string) {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(r.URL.Path), "/"), "/")
	verb = cmp.Or(verbs[r.Method], strings.ToLower(r.Method))
	switch first {
	case "exec", "attach", "portForward", "run":
		verb = "create"
	}
	if of = subresources[first]; of == nil {
		of = []string{"proxy"}
	}
	return verb, of
}

// Serve serves on listener until ctx is done. Open streams are closed then.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	conf := s.cfg.TLS.Clone()
	conf.ClientAuth = tls.VerifyClientCertIfGiven
	conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
	conf.CurvePreferences = s.cfg.TLSCurves
	conf.NextProtos = []string{"http/1.1"} // streams take the connection over, which HTTP/2 has no way to do
	conf.SessionTicketsDisabled = true     // a session would outlive the CA of its client
	perClient := conf.Clone()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := perClient.Clone()
		c.ClientCAs = s.cfg.ClientCA()
		return c, nil
	}
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		TLSConfig:         conf,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       connlimit.Context,
	}
	shares, err := connlimit.OwnShares()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // Serve returns the error
	defer stop()
	err = srv.Serve(tls.NewListener(connlimit.New(listener, shares.Other), conf))
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("kubelet server: %w", err)
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.cfg.Pods.All() {
		list.Items = append(list.Items, *p)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&list) // the client may have gone
}

// find returns the pod of a request. If there is none, it answers 404.
func (s *Server) find(w http.ResponseWriter, r *http.Request) *corev1.Pod {
	p := s.cfg.Pods.Find(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid"))
	if p == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
	}
	return p
}
