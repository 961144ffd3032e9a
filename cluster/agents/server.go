// SPDX-License-Identifier: Apache-2.0

// Package agents is what a controller manager or a scheduler has next to its work in a process of its own: the
// HTTPS port with health, metrics, profiles and configuration, whose callers the API server authenticates and
// authorizes; the leader election; and the metrics of its client. A kubelet's callers are admitted in the same way. It
// knows no agent.
package agents

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/leaderelection"

	"keelson/api/gates"
	"keelson/apiserver/discovery"
	"keelson/apiserver/options"
	"keelson/client"
	"keelson/cluster/version"
	"keelson/lib/connlimit"
	"keelson/lib/run"
	"keelson/pki"
)

// Serving holds the flags of kube-controller-manager and kube-scheduler for the HTTPS port with health, metrics
// and profiles. The zero value serves nothing.
type Serving struct {
	// Port is --secure-port; 0: nothing is served. FallbackPort allows a free port in its place when it is in use.
	Port         int
	FallbackPort bool
	// Bind is --bind-address; the zero value is the loopback address.
	Bind netip.Addr
	// CertFile and KeyFile are the serving certificate; empty: self-signed.
	CertFile, KeyFile string
	// ClientCA is --client-ca-file; empty: the CAs in the ConfigMap extension-apiserver-authentication.
	ClientCA string
	// AuthnKubeconfig and AuthzKubeconfig name the API servers that receive TokenReviews and SubjectAccessReviews;
	// empty: the role's own.
	AuthnKubeconfig, AuthzKubeconfig string
	// NoProfiling disables /debug/pprof/.
	NoProfiling bool
	// MinTLS is the minimum TLS version, such as "VersionTLS13"; empty: 1.2.
	MinTLS string
	// Curves are the key exchanges that are taken, by their numbers; none: Go's default.
	Curves []int32
	// AlwaysAllow are the paths that need no authorization; a trailing * matches any suffix. nil: healthPaths.
	AlwaysAllow []string
}

// healthPaths are the default of Serving.AlwaysAllow.
var healthPaths = []string{"/healthz", "/readyz", "/livez"}

func (o Serving) validate() error {
	var errs []error
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.Port))
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file must be given together"))
	}
	if _, ok := tlsVersions[o.MinTLS]; !ok {
		errs = append(errs, fmt.Errorf("--tls-min-version %q is neither VersionTLS12 nor VersionTLS13", o.MinTLS))
	}
	if _, err := options.CurveIDs(o.Curves); err != nil {
		errs = append(errs, err)
	}
	for _, p := range o.AlwaysAllow {
		if !strings.HasPrefix(p, "/") || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
			errs = append(errs,
				fmt.Errorf("--authorization-always-allow-paths: %q is no path that begins with / and has no * but at "+
					"its end", p))
		}
	}
	return errors.Join(errs...)
}

var tlsVersions = map[string]uint16{
	"":             tls.VersionTLS12,
	"VersionTLS12": tls.VersionTLS12,
	"VersionTLS13": tls.VersionTLS13,
}

// watchdogTolerance is how long after the end of its lease a leader may still report that it is healthy.
const watchdogTolerance = 20 * time.Second

// State is what an agent serves on its port.
type State struct {
	// Watchdog checks the leader election; nil: there is none.
	Watchdog *leaderelection.HealthzAdaptor
	Metrics  []prometheus.Collector
	// Component is the name on /statusz and /flagz; Flags are shown there, if they are known.
	Component string
	Flags     func() map[string]string
	Gates     gates.On
	// ConfigName is the name under which Config is served at /configz; empty: it is not served.
	ConfigName string
	Config     Settings
}

// server serves health, metrics and profiles of an agent that is a process of its own.
type server struct {
	opts Serving
	auth *DelegatedAuth
	cert *tls.Certificate
	mux  *http.ServeMux
	log  *slog.Logger
}

// Serve returns the part that serves on the secure port; none when the port is 0.
func (o Serving) Serve(cl *client.Client, of State, log *slog.Logger) ([]run.Part, error) {
	if err := o.validate(); err != nil || o.Port == 0 {
		return nil, err
	}
	s, err := newServer(o, cl, of, log)
	if err != nil {
		return nil, err
	}
	return []run.Part{{Name: "health and metrics", Run: s.run}}, nil
}

