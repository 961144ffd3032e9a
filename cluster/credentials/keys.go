// SPDX-License-Identifier: Apache-2.0

// Package credentials is the keys and certificates of a cluster in its data directory: its authorities, the leaves that
// they sign, the keys of service-account tokens, what the store knows of them, their replacement, and kubeconfigs that
// are in use. cluster opens them once, maintenance lists and replaces them. It knows no role and asks no flag but those
// about keys that the owner brings.
package credentials

import (
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/options"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client/servers"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// Keys are the certificates and keys of a cluster, all in pki/ of the data directory.
type Keys struct {
	CA                *pki.Authority
	Server            *pki.Leaf // the API server's serving certificate
	Kubelet           *pki.Leaf // this node's kubelet's serving certificate
	KubeletClientCert *pki.Leaf // the API server's client certificate for kubelets
	// KubeletClientCA signs KubeletClientCert. Only kubelets trust it.
	KubeletClientCA *pki.Authority
	proxyCA         *pki.Authority // the front-proxy CA; signs FrontProxyCert
	FrontProxyCert  *pki.Leaf      // the API server's client certificate for aggregated servers
	Tokens          *pki.TokenKeys
	Clients         *authn.Certificates // verifies client certificates
	Serving         *options.Certificates
	Admin           *pki.Leaf
	network         string      // the identity of the pod network
	agents          []*pki.Leaf // named by role.file, for roles that run as processes of their own
	opened          time.Time

	mu       sync.Mutex
	clientCA []byte // the content of --client-ca-file
}

// serverOwnName is a DNS name of the API server that no other server has.
const serverOwnName = "keelson"

// Config says what the certificates of a cluster are for.
type Config struct {
	// Life is the lifetime of certificates; 0: a year.
	Life time.Duration
	// NodeName and NodeIPs are this machine's node.
	NodeName string
	NodeIPs  []net.IP
	// ServerNames and ServerIPs are names and addresses of the API server, in addition to those that every server has.
	ServerNames []string
	ServerIPs   []net.IP
	// Agents are the users of roles that may run as processes of their own, by the name of their kubeconfig.
	Agents []Agent
	// API are the flags of the API server about keys that the owner brings.
	API *options.Options
}

// Agent is the user as which a role works, with the name of its kubeconfig.
type Agent struct {
	File string
	User *auth.User
}

// Open opens the keys. It creates missing ones that can be replaced, and in a new cluster all of them.
func Open(cfg Config, dir datadir.Dir) (*Keys, error) {
	ids, err := openIdentities(dir)
	if err != nil {
		return nil, err
	}
	ids.life = cfg.Life
	k, err := ids.open(cfg)
	if err != nil {
		return nil, err
	}
	if err := ids.save(); err != nil {
		return nil, err
	}
	k.network, err = keepNetworkIdentity(dir, k.CA.CertPEM())
	return k, err
}

// InMemory creates keys that no file holds.
func InMemory(cfg Config) (*Keys, error) {
	k, err := (&identities{found: map[string]string{}}).open(cfg)
	if err != nil {
		return nil, err
	}
	k.network = NetworkIdentityOf(k.CA.CertPEM())
	return k, nil
}

// OpenKubeletKeys opens what a kubelet needs that shares the data directory with an API server and runs in a process
// of its own.
func OpenKubeletKeys(dir datadir.Dir, nodeName string, nodeIPs []net.IP) (*Keys, error) {
	ids, err := openIdentities(dir)
	if err != nil {
		return nil, err
	}
	k := &Keys{}
	if k.CA, err = ids.authority("ca"); err != nil {
		return nil, err
	}
	if k.KubeletClientCA, err = ids.authority(KubeletClientAuthority); err != nil {
		return nil, err
	}
	if k.Kubelet, err = kubeletLeaf(k.CA, nodeName, nodeIPs); err != nil {
		return nil, err
	}
	return k, ids.save()
}

// open opens the identities and the certificates that they sign.
func (i *identities) open(cfg Config) (*Keys, error) {
	ca, err := i.authority("ca")
	if err != nil {
		return nil, err
	}
	k := &Keys{CA: ca, opened: time.Now()}
	if k.Server, err = ca.ServerLeaf("apiserver", pki.Subject{
		Name: "kube-apiserver",
		DNS: append([]string{
			"localhost", serverOwnName, "kubernetes", "kubernetes.default", servers.Name,
			"kubernetes.default.svc.cluster.local", cfg.NodeName,
		}, cfg.ServerNames...),
		IPs: cfg.ServerIPs,
	}); err != nil {
		return nil, err
	}
	if k.Kubelet, err = kubeletLeaf(ca, cfg.NodeName, cfg.NodeIPs); err != nil {
		return nil, err
	}
	if k.Admin, err = ca.ClientLeaf("admin", pki.Subject{Name: "admin", Groups: []string{auth.Masters}}); err != nil {
		return nil, err
	}
	if err := k.openKubeletClient(i); err != nil {
		return nil, err
	}
	if err := k.openProxy(i); err != nil {
		return nil, err
	}
	if i.dir != "" { // without files no role runs as a process of its own
		if err := k.openAgents(cfg.Agents); err != nil {
			return nil, err
		}
	}
	if k.Tokens, err = cfg.API.Tokens.SigningKeys(i.tokenKeys); err != nil {
		return nil, err
	}
	if file := cfg.API.Authentication.ClientCAFile; file != "" {
		if k.clientCA, err = pki.ReadAuthorities(file, "--client-ca-file"); err != nil {
			return nil, err
		}
	}
	if k.Serving, err = options.NewCertificates(k.Server.Certificate, cfg.API.Serving); err != nil {
		return nil, err
	}
	k.Clients = authn.NewCertificates(ca.Pool())
	k.TrustClients(k.clientCA)
	return k, nil
}

// TrustClients lets clients in that have a certificate of the cluster's CA, as it is now, or of clientCA.
func (k *Keys) TrustClients(clientCA []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clientCA = clientCA
	roots := k.CA.Pool()
	roots.AppendCertsFromPEM(clientCA)
	k.Clients.SetRoots(roots)
	k.Clients.SetReplaced(k.CA.Others())
	k.Serving.SetClientCAs("clients", slices.Concat(k.CA.CertPEM(), clientCA))
}

// UseChanged lets the authentication of clients use the keys as they are now.
func (k *Keys) UseChanged(issuer *authn.Tokens, tokens *options.ServiceAccountTokens) error {
	k.TrustClients(k.ConfiguredClientCA())
	config, err := tokens.Config(k.Tokens)
	if err != nil {
		return err
	}
	return issuer.SetKeys(config.Key, config.Keys)
}

// ConfiguredClientCA is the content of --client-ca-file.
func (k *Keys) ConfiguredClientCA() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clientCA
}

