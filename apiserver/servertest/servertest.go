// SPDX-License-Identifier: Apache-2.0

// Package servertest runs whole API servers for the tests of the packages below apiserver: on a port of their own,
// with a store on disk and clients that have certificates. Custom adds what tests of custom resources need,
// StartAdmitting all admission plugins, StartSecured the authorization of a real cluster.
package servertest

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/addresses"
	"keelson/apiserver/outbound"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/event"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
)

// Running is a server on a port of its own, with a client certificate of a cluster administrator.
type Running struct {
	*apiserver.Server
	Data *apiserver.Data
	// Rest is the administrator's client configuration.
	Rest *rest.Config
	// Marks returns the events since the last call.
	Marks func() []event.Event
	// User returns the client configuration of a user with a certificate.
	User func(name string, groups ...string) *rest.Config
}

// Setup is the configuration of a server as tests change it.
type Setup struct {
	apiserver.DataConfig
	apiserver.Config
	// Parts makes the parts of the server of its data.
	Parts func(*access.Reader) (apiserver.Parts, error)
}

// assemble makes the server, as cluster does.
func (c *Setup) assemble() (*apiserver.Server, error) {
	to := c.Address.Outbound()
	// where tests listen
	to.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	c.Outbound = outbound.New(to)
	c.Data = apiserver.Open(c.DataConfig)
	var err error
	if c.Config.Parts, err = c.Parts(c.Data.Reader); err != nil {
		return nil, err
	}
	return apiserver.New(c.Config)
}

// Admin is the administrator in the process of the server.
var Admin = &auth.User{Name: "admin", Groups: []string{auth.Masters, auth.Authenticated}, How: auth.InProcess}

// Start runs a server over TLS until the test ends; edit may change its configuration.
func Start(t testing.TB, edit func(*Setup)) *Running {
	t.Helper()
	st, ca := NewSite(t)
	r, stop := StartOn(t, st, ca, edit)
	t.Cleanup(stop)
	return r
}

// NewSite returns what servers are started on: a store, which is closed when the test ends, after the cleanups that are
// registered later, and a certificate authority.
func NewSite(t testing.TB) (store.Store, *pki.Authority) {
	t.Helper()
	st, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	return st, ca
}

// StartOn runs a server on a store with certificates of ca until stop is called, which the caller must do.
func StartOn(t testing.TB, st store.Store, ca *pki.Authority, edit func(*Setup)) (r *Running, stop func()) {
	t.Helper()
	own, err := ca.Server("server", pki.Subject{Name: "kube-apiserver", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &Running{}
	recorder, marks := record()
	r.Marks = marks
	config := Setup{
		DataConfig: apiserver.DataConfig{Store: st},
		Config: apiserver.Config{
			Serving: apiserver.Serving{
				Listener: listener,
				TLS: &tls.Config{
					Certificates: []tls.Certificate{cert},
					ClientCAs:    ca.Pool(),
					ClientAuth:   tls.RequestClientCert,
					MinVersion:   tls.VersionTLS12,
				},
			},
			Address: addresses.Own{Listener: listener.Addr()},
			Pages: apiserver.Pages{
				Version: apiversion.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2+keelson"},
			},
			Reports: apiserver.Reports{Marks: recorder},
		},
		Parts: func(*access.Reader) (apiserver.Parts, error) {
			return apiserver.Parts{
				Authenticators: []auth.Authenticator{authn.NewCertificates(ca.Pool()), authn.Anonymous{}},
				Authorizer:     authz.Masters{},
			}, nil
		},
	}
	if edit != nil {
		edit(&config)
	}
	if r.Server, err = config.assemble(); err != nil {
		t.Fatal(err)
	}
	r.Data = config.Data
	r.User = func(name string, groups ...string) *rest.Config {
		t.Helper()
		pair, err := ca.Client(strings.NewReplacer(":", "-", "/", "-").Replace(name), pki.Subject{
			Name:   name,
			Groups: groups,
		})
		if err != nil {
			t.Fatal(err)
		}
		return &rest.Config{
			Host:            "https://" + listener.Addr().String(),
			QPS:             -1,
			UserAgent:       "tester/1",
			TLSClientConfig: rest.TLSClientConfig{CAData: ca.CertPEM(), CertData: pair.CertPEM, KeyData: pair.KeyPEM},
		}
	}
	r.Rest = r.User("admin", auth.Masters)
	return r, r.run(t)
}

// run runs the server until stop is called. It returns when the server is ready.
func (r *Running) run(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, func() { close(ready) }) }() // ends with ctx, which stop waits for
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server ended with %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("server did not start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("server was not ready within a minute")
	}
	return stop
}

// Clients returns clients of the administrator.
func (r *Running) Clients(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// record keeps every event.
func record() (*event.Recorder, func() []event.Event) {
	in := make(chan event.Event, 10000)
	return event.NewRecorder(func(m event.Event) {
			select {
			case in <- m:
			default:
			}
		}), func() []event.Event {
			var out []event.Event
			for {
				select {
				case m := <-in:
					out = append(out, m)
				default:
					return out
				}
			}
		}
}
