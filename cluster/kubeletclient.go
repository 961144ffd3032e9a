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

// clientAuthorities vouch for who calls a kubelet. They may become known only after the kubelet has reached the API server.
type clientAuthorities struct{ pool atomic.Pointer[x509.CertPool] }

func newClientAuthorities(p *x509.CertPool) *clientAuthorities {
	a := &clientAuthorities{}
	a.pool.Store(p)
	return a
}

// Pool is never nil: without a pool Go would believe the machine's authorities.
func (a *clientAuthorities) Pool() *x509.CertPool { return a.pool.Load() }

func (a *clientAuthorities) set(pem []byte) error {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return errors.New("it holds no certificate")
	}
	a.pool.Store(p)
	return nil
}

// learn asks the API server which authority signs its certificate for kubelets, and keeps the answer in file for the next start. A server
// that never said is not Keelson's, or an older one: the authority of its own certificate, otherwise, vouches then, as in clusters that
// kubeadm makes.
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
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			cm, err := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeletClientAuthority, metav1.GetOptions{})
			switch {
			case err == nil:
				if err = a.keep(file, []byte(cm.Data[clientCAKey])); err == nil {
					<-ctx.Done()
					return nil
				}
			case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
				if !known {
					err = a.set(otherwise)
				}
				<-ctx.Done()
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			log.Warn("the authority of the API server's client certificate is asked for again", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
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
