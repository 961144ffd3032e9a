// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// BootstrapFile is the bootstrap kubeconfig of a node that has joined, below its data directory.
const BootstrapFile = "pki/bootstrap.kubeconfig"

// Join fills the directory of a new node of the cluster in q, and returns it; the kubelet role then runs the node. An
// interrupted join continues when it is repeated. A node that has joined continues without the token, which may have
// expired: `keelson join` may be what a machine runs at each start. kubeconfig is the node's own, which it has once it
// has joined.
func (q JoinRequest) Join(ctx context.Context, dir datadir.Dir, node, kubeconfig string) (datadir.Dir, error) {
	if _, _, err := q.validate(); err != nil {
		return "", err
	}
	if datadir.Exists(dir.Sub("pki/ca.key")) {
		return "", fmt.Errorf("%s holds a cluster of its own: choose another --data-dir", dir)
	}
	known, err := LoadKubeconfig(kubeconfig)
	if err != nil {
		return "", err
	}
	if known != nil && q.isMember(known, time.Now()) {
		if err := q.moveServer(ctx, known, kubeconfig); err != nil {
			return "", err
		}
		return dir.Prepare()
	}
	to, err := q.discover(ctx)
	if err != nil {
		return "", err
	}
	if known == nil {
		if err := nameIsFree(ctx, to, node); err != nil {
			return "", err
		}
	} else if ca, err := credentials.RootCA(known); err != nil || !pki.ShareAuthority(ca, to.CAData) {
		return "", fmt.Errorf("%s is a node of another cluster: `keelson down --purge --data-dir %s` ends that, or "+
			"choose another --data-dir", dir, dir)
	}
	c := clientcmdapi.NewConfig()
	const name = "join"
	c.Clusters[name] = &clientcmdapi.Cluster{Server: to.Host, CertificateAuthorityData: to.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: to.BearerToken}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	b, err := clientcmd.Write(*c)
	if err != nil {
		return "", fmt.Errorf("write bootstrap kubeconfig: %w", err)
	}
	dir, err = dir.Prepare()
	if err != nil {
		return "", err
	}
	return dir, datadir.WriteIfChanged(dir.Sub(BootstrapFile), b)
}

// isMember reports whether known is a node of the cluster that --ca-hash pins, with a client certificate that has not
// expired.
func (q JoinRequest) isMember(known *rest.Config, now time.Time) bool {
	files := rest.CopyConfig(known)
	if rest.LoadTLSFiles(files) != nil {
		return false
	}
	hashes, err := hashesOf(files.CAData)
	if err != nil || !slices.ContainsFunc(hashes, q.pins) {
		return false
	}
	certs, err := pki.Certificates(files.CertData)
	return err == nil && now.Before(certs[0].NotAfter)
}

// pins reports whether --ca-hash names a public key.
func (q JoinRequest) pins(hash string) bool { return slices.Contains(q.CAHashes, hash) }

// moveServer replaces the server in the kubeconfig of a node that has joined by the one of this request, if that is
// another one of the same cluster: the cluster has another address now.
func (q JoinRequest) moveServer(ctx context.Context, known *rest.Config, kubeconfig string) error {
	if known.Host == q.Server {
		return nil
	}
	ca, err := credentials.RootCA(known)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	if _, err := q.clusterInfo(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}); err != nil {
		return err
	}
	return pki.ReplaceServer(kubeconfig, q.Server)
}

// LoadKubeconfig reads a kubeconfig; nil if the file does not exist.
func LoadKubeconfig(path string) (*rest.Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // absence is an answer here
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return c, nil
}

// nameIsFree returns an error if a Ready node has the name, or if the token is no longer valid. A token without the
// right to read nodes cannot find out.
func nameIsFree(ctx context.Context, to *rest.Config, name string) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	n, err := cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return errors.New("the server does not take the token: it has expired, or may not be used to log in; " +
			"`keelson token create` makes another")
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for node %s: %w", name, err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("there is a node %q already, and it is Ready: choose another --node-name, or `keelson "+
				"node rm %s` if it is gone for good", name, name)
		}
	}
	return nil
}
