// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto/tls"
	"crypto/x509"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/auth"
	"keelson/auth/authz"
	"keelson/pki"
)

// The API server as a client of kubelets has a CA of its own, which the API server does not trust, and a user in no
// group. Someone who makes the server call itself with this certificate gets no rights (docs/decisions/0062).
const (
	KubeletClientAuthority = "kubelet-client-ca"
	KubeletClientPair      = "apiserver-kubelet-client"
	KubeletClientUser      = authz.KubeletClient
)

// openKubeletClient creates the CA and the certificate. It replaces a certificate of an earlier version, which the
// cluster's CA had signed for system:masters.
func (k *Keys) openKubeletClient(ids *identities) error {
	ca, err := ids.authority(KubeletClientAuthority)
	if err != nil {
		return err
	}
	k.KubeletClientCA = ca
	k.KubeletClientCert, err = ca.ClientLeaf(KubeletClientPair, pki.Subject{Name: KubeletClientUser})
	return err
}

// KubeletClient is the TLS configuration for calls to kubelets.
func (k *Keys) KubeletClient() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: k.KubeletClientCert.Show,
		RootCAs:              k.CA.Pool(),
	}
}

// KubeletClientInfo is the ConfigMap in which nodes read the CA of the API server's client certificate.
func (k *Keys) KubeletClientInfo() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: KubeletClientAuthority}
	about := meta
	about.Annotations = retiredAnnotation(k.KubeletClientCA)
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: about, Data: map[string]string{
			ClientCAKey:                    string(k.KubeletClientCA.CertPEM()),
			corev1.ServiceAccountRootCAKey: string(k.CA.CertPEM()),
			CrossKey:                       string(k.CA.CrossPEM()),
			NetworkKey:                     k.network,
		}},
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"configmaps"},
					ResourceNames: []string{KubeletClientAuthority},
					Verbs:         []string{"get", "watch"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: KubeletClientAuthority},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
		},
	}
}

// Keys of that ConfigMap.
const (
	ClientCAKey = "client-ca-file"
	// CrossKey has the certificate of a new key of the cluster's CA from the old key.
	CrossKey = "cross.crt"
	// NetworkKey has the identity of the pod network.
	NetworkKey = "network"
)

// KubeletServing is what a kubelet's server needs: its certificate and the CAs of its clients.
type KubeletServing struct {
	TLS *tls.Config
	// ClientCAs returns the current CAs of clients.
	ClientCAs func() *x509.CertPool
}

// KubeletServing returns what the kubelet of this process serves with.
func (k *Keys) KubeletServing() KubeletServing {
	return KubeletServing{
		&tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: k.Kubelet.Serve},
		k.KubeletClientCA.Pool,
	}
}
