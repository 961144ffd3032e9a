// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/auth/authz"
	"keelson/lib/run"
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
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{
			clientCAKey:                    string(k.kubeletClientCA.CertPEM()),
			corev1.ServiceAccountRootCAKey: string(k.ca.CertPEM()),
		}},
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"configmaps"},
					ResourceNames: []string{kubeletClientAuthority},
					Verbs:         []string{"get"},
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

const clientCAKey = "client-ca-file"

// followAuthority puts a renewed CA of the API server into the kubeconfig of a joined node, whose next start uses it.
// Another key than that of known is not taken.
func followAuthority(kubeconfig string, known []byte, next string, log *slog.Logger) error {
	if next == "" || !pki.Follows(known, []byte(next), nil) {
		return nil
	}
	to, err := loadIfThere(kubeconfig)
	if err != nil || to == nil || string(to.CAData) == next {
		return err
	}
	log.Info("the certificate authority was renewed, the next start of the kubelet uses it", "kubeconfig", kubeconfig)
	return pki.ReplaceAuthority(kubeconfig, []byte(next))
}

// kubeletClientCAs are the client CAs of a kubelet. They may become known, or change, after the kubelet has started.
type kubeletClientCAs struct {
	pool      atomic.Pointer[x509.CertPool]
	connected chan struct{} // holds an item when a client has connected since the last refresh; nil: no refresh
}

func newKubeletClientCAs(p *x509.CertPool) *kubeletClientCAs {
	a := &kubeletClientCAs{connected: make(chan struct{}, 1)}
	a.pool.Store(p)
	return a
}

// Pool returns the CAs. It is never nil: with nil, Go would trust the system's CAs.
func (a *kubeletClientCAs) Pool() *x509.CertPool {
	select {
	case a.connected <- struct{}{}:
	default:
	}
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
)

// learn returns a function that reads the CA of the API server's client certificate from the API server, and stores it
// in file for the next start. A server that has no such ConfigMap is not Keelson or is older: until it has one, the CA
// otherwise, that of the API server itself, applies, as in clusters of kubeadm. A renewed one goes into kubeconfig.
func (a *kubeletClientCAs) learn(
	to *rest.Config, file, kubeconfig string, otherwise []byte, log *slog.Logger,
) run.Func {
	return func(ctx context.Context, ready func()) error {
		known, err := a.read(file)
		if err != nil {
			return fmt.Errorf("authorities of the API server's client certificate: %w; delete %s to have them "+
				"fetched again", err, file)
		}
		cl, err := kubernetes.NewForConfig(to)
		if err != nil {
			return fmt.Errorf("reach the API server: %w", err)
		}
		ready()
		a.follow(ctx, known, func(ctx context.Context) (bool, error) {
			cm, err := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeletClientAuthority,
				metav1.GetOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			return true, errors.Join(a.keep(file, []byte(cm.Data[clientCAKey])),
				followAuthority(kubeconfig, otherwise, cm.Data[corev1.ServiceAccountRootCAKey], log))
		}, otherwise, log)
		return nil
	}
}

// follow calls ask until it succeeds, and again when clients connect, until ctx ends. ask reports whether the server
// names a CA, which it has stored then.
func (a *kubeletClientCAs) follow(
	ctx context.Context, known bool, ask func(context.Context) (bool, error), otherwise []byte, log *slog.Logger,
) {
	for wait := time.Second; ctx.Err() == nil; {
		found, err := ask(ctx)
		if err == nil && !found && !known {
			err = a.set(otherwise)
		}
		pause := wait
		called := (chan struct{})(nil)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				log.Warn("read the CA of the API server's client certificate, will retry", "err", err)
			}
			wait = min(2*wait, time.Minute)
		case found:
			known = true
			wait = time.Second
			pause = askAgainKnown
			called = a.connected
		default:
			wait = time.Second
			pause = askAgainUnknown
			called = a.connected
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
	return writeIfChanged(file, pem)
}
