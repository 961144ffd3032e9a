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

// The API server as a client of kubelets: an authority of its own, which the API server does not believe, and a user in no group. Whoever
// has the server call itself with this certificate is nobody there. docs/decisions/0062 tells why.
const (
	kubeletClientAuthority = "kubelet-client-ca"
	kubeletClientPair      = "apiserver-kubelet-client"
	kubeletClientUser      = authz.KubeletClient
)

// openKubeletClient makes the authority and the certificate. A certificate of an earlier version, which the cluster's authority had
// signed for system:masters, is replaced.
func (k *keys) openKubeletClient(ids *identities) error {
	ca, err := ids.authority(kubeletClientAuthority)
	if err != nil {
		return err
	}
	pair, err := ca.Client(kubeletClientPair, pki.Subject{Name: kubeletClientUser})
	if err != nil {
		return err
	}
	k.kubeletClientCA = ca
	if k.toKubelet, err = pair.TLS(); err != nil {
		return fmt.Errorf("certificate for kubelets: %w", err)
	}
	return nil
}

// kubeletClient is how the API server reaches kubelets.
func (k *keys) kubeletClient() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{k.toKubelet}, RootCAs: k.ca.Pool()}
}

// kubeletClientInfo lets nodes read which authority signs the API server's certificate for kubelets.
func (k *keys) kubeletClientInfo() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: kubeletClientAuthority}
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{clientCAKey: string(k.kubeletClientCA.CertPEM())}},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{kubeletClientAuthority}, Verbs: []string{"get"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: kubeletClientAuthority},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
		},
	}
}

const clientCAKey = "client-ca-file"

// clientAuthorities vouch for who calls a kubelet. They may become known, or change, after the kubelet has reached the API server.
type clientAuthorities struct {
	pool   atomic.Pointer[x509.CertPool]
	wanted chan struct{} // has an item when somebody has called since the API server was asked last; nil: nobody asks
}

func newClientAuthorities(p *x509.CertPool) *clientAuthorities {
	a := &clientAuthorities{wanted: make(chan struct{}, 1)}
	a.pool.Store(p)
	return a
}

// Pool is never nil: without a pool Go would believe the machine's authorities.
func (a *clientAuthorities) Pool() *x509.CertPool {
	select {
	case a.wanted <- struct{}{}:
	default:
	}
	return a.pool.Load()
}

func (a *clientAuthorities) set(pem []byte) error {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return errors.New("it holds no certificate")
	}
	a.pool.Store(p)
	return nil
}

// The API server is asked again when somebody calls the kubelet, but no sooner after the last answer than this: an answer without an
// authority may be that of a server which is not of this version yet.
const (
	askAgainUnknown = 10 * time.Second
	askAgainKnown   = 10 * time.Minute
)

// learn asks the API server which authority signs its certificate for kubelets, and keeps the answer in file for the next start. A server
// that never said is not Keelson's, or an older one: the authority of its own certificate, otherwise, vouches then, as in clusters that
// kubeadm makes, until the server says.
func (a *clientAuthorities) learn(to *rest.Config, file string, otherwise []byte, log *slog.Logger) run.Func {
	return func(ctx context.Context, ready func()) error {
		known, err := a.read(file)
		if err != nil {
			return fmt.Errorf("authorities of the API server's client certificate: %w; delete %s to have them fetched again", err, file)
		}
		cl, err := kubernetes.NewForConfig(to)
		if err != nil {
			return fmt.Errorf("reach the API server: %w", err)
		}
		ready()
		a.follow(ctx, known, func(ctx context.Context) (bool, error) {
			cm, err := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeletClientAuthority, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			return true, a.keep(file, []byte(cm.Data[clientCAKey]))
		}, otherwise, log)
		return nil
	}
}

// follow asks until ctx ends: until there is an answer, and again when somebody calls. ask tells whether the server names an authority,
// which it has kept then.
func (a *clientAuthorities) follow(ctx context.Context, known bool, ask func(context.Context) (bool, error), otherwise []byte, log *slog.Logger) {
	for wait := time.Second; ctx.Err() == nil; {
		found, err := ask(ctx)
		if err == nil && !found && !known {
			err = a.set(otherwise)
		}
		pause, called := wait, (chan struct{})(nil)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				log.Warn("the authority of the API server's client certificate is asked for again", "err", err)
			}
			wait = min(2*wait, time.Minute)
		case found:
			known, wait, pause, called = true, time.Second, askAgainKnown, a.wanted
		default:
			wait, pause, called = time.Second, askAgainUnknown, a.wanted
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

// read believes what an earlier life has learned; known is false when there is nothing.
func (a *clientAuthorities) read(file string) (known bool, err error) {
	pem, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, a.set(pem)
}

func (a *clientAuthorities) keep(file string, pem []byte) error {
	if err := a.set(pem); err != nil {
		return fmt.Errorf("config map %s/%s: %w", metav1.NamespaceSystem, kubeletClientAuthority, err)
	}
	return writeIfChanged(file, pem)
}
