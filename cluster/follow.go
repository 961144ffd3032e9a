// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/client/servers"
	"keelson/lib/linux"
	"keelson/lib/run"
)

// followed is a kubeconfig that is in use.
type followed struct {
	rest *rest.Config
	// ca are the CAs of the API server.
	ca *caBundle
	// run takes over another client certificate, and other CAs, when the file changes; nil: they are the client
	// library's.
	run run.Func
}

// caBundle is a CA bundle that changes.
type caBundle struct {
	mu      sync.Mutex
	pem     []byte
	changed chan struct{} // closed when pem changes
}

func newCABundle(pem []byte) *caBundle { return &caBundle{pem: pem, changed: make(chan struct{})} }

// Get is a framework.Bundle.
func (b *caBundle) Get() (pem []byte, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pem, b.changed
}

func (b *caBundle) set(pem []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pem = pem
	close(b.changed)
	b.changed = make(chan struct{})
}

// followKubeconfig returns a client configuration that shows the client certificate in the kubeconfig at path, and
// trusts the CAs there. The API server writes the file again when one of them changes. Other credentials, and files
// that the kubeconfig names, are the client library's.
func followKubeconfig(path string, all *servers.Servers, log *slog.Logger) (followed, error) {
	var none followed
	of, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return none, fmt.Errorf("read kubeconfig: %w", err)
	}
	pem, err := rootCA(of)
	if err != nil {
		return none, err
	}
	ca := newCABundle(pem)
	if len(of.CertData) == 0 {
		to, err := all.REST(of)
		return followed{rest: to, ca: ca}, err
	}
	var current atomic.Pointer[tls.Certificate]
	read := func(c *rest.Config) error {
		pair, err := tls.X509KeyPair(c.CertData, c.KeyData)
		if err != nil {
			return fmt.Errorf("client certificate of kubeconfig %s: %w", path, err)
		}
		current.Store(&pair)
		return nil
	}
	if err := read(of); err != nil {
		return none, err
	}
	to := rest.CopyConfig(of)
	conf, err := rest.TLSConfigFor(rest.AnonymousClientConfig(of))
	if err != nil {
		return none, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if conf == nil { // it names no CA: those of the machine verify the server
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return current.Load(), nil
	}
	to.TLSClientConfig = rest.TLSClientConfig{}
	conns := all.Transport(conf)
	to.Transport = conns
	last := of
	changed := func() {
		next, err := clientcmd.BuildConfigFromFlags("", path)
		switch {
		case err != nil:
			log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
			return
		case string(next.CertData) == string(last.CertData) && string(next.CAData) == string(last.CAData):
			return
		}
		roots := x509.NewCertPool()
		if string(next.CAData) != string(last.CAData) && roots.AppendCertsFromPEM(next.CAData) {
			log.Info("the API server's certificate authorities changed", "kubeconfig", path)
			all.SetRoots(roots)
			ca.set(next.CAData)
		}
		if err := read(next); err != nil {
			log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
			return
		}
		last = next
		log.Info("client certificate renewed", "kubeconfig", path)
		conns.CloseAll() // the connections made from now on show the new one
	}
	return followed{
		rest: to,
		ca:   ca,
		run: func(ctx context.Context, ready func()) error {
			ready()
			return linux.WatchFile(ctx, path, changed)
		},
	}, nil
}
