// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/options"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client/servers"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// keys are the certificates and keys of a cluster, all in pki/ of the data directory.
type keys struct {
	ca                *pki.Authority
	server            *pki.Leaf // the API server's serving certificate
	kubelet           *pki.Leaf // this node's kubelet's serving certificate
	kubeletClientCert *pki.Leaf // the API server's client certificate for kubelets
	// kubeletClientCA signs kubeletClientCert. Only kubelets trust it.
	kubeletClientCA *pki.Authority
	proxyCA         *pki.Authority // the front-proxy CA; signs frontProxyCert
	frontProxyCert  *pki.Leaf      // the API server's client certificate for aggregated servers
	tokens          *pki.TokenKeys
	clients         *authn.Certificates // verifies client certificates
	serving         *options.Certificates
	admin           *pki.Leaf
	network         string      // the identity of the pod network
	agents          []*pki.Leaf // named by role.file, for roles that run as processes of their own

	mu       sync.Mutex
	clientCA []byte // the content of --client-ca-file
}

// serverOwnName is a DNS name of the API server that no other server has.
const serverOwnName = "keelson"

// openKeys opens the keys. It creates missing ones that can be replaced, and in a new cluster all of them.
func openKeys(cfg Config, dir datadir.Dir) (*keys, error) {
	ids, err := openIdentities(dir)
	if err != nil {
		return nil, err
	}
	ids.life = cfg.CertificateLife
	k, err := ids.open(cfg)
	if err != nil {
		return nil, err
	}
	return k, ids.save()
}

// openKubeletKeys opens what a kubelet needs that runs beside the API server of the same data directory, in a process
// of its own.
func openKubeletKeys(cfg Config, dir datadir.Dir) (*keys, error) {
	ids, err := openIdentities(dir)
	if err != nil {
		return nil, err
	}
	k := &keys{}
	if k.ca, err = ids.authority("ca"); err != nil {
		return nil, err
	}
	if k.kubeletClientCA, err = ids.authority(kubeletClientAuthority); err != nil {
		return nil, err
	}
	if k.kubelet, err = kubeletLeaf(k.ca, cfg); err != nil {
		return nil, err
	}
	return k, ids.save()
}

// open opens the identities and the certificates that they sign.
func (i *identities) open(cfg Config) (*keys, error) {
	ca, err := i.authority("ca")
	if err != nil {
		return nil, err
	}
	ranges, err := cfg.Services.Ranges()
	if err != nil {
		return nil, err
	}
	k := &keys{ca: ca}
	further, _ := cfg.Listen.names()
	if k.server, err = ca.ServerLeaf("apiserver", pki.Subject{
		Name: "kube-apiserver",
		DNS: append([]string{
			"localhost", serverOwnName, "kubernetes", "kubernetes.default", servers.Name,
			"kubernetes.default.svc.cluster.local", cfg.NodeName,
		}, further...),
		IPs: servingAddresses(cfg, union(cfg.keptServices, ranges)),
	}); err != nil {
		return nil, err
	}
	if k.kubelet, err = kubeletLeaf(ca, cfg); err != nil {
		return nil, err
	}
	if k.admin, err = ca.ClientLeaf("admin", pki.Subject{Name: "admin", Groups: []string{auth.Masters}}); err != nil {
		return nil, err
	}
	if err := k.openKubeletClient(i); err != nil {
		return nil, err
	}
	if err := k.openProxy(i); err != nil {
		return nil, err
	}
	if i.dir != "" { // without files no role runs as a process of its own
		if err := k.openAgents(cfg); err != nil {
			return nil, err
		}
	}
	if k.tokens, err = cfg.API.Tokens.SigningKeys(i.tokenKeys); err != nil {
		return nil, err
	}
	if file := cfg.API.Authentication.ClientCAFile; file != "" {
		if k.clientCA, err = pki.ReadAuthorities(file, "--client-ca-file"); err != nil {
			return nil, err
		}
	}
	if k.serving, err = options.NewCertificates(k.server.Certificate, cfg.API.Serving); err != nil {
		return nil, err
	}
	k.clients = authn.NewCertificates(ca.Pool())
	k.trustClients(k.clientCA)
	return k, nil
}

// trustClients lets clients in that have a certificate of the cluster's CA, as it is now, or of clientCA.
func (k *keys) trustClients(clientCA []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clientCA = clientCA
	roots := k.ca.Pool()
	roots.AppendCertsFromPEM(clientCA)
	k.clients.SetRoots(roots)
	k.clients.SetReplaced(k.ca.Others())
	k.serving.SetClientCAs("clients", slices.Concat(k.ca.CertPEM(), clientCA))
}

