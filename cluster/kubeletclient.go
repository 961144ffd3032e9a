// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/auth/authz"
	"keelson/client/servers"
	"keelson/cluster/datadir"
	"keelson/lib/run"
	"keelson/lib/signal"
	"keelson/pki"
)

// The API server as a client of kubelets has a CA of its own, which the API server does not trust, and a user in no
// group. Someone who makes the server call itself with this certificate gets no rights (docs/decisions/0062).
const (
	kubeletClientAuthority = "kubelet-client-ca"
	kubeletClientPair      = "apiserver-kubelet-client"
	kubeletClientUser      = authz.KubeletClient
)

// openKubeletClient creates the CA and the certificate. It replaces a certificate of an earlier version, which the
// cluster's CA had signed for system:masters.
func (k *keys) openKubeletClient(ids *identities) error {
	ca, err := ids.authority(kubeletClientAuthority)
	if err != nil {
		return err
	}
	k.kubeletClientCA = ca
	k.kubeletClientCert, err = ca.ClientLeaf(kubeletClientPair, pki.Subject{Name: kubeletClientUser})
	return err
}

// kubeletClient is the TLS configuration for calls to kubelets.
func (k *keys) kubeletClient() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: k.kubeletClientCert.Show,
		RootCAs:              k.ca.Pool(),
	}
}

// kubeletClientInfo is the ConfigMap in which nodes read the CA of the API server's client certificate.
func (k *keys) kubeletClientInfo() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: kubeletClientAuthority}
	about := meta
	about.Annotations = retiredAnnotation(k.kubeletClientCA)
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: about, Data: map[string]string{
			clientCAKey:                    string(k.kubeletClientCA.CertPEM()),
			corev1.ServiceAccountRootCAKey: string(k.ca.CertPEM()),
			crossKey:                       string(k.ca.CrossPEM()),
			networkKey:                     k.network,
		}},
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"configmaps"},
					ResourceNames: []string{kubeletClientAuthority},
					Verbs:         []string{"get", "watch"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: kubeletClientAuthority},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
		},
	}
}

// Keys of that ConfigMap.
const (
	clientCAKey = "client-ca-file"
	// crossKey has the certificate of a new key of the cluster's CA from the old key.
	crossKey = "cross.crt"
	// networkKey has the identity of the pod network.
	networkKey = "network"
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

// joined is what a joined node takes over from the ConfigMap with the CA of the API server's client certificate.
type joined struct {
	dir        datadir.Dir
	kubeconfig string
	// ca are the CAs of the API server, also those of servers.
	ca      *caBundle
	servers *servers.Servers
	rest    *rest.Config
	// prefer requests certificates again that another key than that of the first CA has signed.
	prefer  func([]*x509.Certificate)
	clients *kubeletClientCAs
	log     *slog.Logger
}

// learn returns a function that reads the CA of the API server's client certificate from the API server, and stores it
// for the next start. A server that has no such ConfigMap is not Keelson or is older: until it has one, the CA of the
// API server itself applies, as in clusters of kubeadm.
func (j *joined) learn() run.Func {
	file := j.dir.Sub("pki/" + kubeletClientAuthority + ".crt")
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
		ask := func(ctx context.Context) (bool, error) {
			cm, err := api.Get(ctx, kubeletClientAuthority, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			version = cm.ResourceVersion
			return true, errors.Join(j.clients.keep(file, []byte(cm.Data[clientCAKey])), j.follow(cm.Data))
		}
		otherwise, _ := j.ca.Get()
		j.clients.follow(ctx, known, ask, func(ctx context.Context) bool { return changes(ctx, api, version) },
			otherwise, j.log)
		return nil
	}
}

// learnNetwork stores the identity of the pod network, which follows from the CA only until that gets another key. An
// error is none: older servers do not say it, and a node that has run before has stored it.
func (j *joined) learnNetwork(ctx context.Context, cl kubernetes.Interface) {
	if datadir.Exists(j.dir.Sub(networkFile)) {
		return
	}
	cm, err := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeletClientAuthority, metav1.GetOptions{})
	if err != nil || cm.Data[networkKey] == "" {
		return
	}
	if err := pki.WriteFile(j.dir.Sub(networkFile), []byte(cm.Data[networkKey]+"\n"), 0o600); err != nil {
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
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", kubeletClientAuthority).String(),
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
func (j *joined) follow(data map[string]string) error {
	known, _ := j.ca.Get()
	next := []byte(data[corev1.ServiceAccountRootCAKey])
	if len(next) == 0 || !pki.Follows(known, next, []byte(data[crossKey])) {
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
		j.ca.set(next)
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
		return fmt.Errorf("config map %s/%s: %w", metav1.NamespaceSystem, kubeletClientAuthority, err)
	}
	return datadir.WriteIfChanged(file, pem)
}
