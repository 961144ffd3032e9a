// SPDX-License-Identifier: Apache-2.0

package credentials

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

// Followed is a kubeconfig that is in use.
type Followed struct {
	REST *rest.Config
	// Ca are the CAs of the API server.
	CA *Bundle
	// Run takes over another client certificate, and other CAs, when the file changes; nil: they are the client
	// library's.
	Run run.Func
}

// Bundle is a CA bundle that changes.
type Bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed chan struct{} // closed when pem changes
}

// NewBundle returns a bundle with the certificates of pem.
func NewBundle(pem []byte) *Bundle { return &Bundle{pem: pem, changed: make(chan struct{})} }

// Get is a framework.Bundle.
func (b *Bundle) Get() (pem []byte, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pem, b.changed
}

// Set replaces the certificates and wakes up who waits for a change.
func (b *Bundle) Set(pem []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pem = pem
	close(b.changed)
	b.changed = make(chan struct{})
}

// FollowKubeconfig returns a client configuration that shows the client certificate in the kubeconfig at path, and
// trusts the CAs there. The API server writes the file again when one of them changes. Other credentials, and files
// that the kubeconfig names, are the client library's.
func FollowKubeconfig(path string, all *servers.Servers, log *slog.Logger) (Followed, error) {
	var none Followed
	of, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return none, fmt.Errorf("read kubeconfig: %w", err)
	}
	pem, err := RootCA(of)
	if err != nil {
		return none, err
	}
	ca := NewBundle(pem)
	if len(of.CertData) == 0 {
		to, err := all.REST(of)
		return Followed{REST: to, CA: ca}, err
	}
	f := &kubeconfigFile{
		path: path,
		all:  all,
		ca:   ca,
		log:  log,
		last: of,
	}
	if err := f.show(of); err != nil {
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
		return f.current.Load(), nil
	}
	to.TLSClientConfig = rest.TLSClientConfig{}
	f.conns = all.Transport(conf)
	to.Transport = f.conns
	return Followed{
		REST: to,
		CA:   ca,
		Run: func(ctx context.Context, ready func()) error {
			ready()
			return linux.WatchFile(ctx, path, f.changed)
		},
	}, nil
}

// kubeconfigFile is a kubeconfig whose client certificate and CAs are in use.
type kubeconfigFile struct {
	path  string
	all   *servers.Servers
	ca    *Bundle
	log   *slog.Logger
	conns *servers.Transport

	current atomic.Pointer[tls.Certificate]
	last    *rest.Config // the one that was read last; used by changed alone
}

// show uses the client certificate of the file.
func (f *kubeconfigFile) show(c *rest.Config) error {
	pair, err := tls.X509KeyPair(c.CertData, c.KeyData)
	if err != nil {
		return fmt.Errorf("client certificate of kubeconfig %s: %w", f.path, err)
	}
	f.current.Store(&pair)
	return nil
}

// changed reads the file again, and uses what is new in it.
func (f *kubeconfigFile) changed() {
	next, err := clientcmd.BuildConfigFromFlags("", f.path)
	switch {
	case err != nil:
		f.log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
		return
	case string(next.CertData) == string(f.last.CertData) && string(next.CAData) == string(f.last.CAData):
		return
	}
	roots := x509.NewCertPool()
	if string(next.CAData) != string(f.last.CAData) && roots.AppendCertsFromPEM(next.CAData) {
		f.log.Info("the API server's certificate authorities changed", "kubeconfig", f.path)
		f.all.SetRoots(roots)
		f.ca.Set(next.CAData)
	}
	if err := f.show(next); err != nil {
		f.log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
		return
	}
	f.last = next
	f.log.Info("client certificate renewed", "kubeconfig", f.path)
	f.conns.CloseAll() // the connections made from now on show the new one
}