// newServer returns a server that does not listen yet.
func newServer(
	agentServing Serving, cl *client.Client, of State, log *slog.Logger,
) (*server, error) {
	who, err := NewDelegatedAuth(cl, agentServing, log)
	if err != nil {
		return nil, err
	}
	if agentServing.AlwaysAllow == nil {
		agentServing.AlwaysAllow = healthPaths
	}
	s := &server{
		opts: agentServing,
		auth: who,
		mux:  http.NewServeMux(),
		log:  log,
	}
	if s.cert, err = agentServing.certificate(); err != nil {
		return nil, err
	}
	s.routes(of)
	return s, nil
}

// certificate returns the serving certificate: the flags' or a new self-signed one.
func (o Serving) certificate() (*tls.Certificate, error) {
	if o.CertFile != "" {
		return pki.ReadServing(o.CertFile, o.KeyFile)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (s *server) routes(of State) {
	checks := []discovery.Check{{Name: "ping", Run: func(*http.Request) error { return nil }}}
	if of.Watchdog != nil {
		checks = append(checks, discovery.Check{Name: of.Watchdog.Name(), Run: of.Watchdog.Check})
	}
	probes := discovery.NewProbes()
	for _, path := range []string{"healthz", "livez", "readyz"} {
		discovery.Health(s.mux, path, checks, probes)
	}
	all := prometheus.NewRegistry()
	all.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		version.Metric(), GateMetric{On: of.Gates})
	all.MustRegister(slices.Concat(ClientMetrics(), ElectionMetrics(), of.Metrics)...)
	s.mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ProcessStartTime: time.Now()}))
	s.mux.Handle("/metrics/slis", probes)
	Pages(s.mux, of.Component, of.Flags, "/healthz", "/livez", "/metrics", "/readyz")
	if of.ConfigName != "" {
		s.mux.Handle("/configz", Configz(of.ConfigName, of.Config))
	}
	if s.opts.NoProfiling {
		return
	}
	s.mux.HandleFunc("/debug/pprof/", pprof.Index)
	s.mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	s.mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	s.mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

// Pages serves /statusz and, if the flags are known, /flagz of a component that has these paths, too.
func Pages(mux *http.ServeMux, component string, flags func() map[string]string, paths ...string) {
	if flags != nil {
		discovery.Flagz(mux, component, flags)
		paths = append([]string{"/flagz"}, paths...)
	}
	discovery.Statusz(mux, component, version.Info(), time.Now(), append(paths, "/statusz"))
}

// ServeHTTP authenticates and authorizes a request, then serves it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	connlimit.Request(r.Context())
	w.Header().Set("Cache-Control", "no-cache, private")
	if !s.alwaysAllowed(r.URL.Path) && !s.auth.admit(w, r) {
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *server) alwaysAllowed(path string) bool {
	return slices.ContainsFunc(s.opts.AlwaysAllow, func(p string) bool {
		begin, more := strings.CutSuffix(p, "*")
		return path == p || more && strings.HasPrefix(path, begin)
	})
}

// run serves until ctx ends.
func (s *server) run(ctx context.Context, ready func()) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // Serve has closed it already
	shares, err := connlimit.OwnShares()
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       connlimit.Context,
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // Serve returns the error
	defer stop()
	s.log.Info("serves health and metrics", "address", listener.Addr().String())
	ready()
	err = srv.Serve(tls.NewListener(connlimit.New(listener, shares.Other), s.tls()))
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve health and metrics: %w", err)
}

func (s *server) tls() *tls.Config {
	curves, _ := options.CurveIDs(s.opts.Curves) // validated
	return &tls.Config{
		MinVersion:       tlsVersions[s.opts.MinTLS],
		CurvePreferences: curves,
		Certificates:     []tls.Certificate{*s.cert},
		NextProtos:       []string{"http/1.1"},
		ClientAuth:       tls.RequestClientCert, // the authenticator verifies it
	}
}

func (s *server) listen(ctx context.Context) (net.Listener, error) {
	at := s.opts.Bind
	if !at.IsValid() {
		at = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(at, uint16(s.opts.Port)).String()) // validated
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if !s.opts.FallbackPort {
		return nil, fmt.Errorf("port %d on %s is used by another program: stop it or choose another with "+
			"--secure-port, 0 for none", s.opts.Port, at)
	}
	s.log.Warn("the secure port is in use, a free port is used instead", "port", s.opts.Port)
	return config.Listen(ctx, "tcp", netip.AddrPortFrom(at, 0).String())
}
