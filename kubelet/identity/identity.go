// SPDX-License-Identifier: Apache-2.0

// Package identity gets and rotates a kubelet's two certificates by the Certificates API: the client certificate (the
// first with a bootstrap token), and the serving certificate. Both are renewed well before they expire, without a
// restart. cluster runs it before the kubelet. It never approves or signs a certificate.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"

	"keelson/client/servers"
	"keelson/lib/linux"
	"keelson/lib/signal"
)

// Config has the node and where its certificates are requested and stored.
type Config struct {
	// Dir (0700) has kubelet-client-current.pem and kubelet-server-current.pem, each with a certificate and its key.
	Dir      string
	NodeName string
	// Addresses are the addresses of the kubelet's server.
	Addresses []net.IP
	// Server has the address and CA of the API server. Its credentials are not used.
	Server *rest.Config
	// Servers are the API servers; nil: Server is the only one.
	Servers *servers.Servers
	// Bootstrap has the credentials of the first request, usually a bootstrap token. nil: the certificate in Dir must
	// be valid.
	Bootstrap *rest.Config
	// First is called with the first client certificate, before it is used; an error ends Run. May be nil.
	First func() error
}

// Identity has a kubelet's certificates.
type Identity struct {
	cfg Config
	// client and serving are replaced when the clock was set; only Run uses them.
	client  *kept
	serving *kept
	shown   shown // the client certificate
	served  shown // the serving certificate
	metrics *Metrics
	first   signal.Signal
	conns   *servers.Transport
	rest    *rest.Config
	// preferred are the certificates of the CA, see Prefer.
	preferred atomic.Pointer[[]*x509.Certificate]
	outdated  signal.Signal // a certificate is to be requested again
	// sleepUntil is the wall clock.
	sleepUntil func(context.Context, time.Time) error
}

// shown is a current certificate; nil: there is none yet.
type shown = atomic.Pointer[tls.Certificate]

// kept is a certificate with its file and its certificate manager. It is the manager's Store, so it gets each new
// certificate.
type kept struct {
	certificate.Store
	manager certificate.Manager
	current *shown
	renewed func()
	// outdated reports whether a certificate is to be requested again before it is due.
	outdated func(*x509.Certificate) bool

	mu    sync.Mutex // held while the file is written
	ended bool
}

var errEnded = errors.New("the kubelet has ended")

// Current returns the stored certificate; one that is outdated is missing for the manager, which requests another.
func (k *kept) Current() (*tls.Certificate, error) {
	c, err := k.Store.Current()
	if err != nil || k.outdated(c.Leaf) {
		if err == nil {
			none := certificate.NoCertKeyError("the certificate authority has another key")
			err = &none
		}
		return nil, err
	}
	return c, nil
}

// Update stores a new certificate.
func (k *kept) Update(cert, key []byte) (*tls.Certificate, error) {
	c, err := k.write(cert, key)
	if err != nil {
		return nil, err
	}
	k.current.Store(c)
	k.renewed()
	return c, nil
}

func (k *kept) write(cert, key []byte) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return nil, errEnded
	}
	return k.Store.Update(cert, key) // the manager's own store, back to the manager
}

// end stops the rotation. One cannot wait for the manager to end, so a certificate that it still gets is dropped.
func (k *kept) end() {
	k.manager.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
}

// ClientFile returns the file below dir with the current client certificate and key, for kubeconfigs.
func ClientFile(dir string) string { return dir + "/kubelet-client-current.pem" }

// New reads the certificates in Dir.
func New(cfg Config) (*Identity, error) {
	identity := &Identity{
		cfg:        cfg,
		first:      signal.New(),
		outdated:   signal.New(),
		sleepUntil: linux.SleepUntil,
	}
	identity.metrics = newMetrics(identity.shown.Load, identity.served.Load)
	if err := identity.connection(); err != nil {
		return nil, err
	}
	if err := identity.open(); err != nil {
		return nil, err
	}
	if identity.shown.Load() == nil && cfg.Bootstrap == nil {
		return nil, fmt.Errorf("%s holds no certificate that is still good: --bootstrap-kubeconfig must name a file "+
			"with a bootstrap token", ClientFile(cfg.Dir))
	}
	return identity, nil
}

// open reads the certificates and makes their managers, which know then what time it is.
func (i *Identity) open() error {
	subject := pkix.Name{CommonName: "system:node:" + i.cfg.NodeName, Organization: []string{"system:nodes"}}
	client, err := i.keep("kubelet-client", &i.shown, i.clientRenewed, certificate.Config{
		SignerName:              certv1.KubeAPIServerClientKubeletSignerName,
		CertificateRenewFailure: i.metrics.clientErrors,
		Template:                &x509.CertificateRequest{Subject: subject},
		GetUsages:               certificate.DefaultKubeletClientGetUsages,
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil && !i.authenticates() && i.cfg.Bootstrap != nil {
				return kubernetes.NewForConfig(i.cfg.Bootstrap)
			}
			return kubernetes.NewForConfig(i.rest)
		},
	})
	if err != nil {
		return err
	}
	serving, err := i.keep("kubelet-server", &i.served, func() {}, certificate.Config{
		SignerName:              certv1.KubeletServingSignerName,
		CertificateRenewFailure: i.metrics.serverErrors,
		Template: &x509.CertificateRequest{
			Subject:     subject,
			DNSNames:    []string{i.cfg.NodeName},
			IPAddresses: i.cfg.Addresses,
		},
		GetUsages: certificate.DefaultKubeletServingGetUsages,
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(i.rest)
		},
	})
	if err != nil {
		return err
	}
	i.client = client
	i.serving = serving
	return nil
}

