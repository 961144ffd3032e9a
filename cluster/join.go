// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"keelson/client/servers"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/membership"
	"keelson/cluster/nodehost"
	"keelson/event/eventlog"
	"keelson/kubelet/identity"
	"keelson/lib/log"
	"keelson/lib/run"
	"keelson/pki"
)

// kubeletCertificates are the client and serving certificates of a kubelet in a process of its own. run renews them; it
// may be nil.
type kubeletCertificates struct {
	rest *rest.Config
	// servers are the API servers that rest reaches.
	servers *servers.Servers
	// anonymous reaches the same server without credentials. ca are the server's CAs; rest may hold them in its
	// transport only.
	anonymous *rest.Config
	ca        *credentials.Bundle
	serving   credentials.KubeletServing
	metrics   *identity.Metrics
	run       run.Func
	joined    *joined // reads the client CAs from the API server; nil: they are known
	// beside are further parts that keep certificates up, with the kubelet.
	beside []run.Func
}

// kubeletCertificates returns those that the API server wrote to the data directory or, with a bootstrap kubeconfig,
// requests new ones.
func (r RoleConfig) kubeletCertificates(cfg Config, dir datadir.Dir) (kubeletCertificates, error) {
	if r.Bootstrap != "" {
		return r.requestedCertificates(cfg, dir)
	}
	log := r.log().With(eventlog.Key, eventlog.Certificates)
	to, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig("kubelet"))
	if err != nil {
		return kubeletCertificates{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	all := r.servers(to.Host)
	live, err := credentials.FollowKubeconfig(r.kubeconfig("kubelet"), all, log)
	if err != nil {
		return kubeletCertificates{}, err
	}
	k, err := credentials.OpenKubeletKeys(dir, cfg.NodeName, netIPs(cfg.nodeIPs()))
	if err != nil {
		return kubeletCertificates{}, err
	}
	keeper := &pki.Keeper{
		Dir:     dir.Sub("pki"),
		Sources: []pki.Source{k.CA, k.KubeletClientCA},
		Leaves:  []*pki.Leaf{k.Kubelet},
		Log:     log,
	}
	beside := []run.Func{keeper.Run}
	if live.Run != nil {
		beside = append(beside, live.Run)
	}
	serving := k.KubeletServing()
	if r.ClientCA != "" {
		clients, err := r.clientCAs()
		if err != nil {
			return kubeletCertificates{}, err
		}
		serving.ClientCAs = clients.Pool
	}
	return kubeletCertificates{
		rest:      live.REST,
		servers:   all,
		anonymous: servers.Anonymous(live.REST),
		ca:        live.CA,
		serving:   serving,
		metrics:   identity.NewMetrics(serving.TLS),
		beside:    beside,
	}, nil
}

// requestedCertificates requests certificates as the bootstrap kubeconfig's user, once. Afterwards the kubeconfig in
// the data directory is used; the bootstrap file, whose token expires, may be deleted.
func (r RoleConfig) requestedCertificates(cfg Config, dir datadir.Dir) (kubeletCertificates, error) {
	var none kubeletCertificates
	// the library that renews them logs there
	klog.SetSlogLogger(slog.New(log.Demote(r.log().Handler())).With(eventlog.Key, eventlog.Certificates))
	if err := os.MkdirAll(dir.Sub("pki"), 0o700); err != nil {
		return none, fmt.Errorf("make directory for certificates: %w", err)
	}
	bootstrap, err := membership.LoadKubeconfig(r.Bootstrap)
	if err != nil {
		return none, err
	}
	path := r.kubeconfig("kubelet")
	to, err := membership.LoadKubeconfig(path)
	if err != nil {
		return none, err
	}
	known := to != nil
	if !known {
		to = bootstrap
	}
	if to == nil {
		return none, fmt.Errorf("--bootstrap-kubeconfig %s: %w", r.Bootstrap, fs.ErrNotExist)
	}
	ca, err := credentials.RootCA(to)
	if err != nil {
		return none, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return none, errors.New("--bootstrap-kubeconfig names no certificate authority, by which the kubelet knows " +
			"the API server")
	}
	clients := newKubeletClientCAs(x509.NewCertPool())
	if r.ClientCA != "" {
		if clients, err = r.clientCAs(); err != nil {
			return none, err
		}
	}
	bundle := credentials.NewBundle(ca)
	all := r.servers(to.Host)
	if bootstrap != nil {
		if bootstrap, err = all.REST(bootstrap); err != nil {
			return none, err
		}
	}
	id, err := identity.New(identity.Config{
		Dir:       dir.Sub("pki"),
		NodeName:  cfg.NodeName,
		Addresses: netIPs(cfg.nodeIPs()),
		Server:    to,
		Servers:   all,
		Bootstrap: bootstrap,
		First: func() error {
			if known {
				return nil
			}
			return writeNodeKubeconfig(path, to.Host, ca, identity.ClientFile(dir.Sub("pki")))
		},
	})
	if err != nil {
		return none, err
	}
	out := kubeletCertificates{
		rest:      id.REST(),
		servers:   all,
		anonymous: servers.Anonymous(id.REST()),
		ca:        bundle,
		serving:   credentials.KubeletServing{TLS: id.ServerTLS(), ClientCAs: clients.Pool},
		metrics:   id.Metrics(),
		run:       id.Run,
	}
	if r.ClientCA == "" {
		out.joined = &joined{
			dir:        dir,
			kubeconfig: path,
			ca:         bundle,
			servers:    all,
			rest:       id.REST(),
			prefer:     id.Prefer,
			clients:    clients,
			log:        r.log().With(eventlog.Key, eventlog.Certificates),
		}
	}
	return out, nil
}

// clientCAs reads --client-ca-file.
func (r RoleConfig) clientCAs() (*kubeletClientCAs, error) {
	pem, err := pki.ReadAuthorities(r.ClientCA, "--client-ca-file")
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	a := &kubeletClientCAs{}
	return a, a.set(pem)
}

// Join fills the data directory of a new node of the cluster in q; the kubelet role then runs it.
func Join(ctx context.Context, q membership.JoinRequest, role *RoleConfig) error {
	cfg, err := role.config()
	if err != nil {
		return err
	}
	if err := nodehost.MayBeNode(); err != nil {
		return err
	}
	nodehost.ClearWay(ctx, role.log(), q.Server)
	dir, err := q.Join(ctx, cfg.DataDir, cfg.NodeName, role.kubeconfig("kubelet"))
	if err != nil {
		return err
	}
	role.DataDir = dir
	role.Bootstrap = dir.Sub(membership.BootstrapFile)
	return nil
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