// useChanged lets the authentication of clients use the keys as they are now.
func (k *keys) useChanged(issuer *authn.Tokens, tokens *options.ServiceAccountTokens) error {
	k.trustClients(k.configuredClientCA())
	config, err := tokens.Config(k.tokens)
	if err != nil {
		return err
	}
	return issuer.SetKeys(config.Key, config.Keys)
}

// configuredClientCA is the content of --client-ca-file.
func (k *keys) configuredClientCA() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clientCA
}

// sources are the keys that may change while the server runs.
func (k *keys) sources() []pki.Source {
	return []pki.Source{k.ca, k.kubeletClientCA, k.proxyCA, k.tokens}
}

// kubeletLeaf is the serving certificate of this machine's kubelet.
func kubeletLeaf(ca *pki.Authority, cfg Config) (*pki.Leaf, error) {
	return ca.ServerLeaf("kubelet-server", pki.Subject{
		Name:   "system:node:" + cfg.NodeName,
		Groups: []string{auth.Nodes},
		DNS:    []string{cfg.NodeName, "localhost"},
		IPs:    append([]net.IP{net.IPv4(127, 0, 0, 1)}, netIPs(nodeIPs(cfg))...),
	})
}

// leaves are the certificates that a cluster with this configuration has in use. Where this machine's node is another
// process's, so is its certificate.
func (k *keys) leaves(cfg Config) []*pki.Leaf {
	out := append([]*pki.Leaf{k.server, k.kubeletClientCert, k.frontProxyCert, k.admin}, k.agents...)
	if cfg.realNode() {
		out = append(out, k.kubelet)
	}
	return out
}

// openAgents creates the client certificates of roles that may run as processes of their own.
func (k *keys) openAgents(cfg Config) error {
	for _, r := range table() {
		if r.file == "" {
			continue
		}
		u := r.user(cfg)
		groups := slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return g == auth.Authenticated })
		leaf, err := k.ca.ClientLeaf(r.file, pki.Subject{Name: u.Name, Groups: groups})
		if err != nil {
			return err
		}
		k.agents = append(k.agents, leaf)
	}
	return nil
}

const frontProxyUser = "front-proxy-client"

// openProxy creates the front-proxy CA and client certificate, by which aggregated servers authenticate this one. The
// CA is separate: a holder of such a certificate may name any user.
func (k *keys) openProxy(ids *identities) error {
	var err error
	if k.proxyCA, err = ids.authority("front-proxy-ca"); err != nil {
		return err
	}
	k.frontProxyCert, err = k.proxyCA.ClientLeaf("front-proxy-client", pki.Subject{Name: frontProxyUser})
	return err
}

// authenticationInfoName is the ConfigMap in kube-system with the CAs by which extension servers authenticate requests.
const authenticationInfoName = "extension-apiserver-authentication"

// authenticationInfo is the ConfigMap of that name.
func (k *keys) authenticationInfo() *corev1.ConfigMap {
	cm := &corev1.ConfigMap{}
	cm.Namespace = "kube-system"
	cm.Name = authenticationInfoName
	cm.Data = map[string]string{
		"client-ca-file":                     string(k.ca.CertPEM()) + string(k.configuredClientCA()),
		"requestheader-client-ca-file":       string(k.proxyCA.CertPEM()),
		"requestheader-allowed-names":        `["` + frontProxyUser + `"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	cm.Annotations = retiredAnnotation(k.ca, k.proxyCA)
	return cm
}

// firstOf is the first usable address of a range: of the Service "kubernetes", or of the bridge.
func firstOf(p netip.Prefix) net.IP { return p.Masked().Addr().Next().AsSlice() }

// writeKubeconfigs writes the administrator's kubeconfig, and one per agent below pki/. merged is a file with a copy of
// the first, whose certificate is kept up; empty: there is none.
func (k *keys) writeKubeconfigs(dir datadir.Dir, url, merged string) error {
	write := func(path, user string, p pki.Pair, save func(string, []byte) error) error {
		name := ""
		if !k.serving.UsesClusterCert() {
			name = serverOwnName // the server then presents its own certificate
		}
		b, err := pki.Kubeconfig(user, url, name, k.ca.CertPEM(), p)
		if err != nil {
			return err
		}
		return save(path, b)
	}
	if err := write(dir.Kubeconfig(), "keelson", k.admin.Pair(), pki.RefreshKubeconfig); err != nil {
		return err
	}
	if merged != "" {
		if err := write(merged, "keelson", k.admin.Pair(), pki.FollowKubeconfig); err != nil {
			return err
		}
	}
	for _, l := range k.agents {
		file := dir.Sub("pki/" + l.Name() + ".kubeconfig")
		if err := write(file, l.Name(), l.Pair(), datadir.WriteIfChanged); err != nil {
			return err
		}
	}
	return nil
}
