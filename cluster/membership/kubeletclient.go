// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"keelson/client/servers"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/lib/run"
	"keelson/lib/signal"
	"keelson/pki"
)

// kubeletClientCAs are the client CAs of a kubelet. They may become known, or change, after the kubelet has started.
type kubeletClientCAs struct {
	pool      atomic.Pointer[x509.CertPool]
	connected signal.Signal // a client has connected since the last refresh; zero: no refresh
}

func newKubeletClientCAs(p *x509.CertPool) *kubeletClientCAs {
	a := &kubeletClientCAs{connected: signal.New()}
	a.pool.Store(p)
	return a
}

// Pool returns the CAs. It is never nil: with nil, Go would trust the system's CAs.
func (a *kubeletClientCAs) Pool() *x509.CertPool {
	a.connected.Notify()
	return a.pool.Load()
}

func (a *kubeletClientCAs) set(pem []byte) error {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return errors.New("it holds no certificate")
	}
	a.pool.Store(p)
	return nil
}

// How long after the last response the API server is asked again, when a client connects. A response without a CA may
// come from a server that has yet to be upgraded.
const (
	askAgainUnknown = 10 * time.Second
	askAgainKnown   = 10 * time.Minute
	afterChange     = time.Second
)

// Joined is what a joined node takes over from the ConfigMap with the CA of the API server's client certificate.
type Joined struct {
	dir        datadir.Dir
	kubeconfig string
	version    string // of this program
	// ca are the CAs of the API server, also those of servers.
	ca      *credentials.Bundle
	servers *servers.Servers
	rest    *rest.Config
	// prefer requests certificates again that another key than that of the first CA has signed.
	prefer  func([]*x509.Certificate)
	clients *kubeletClientCAs
	log     *slog.Logger
}

// Learn returns a function that reads the CA of the API server's client certificate from the API server, and stores it
// for the next start. A server that has no such ConfigMap is not Keelson or is older: until it has one, the CA of the
// API server itself applies, as in clusters of kubeadm.
func (j *Joined) Learn() run.Func {
	file := j.dir.Sub("pki/" + credentials.KubeletClientAuthority + ".crt")
	return func(ctx context.Context, ready func()) error {
		known, err := j.clients.read(file)
		if err != nil {
			return fmt.Errorf("authorities of the API server's client certificate: %w; delete %s to have them "+
				"fetched again", err, file)
		}
		cl, err := kubernetes.NewForConfig(j.rest)
		if err != nil {
			return fmt.Errorf("reach the API server: %w", err)
		}
		ready()
		api := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem)
		version := ""
		compared := false
		ask := func(ctx context.Context) (bool, error) {
			compared = compared || warnOfSkew(ctx, cl.Discovery(), j.version, j.log)
			cm, err := api.Get(ctx, credentials.KubeletClientAuthority, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			version = cm.ResourceVersion
			return true, errors.Join(j.clients.keep(file, []byte(cm.Data[credentials.ClientCAKey])), j.follow(cm.Data))
		}
		otherwise, _ := j.ca.Get()
		j.clients.follow(ctx, known, ask, func(ctx context.Context) bool { return changes(ctx, api, version) },
			otherwise, j.log)
		return nil
	}
}

// LearnNetwork stores the identity of the pod network, which follows from the CA only until that gets another key. An
// error is none: older servers do not say it, and a node that has run before has stored it.
func (j *Joined) LearnNetwork(ctx context.Context, cl kubernetes.Interface) {
	if datadir.Exists(j.dir.Sub(credentials.NetworkFile)) {
		return
	}
	cm, err := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, credentials.KubeletClientAuthority,
		metav1.GetOptions{})
	if err != nil || cm.Data[credentials.NetworkKey] == "" {
		return
	}
	identity := []byte(cm.Data[credentials.NetworkKey] + "\n")
	if err := pki.WriteFile(j.dir.Sub(credentials.NetworkFile), identity, 0o600); err != nil {
		j.log.Warn("store the identity of the pod network", "err", err)
	}
}

// watchLimit is how long the ConfigMap is watched before it is read again, at most.
const watchLimit = 10 * time.Minute

// changes returns when the ConfigMap has changed since version, or after some minutes. It is false if the node may not
// watch it: the server is older.
func changes(ctx context.Context, api corev1client.ConfigMapInterface, version string) bool {
	limit := int64((watchLimit/2 + rand.N(watchLimit/2)) / time.Second) // spreads load
	w, err := api.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", credentials.KubeletClientAuthority).String(),
		ResourceVersion: version,
		TimeoutSeconds:  &limit,
	})
	if err != nil {
		return false
	}
	defer w.Stop()
	_, open := <-w.ResultChan()
	return open || ctx.Err() == nil
}

// follow takes over what the ConfigMap says: CAs of the API server that follow those that are known, for the running
// connections and the next start. Certificates that the previous key has signed are requested again.
func (j *Joined) follow(data map[string]string) error {
	known, _ := j.ca.Get()
	next := []byte(data[corev1.ServiceAccountRootCAKey])
	if len(next) == 0 || !pki.Follows(known, next, []byte(data[credentials.CrossKey])) {
		return nil // an older server's, or not this cluster's
	}
	if !bytes.Equal(known, next) {
		roots, err := pki.Authorities(next)
		if err != nil {
			return err
		}
		if err := pki.ReplaceAuthority(j.kubeconfig, next); err != nil {
			return err
		}
		j.log.Info("the API server's certificate authorities changed", "kubeconfig", j.kubeconfig)
		j.servers.SetRoots(roots)
		j.ca.Set(next)
	}
	certs, err := pki.Certificates(next)
	if err != nil {
		return err
	}
	j.prefer(certs)
	return nil
}

// follow calls ask until it succeeds, and again when changes returns true, until ctx ends. While changes is false it
// asks when clients connect. ask reports whether the server names a CA, which it has stored then.
func (a *kubeletClientCAs) follow(
	ctx context.Context, known bool, ask func(context.Context) (bool, error), changes func(context.Context) bool,
	otherwise []byte, log *slog.Logger,
) {
	for wait := time.Second; ctx.Err() == nil; {
		found, err := ask(ctx)
		if err == nil && !found && !known {
			err = a.set(otherwise)
		}
		pause := wait
		called := (<-chan struct{})(nil)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				log.Warn("read the CA of the API server's client certificate, will retry", "err", err)
			}
			wait = min(2*wait, time.Minute)
		case found:
			known = true
			wait = time.Second
			if changes(ctx) {
				pause = afterChange
				break
			}
			pause = askAgainKnown
			called = a.connected.C()
		default:
			wait = time.Second
			pause = askAgainUnknown
			called = a.connected.C()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if called != nil {
			select {
			case <-ctx.Done():
			case <-called:
			}
		}
	}
}

// read loads the CA stored by an earlier run; known is false if there is none.
func (a *kubeletClientCAs) read(file string) (known bool, err error) {
	pem, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, a.set(pem)
}

func (a *kubeletClientCAs) keep(file string, pem []byte) error {
	if err := a.set(pem); err != nil {
		return fmt.Errorf("config map %s/%s: %w", metav1.NamespaceSystem, credentials.KubeletClientAuthority, err)
	}
	return datadir.WriteIfChanged(file, pem)
}