// Sources are the keys that may change while the server runs.
func (k *Keys) Sources() []pki.Source {
	return []pki.Source{k.CA, k.KubeletClientCA, k.proxyCA, k.Tokens}
}

// kubeletLeaf is the serving certificate of this machine's kubelet.
func kubeletLeaf(ca *pki.Authority, nodeName string, nodeIPs []net.IP) (*pki.Leaf, error) {
	return ca.ServerLeaf("kubelet-server", pki.Subject{
		Name:   "system:node:" + nodeName,
		Groups: []string{auth.Nodes},
		DNS:    []string{nodeName, "localhost"},
		IPs:    append([]net.IP{net.IPv4(127, 0, 0, 1)}, nodeIPs...),
	})
}

// Leaves are the certificates that a cluster has in use. node says whether this process runs this machine's node; else
// another has its certificate.
func (k *Keys) Leaves(node bool) []*pki.Leaf {
	out := append([]*pki.Leaf{k.Server, k.KubeletClientCert, k.FrontProxyCert, k.Admin}, k.agents...)
	if node {
		out = append(out, k.Kubelet)
	}
	return out
}

// openAgents creates the client certificates of roles that may run as processes of their own.
func (k *Keys) openAgents(agents []Agent) error {
	for _, a := range agents {
		groups := slices.DeleteFunc(slices.Clone(a.User.Groups), func(g string) bool { return g == auth.Authenticated })
		leaf, err := k.CA.ClientLeaf(a.File, pki.Subject{Name: a.User.Name, Groups: groups})
		if err != nil {
			return err
		}
		k.agents = append(k.agents, leaf)
	}
	return nil
}

// FrontProxyUser is the name in the certificate that this server shows to aggregated ones.
const FrontProxyUser = "front-proxy-client"

// openProxy creates the front-proxy CA and client certificate, by which aggregated servers authenticate this one. The
// CA is separate: a holder of such a certificate may name any user.
func (k *Keys) openProxy(ids *identities) error {
	var err error
	if k.proxyCA, err = ids.authority("front-proxy-ca"); err != nil {
		return err
	}
	k.FrontProxyCert, err = k.proxyCA.ClientLeaf("front-proxy-client", pki.Subject{Name: FrontProxyUser})
	return err
}

// AuthenticationInfoName is the ConfigMap in kube-system with the CAs by which extension servers authenticate requests.
const AuthenticationInfoName = "extension-apiserver-authentication"

// AuthenticationInfo is the ConfigMap of that name.
func (k *Keys) AuthenticationInfo() *corev1.ConfigMap {
	cm := &corev1.ConfigMap{}
	cm.Namespace = "kube-system"
	cm.Name = AuthenticationInfoName
	cm.Data = map[string]string{
		"client-ca-file":                     string(k.CA.CertPEM()) + string(k.ConfiguredClientCA()),
		"requestheader-client-ca-file":       string(k.proxyCA.CertPEM()),
		"requestheader-allowed-names":        `["` + FrontProxyUser + `"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	cm.Annotations = retiredAnnotation(k.CA, k.proxyCA)
	return cm
}

// WriteKubeconfigs writes the administrator's kubeconfig, and one per agent below pki/. merged is a file with a copy of
// the first, whose certificate is kept up; empty: there is none.
func (k *Keys) WriteKubeconfigs(dir datadir.Dir, url, merged string) error {
	write := func(path, user string, p pki.Pair, save func(string, []byte) error) error {
		name := ""
		if !k.Serving.UsesClusterCert() {
			name = serverOwnName // the server then presents its own certificate
		}
		b, err := pki.Kubeconfig(user, url, name, k.CA.CertPEM(), p)
		if err != nil {
			return err
		}
		return save(path, b)
	}
	if err := write(dir.Kubeconfig(), "keelson", k.Admin.Pair(), pki.RefreshKubeconfig); err != nil {
		return err
	}
	if merged != "" {
		if err := write(merged, "keelson", k.Admin.Pair(), pki.FollowKubeconfig); err != nil {
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
