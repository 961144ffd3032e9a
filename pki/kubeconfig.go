// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns a kubeconfig with one context, name, for server (https://host:port) and the client certificate p.
// asked, if not empty, is the TLS server name.
func Kubeconfig(name, server, asked string, caPEM []byte, p Pair) ([]byte, error) {
	b, err := clientcmd.Write(*config(name, server, asked, caPEM, p))
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig %s: %w", name, err)
	}
	return b, nil
}

func config(name, server, asked string, caPEM []byte, p Pair) *clientcmdapi.Config {
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, TLSServerName: asked, CertificateAuthorityData: caPEM}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: p.CertPEM, ClientKeyData: p.KeyPEM}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return c
}

// MergeKubeconfig copies the current context of the kubeconfig add into the file at path (created if absent) and makes
// it current. The rest of the file stays. A file that is no valid kubeconfig is not changed, which is an error.
func MergeKubeconfig(path string, add []byte) error {
	from, err := clientcmd.Load(add)
	if err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	into := clientcmdapi.NewConfig()
	old, err := os.ReadFile(path)
	switch {
	case err == nil:
		if into, err = clientcmd.Load(old); err != nil {
			return fmt.Errorf("merge into kubeconfig %s: %w", path, err)
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("merge into kubeconfig %s: %w", path, err)
		}
	default:
		return fmt.Errorf("merge into kubeconfig: %w", err)
	}
	maps.Copy(into.Clusters, from.Clusters)
	maps.Copy(into.AuthInfos, from.AuthInfos)
	maps.Copy(into.Contexts, from.Contexts)
	into.CurrentContext = from.CurrentContext
	b, err := clientcmd.Write(*into)
	if err != nil {
		return fmt.Errorf("merge into kubeconfig %s: %w", path, err)
	}
	return WriteFile(path, b, 0o600)
}

// RefreshKubeconfig copies the cluster and the user of fresh into the kubeconfig at path (created if absent) and keeps
// other changes in it: contexts, namespaces, the current context. A file that is no valid kubeconfig is replaced.
// Without a change nothing is written.
func RefreshKubeconfig(path string, fresh []byte) error {
	want, err := clientcmd.Load(fresh)
	if err != nil {
		return fmt.Errorf("refresh kubeconfig: %w", err)
	}
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return WriteFile(path, fresh, 0o600)
	}
	if err != nil {
		return fmt.Errorf("refresh kubeconfig: %w", err)
	}
	have, err := clientcmd.Load(old)
	if err != nil {
		return WriteFile(path, fresh, 0o600)
	}
	maps.Copy(have.Clusters, want.Clusters)
	maps.Copy(have.AuthInfos, want.AuthInfos)
	for name, c := range want.Contexts {
		if have.Contexts[name] == nil {
			have.Contexts[name] = c
		}
	}
	if have.Contexts[have.CurrentContext] == nil {
		have.CurrentContext = want.CurrentContext
	}
	b, err := clientcmd.Write(*have)
	if err != nil {
		return fmt.Errorf("refresh kubeconfig %s: %w", path, err)
	}
	if bytes.Equal(b, old) {
		return nil
	}
	return WriteFile(path, b, 0o600)
}
