// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"keelson/client/servers"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/kubelet/identity"
	"keelson/lib/log"
	"keelson/lib/run"
	"keelson/pki"
)

// Certificates are the client and serving certificates of a kubelet in a process of its own.
type Certificates struct {
	REST *rest.Config
	// Servers are the API servers that REST reaches.
	Servers *servers.Servers
	// Anonymous reaches the same server without credentials. CA are the server's CAs; REST may hold them in its
	// transport only.
	Anonymous *rest.Config
	CA        *credentials.Bundle
	Serving   credentials.KubeletServing
	Metrics   *identity.Metrics
	// Run requests and renews them; nil: they are files, which are renewed by their owner.
	Run run.Func
	// Joined reads the client CAs from the API server; nil: they are known.
	Joined *Joined
	// Keepers are further parts that keep certificates up, with the kubelet.
	Keepers []run.Func
}

// Kubelet is a kubelet in a process of its own, as it knows its cluster.
type Kubelet struct {
	Dir       datadir.Dir
	NodeName  string
	Version   string // of this program, as its node reports it
	Addresses []net.IP
	// Kubeconfig is its own. Bootstrap is one with a bootstrap token, by which it requests certificates; empty: the API
	// server wrote them to the directory.
	Kubeconfig, Bootstrap string
	// ClientCA is the file of --client-ca-file; empty: the cluster's CA.
	ClientCA string
	// Servers returns the API servers that the kubelet knows in addition to the one at a URL.
	Servers func(url string) *servers.Servers
	Log     *slog.Logger
}

// Certificates returns those that the API server wrote to the data directory or, with a bootstrap kubeconfig,
// requests new ones.
func (k Kubelet) Certificates() (Certificates, error) {
	if k.Bootstrap != "" {
		return k.requestedCertificates()
	}
	log := k.Log.With(eventlog.Key, eventlog.Certificates)
	to, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	if err != nil {
		return Certificates{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	all := k.Servers(to.Host)
	live, err := credentials.FollowKubeconfig(k.Kubeconfig, all, log)
	if err != nil {
		return Certificates{}, err
	}
	keys, err := credentials.OpenKubeletKeys(k.Dir, k.NodeName, k.Addresses)
	if err != nil {
		return Certificates{}, err
	}
	keeper := &pki.Keeper{
		Dir:     k.Dir.Sub("pki"),
		Sources: []pki.Source{keys.CA, keys.KubeletClientCA},
		Leaves:  []*pki.Leaf{keys.Kubelet},
		Log:     log,
	}
	beside := []run.Func{keeper.Run}
	if live.Run != nil {
		beside = append(beside, live.Run)
	}
	serving := keys.KubeletServing()
	if k.ClientCA != "" {
		clients, err := k.clientCAs()
		if err != nil {
			return Certificates{}, err
		}
		serving.ClientCAs = clients.Pool
	}
	return Certificates{
		REST:      live.REST,
		Servers:   all,
		Anonymous: servers.Anonymous(live.REST),
		CA:        live.CA,
		Serving:   serving,
		Metrics:   identity.NewMetrics(serving.TLS),
		Keepers:   beside,
	}, nil
}

// requestedCertificates requests certificates as the bootstrap kubeconfig's user, once. Afterwards the kubeconfig in
// the data directory is used; the bootstrap file, whose token expires, may be deleted.
func (k Kubelet) requestedCertificates() (Certificates, error) {
	var none Certificates
	// the library that renews them logs there
	klog.SetSlogLogger(slog.New(log.Demote(k.Log.Handler())).With(eventlog.Key, eventlog.Certificates))
	if err := os.MkdirAll(k.Dir.Sub("pki"), 0o700); err != nil {
		return none, fmt.Errorf("make directory for certificates: %w", err)
	}
	bootstrap, err := LoadKubeconfig(k.Bootstrap)
	if err != nil {
		return none, err
	}
	path := k.Kubeconfig
	to, err := LoadKubeconfig(path)
	if err != nil {
		return none, err
	}
	known := to != nil
	if !known {
		to = bootstrap
	}
	if to == nil {
		return none, fmt.Errorf("--bootstrap-kubeconfig %s: %w", k.Bootstrap, fs.ErrNotExist)
	}

	// By this CA the kubelet knows the API server, before it sends its token there.
	ca, err := credentials.RootCA(to)
	if err != nil {
		return none, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return none, errors.New("--bootstrap-kubeconfig names no certificate authority, by which the kubelet knows " +
			"the API server")
	}
	clients := newKubeletClientCAs(x509.NewCertPool())
	if k.ClientCA != "" {
		if clients, err = k.clientCAs(); err != nil {
			return none, err
		}
	}
	bundle := credentials.NewBundle(ca)

	// The token and the certificate are shown to any of the cluster's servers.
	all := k.Servers(to.Host)
	if bootstrap != nil {
		if bootstrap, err = all.REST(bootstrap); err != nil {
			return none, err
		}
	}
	id, err := identity.New(identity.Config{
		Dir:       k.Dir.Sub("pki"),
		NodeName:  k.NodeName,
		Addresses: k.Addresses,
		Server:    to,
		Servers:   all,
		Bootstrap: bootstrap,
		First: func() error {
			if known {
				return nil
			}
			return writeNodeKubeconfig(path, to.Host, ca, identity.ClientFile(k.Dir.Sub("pki")))
		},
	})
	if err != nil {
		return none, err
	}
	out := Certificates{
		REST:      id.REST(),
		Servers:   all,
		Anonymous: servers.Anonymous(id.REST()),
		CA:        bundle,
		Serving:   credentials.KubeletServing{TLS: id.ServerTLS(), ClientCAs: clients.Pool},
		Metrics:   id.Metrics(),
		Run:       id.Run,
	}
	if k.ClientCA == "" { // the cluster says which CA its servers have
		out.Joined = &Joined{
			dir:        k.Dir,
			kubeconfig: path,
			version:    k.Version,
			ca:         bundle,
			servers:    all,
			rest:       id.REST(),
			prefer:     id.Prefer,
			clients:    clients,
			log:        k.Log.With(eventlog.Key, eventlog.Certificates),
		}
	}
	return out, nil
}

// clientCAs reads --client-ca-file.
func (k Kubelet) clientCAs() (*kubeletClientCAs, error) {
	pem, err := pki.ReadAuthorities(k.ClientCA, "--client-ca-file")
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	a := &kubeletClientCAs{}
	return a, a.set(pem)
}

// writeNodeKubeconfig writes a kubeconfig that refers to the file with the current certificate. It stays valid when the
// certificate is renewed.
func writeNodeKubeconfig(path, server string, ca []byte, pair string) error {
	const name = "kubelet"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: pair, ClientKey: pair}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	b, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return pki.WriteFile(path, b, 0o600)
}
