// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"keelson/lib/waittest"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
)

// running is a server on a port of its own, with a client certificate of a cluster administrator.
type running struct {
	*apiserver.Server
	data  *apiserver.Data
	rest  *rest.Config
	marks func() []event.Event
	// as is a client configuration for a user with a certificate.
	as func(name string, groups ...string) *rest.Config
}

// setup is the configuration of a server as tests change it.
type setup struct {
	apiserver.DataConfig
	apiserver.Config
	// Parts makes the parts of the server of its data.
	Parts func(*access.Reader) (apiserver.Parts, error)
}

// assemble makes the server, as cluster does.
func (c *setup) assemble() (*apiserver.Server, error) {
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

var admin = &auth.User{Name: "admin", Groups: []string{auth.Masters, auth.Authenticated}, How: auth.InProcess}

// start runs a server over TLS until the test ends; edit may change its configuration.
func start(t testing.TB, edit func(*setup)) *running {
	t.Helper()
	st, ca := newSite(t)
	r, stop := startOn(t, st, ca, edit)
	t.Cleanup(stop)
	return r
}

// newSite is what servers are started on: a store, which is closed when the test ends, after the cleanups that are
// registered later, and an authority.
func newSite(t testing.TB) (store.Store, *pki.Authority) {
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

// startOn runs a server on a store with certificates of ca until stop is called, which the caller must see to.
func startOn(t testing.TB, st store.Store, ca *pki.Authority, edit func(*setup)) (r *running, stop func()) {
	t.Helper()
	own, err := ca.Server("server", pki.Subject{Name: "kube-apiserver", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &running{}
	recorder, marks := record()
	r.marks = marks
	config := setup{
		DataConfig: apiserver.DataConfig{Store: st},
		Config: apiserver.Config{
			Listener: listener,
			Marks:    recorder,
			TLS: &tls.Config{
				Certificates: []tls.Certificate{cert},
				ClientCAs:    ca.Pool(),
				ClientAuth:   tls.RequestClientCert,
				MinVersion:   tls.VersionTLS12,
			},
			Address: addresses.Own{Listener: listener.Addr()},
			Version: apiversion.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2+keelson"},
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
	r.data = config.Data
	r.as = func(name string, groups ...string) *rest.Config {
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
	r.rest = r.as("admin", auth.Masters)
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
	return r, stop
}

func (r *running) clients(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(r.rest)
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

// noLeaks fails the test when goroutines of the server outlive it. Call it first: its check runs last.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		waittest.Right(t, "goroutines end", func() string {
			after := goroutines()
			if len(after) <= len(before) {
				return ""
			}
			return fmt.Sprintf("%d are left, %d were before:\n%s", len(after), len(before), strings.Join(after, "\n\n"))
		})
	})
}

// goroutines are the stacks that run code of ours.
func goroutines() []string {
	buf := make([]byte, 4<<20)
	var out []string
	for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(s, "keelson/") && !strings.Contains(s, "testing.tRunner") {
			out = append(out, s)
		}
	}
	return out
}

var podGVK = corev1.SchemeGroupVersion.WithKind("Pod")

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "main",
			Image: "keelson.local/hello",
			Ports: []corev1.ContainerPort{{ContainerPort: 80}},
			Env:   []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
		}}},
	}
}