// authenticates reports whether there is a client certificate that has not expired.
func (i *Identity) authenticates() bool {
	c := i.shown.Load()
	return c != nil && time.Now().Before(c.Leaf.NotAfter)
}

// keep reads a certificate into current and makes its manager. renewed is called after each renewal.
func (i *Identity) keep(name string, current *shown, renewed func(), cfg certificate.Config) (*kept, error) {
	store, err := certificate.NewFileStore(name, i.cfg.Dir, i.cfg.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("certificates in %s: %w", i.cfg.Dir, err)
	}
	k := &kept{
		Store:    store,
		current:  current,
		renewed:  renewed,
		outdated: i.isOutdated,
	}
	cfg.CertificateStore = k
	if k.manager, err = certificate.NewManager(&cfg); err != nil {
		return nil, fmt.Errorf("certificate %s in %s: %w", name, i.cfg.Dir, err)
	}
	if c := k.manager.Current(); c != nil {
		k.current.Store(c)
	}
	return k, nil
}

// connection returns a transport with the current client certificate.
func (i *Identity) connection() error {
	config := rest.AnonymousClientConfig(i.cfg.Server)
	conf, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("reach %s: %w", config.Host, err)
	}
	if conf == nil {
		return fmt.Errorf("reach %s: the kubelet's certificates need an https address", config.Host)
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if cert := i.shown.Load(); cert != nil {
			return cert, nil
		}
		return &tls.Certificate{}, nil
	}
	all := i.cfg.Servers
	if all == nil {
		all = servers.New(servers.Config{Given: config.Host})
	}
	i.conns = all.Transport(conf)
	config.TLSClientConfig = rest.TLSClientConfig{}
	config.Transport = i.conns
	i.rest = config
	return nil
}

// Metrics returns the metrics of the certificates.
func (i *Identity) Metrics() *Metrics { return i.metrics }

// REST returns a client configuration with the current client certificate.
func (i *Identity) REST() *rest.Config { return i.rest }

var errNotServing = errors.New("no serving certificate yet: its request waits for kubectl certificate approve")

// ServerTLS returns a TLS configuration with the current serving certificate. Handshakes fail until the first one is
// issued.
func (i *Identity) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := i.served.Load(); c != nil {
				return c, nil
			}
			return nil, errNotServing
		},
	}
}

func (i *Identity) clientRenewed() {
	i.first.Notify()
	i.conns.CloseAll() // what connects from now on shows the new one
}

// Run is a run.Func: it is ready with the first client certificate. The serving certificate may come later.
func (i *Identity) Run(ctx context.Context, ready func()) error {
	i.client.manager.Start()
	defer func() { i.client.end() }()
	if i.shown.Load() == nil {
		select {
		case <-i.first.C():
		case <-ctx.Done():
			return nil
		}
	}
	if i.cfg.First != nil {
		if err := i.cfg.First(); err != nil {
			return err
		}
	}
	i.serving.manager.Start()
	defer func() { i.serving.end() }()
	ready()
	return i.followClock(ctx)
}

// retry is how often an overdue renewal is begun again.
const retry = 10 * time.Minute

// followClock begins again when the wall clock was set, or shows that a renewal is overdue: the managers sleep by
// timers that stop while the machine is suspended, and do not notice a clock that jumps.
func (i *Identity) followClock(ctx context.Context) error {
	for {
		now := time.Now()
		next := now.Add(365 * 24 * time.Hour)
		for _, current := range []*shown{&i.shown, &i.served} {
			if c := current.Load(); c != nil {
				if late := overdue(c.Leaf); late.Before(next) {
					next = late
				}
			}
		}
		if next.Before(now) {
			next = now.Add(retry)
		}
		err := i.sleep(ctx, next)
		if err != nil || ctx.Err() != nil {
			return err
		}
		i.client.end()
		i.serving.end()
		if err := i.open(); err != nil {
			return err
		}
		i.client.manager.Start()
		i.serving.manager.Start()
	}
}

// sleep returns at a time, or when a certificate is to be requested again.
func (i *Identity) sleep(ctx context.Context, until time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan error, 1)
	go func() { slept <- i.sleepUntil(ctx, until) }() // ends with ctx
	select {
	case err := <-slept:
		return err
	case <-i.outdated.C():
		cancel()
		return <-slept
	}
}

// Prefer requests a certificate again if a key of the CA has signed it that is not the key of ca[0]. Certificates of
// other CAs stay. It does not wait.
func (i *Identity) Prefer(ca []*x509.Certificate) {
	i.preferred.Store(&ca)
	outdated := slices.ContainsFunc([]*shown{&i.shown, &i.served}, func(current *shown) bool {
		c := current.Load()
		return c != nil && i.isOutdated(c.Leaf)
	})
	if outdated { // once: a second notification would interrupt the requests that the first has begun
		i.outdated.Notify()
	}
}

// isOutdated reports whether another key of the CA than the preferred one has signed a certificate.
func (i *Identity) isOutdated(leaf *x509.Certificate) bool {
	certs := i.preferred.Load()
	if certs == nil || leaf == nil || len(*certs) == 0 || leaf.CheckSignatureFrom((*certs)[0]) == nil {
		return false
	}
	return slices.ContainsFunc((*certs)[1:], func(c *x509.Certificate) bool {
		return leaf.CheckSignatureFrom(c) == nil
	})
}

// overdue is when a manager should have renewed a certificate: it does at 70 to 90 % of its validity.
func overdue(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 100 * 92)
}
