// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/options"
	"keelson/auth"
	"keelson/pki"
)

// keys are the certificates and keys of a cluster, all in the data directory's pki/.
type keys struct {
	ca        *pki.Authority
	server    tls.Certificate // the API server's
	kubelet   tls.Certificate // this node's kubelet as a server
	toKubelet tls.Certificate // the API server as a client of kubelets
	// kubeletClientCA vouches for toKubelet, before kubelets alone.
	kubeletClientCA *pki.Authority
	proxyCA         *pki.Authority  // vouches for the API server when it passes requests on
	toOthers        tls.Certificate // the API server as a client of aggregated servers
	tokens          crypto.Signer
	clients         *x509.CertPool // vouches for clients
	clientCA        []byte         // what --client-ca-file holds
	serving         *options.Certificates
	adminPair       pki.Pair
	agentPairs      map[string]pki.Pair // by file name, for roles run as processes of their own
}

// ownName is a name of the API server that nobody else has.
const ownName = "keelson"

// openKeys makes what is missing of what can be made again, and of a new cluster everything.
func openKeys(cfg Config, dir DataDir) (*keys, error) {
	ids, err := openIdentities(dir)
	if err != nil {
		return nil, err
	}
	k, err := ids.open(cfg)
	if err != nil {
		return nil, err
	}
	return k, ids.remember()
}

// open opens the identities and the certificates that rest on them.
func (i *identities) open(cfg Config) (*keys, error) {
	ca, err := i.authority("ca")
	if err != nil {
		return nil, err
	}
	ranges, err := cfg.Services.Ranges()
	if err != nil {
		return nil, err
	}
	k := &keys{ca: ca, agentPairs: map[string]pki.Pair{}}
	if k.server, err = serverCert(ca, "apiserver", pki.Subject{
		Name: "kube-apiserver",
		DNS: []string{
			"localhost", ownName, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", cfg.NodeName,
		},
		IPs: servingAddresses(cfg, union(cfg.keptServices, ranges)),
	}); err != nil {
		return nil, err
	}
	if k.kubelet, err = serverCert(ca, "kubelet-server", pki.Subject{
		Name: "system:node:" + cfg.NodeName, Groups: []string{auth.Nodes}, DNS: []string{cfg.NodeName, "localhost"},
		IPs: append([]net.IP{net.IPv4(127, 0, 0, 1)}, netIPs(nodeIPs(cfg))...),
	}); err != nil {
		return nil, err
	}
	if k.adminPair, err = ca.Client("admin", pki.Subject{Name: "admin", Groups: []string{auth.Masters}}); err != nil {
		return nil, err
	}
	if err := k.openKubeletClient(i); err != nil {
		return nil, err
	}
	if err := k.openProxy(i); err != nil {
		return nil, err
	}
	if i.dir != "" { // without files nothing runs as a process of its own
		if err := k.openAgents(cfg); err != nil {
			return nil, err
		}
	}
	if k.tokens, err = cfg.API.Tokens.Signer(i.tokenKey); err != nil {
		return nil, err
	}
	k.clients = ca.Pool()
	if file := cfg.API.Authentication.ClientCAFile; file != "" {
		if k.clientCA, err = pki.ReadAuthorities(file, "--client-ca-file"); err != nil {
			return nil, err
		}
		k.clients.AppendCertsFromPEM(k.clientCA)
	}
	if k.serving, err = options.NewCertificates(k.server, cfg.API.Serving); err != nil {
		return nil, err
	}
	k.serving.SetClientCAs("clients", slices.Concat(ca.CertPEM(), k.clientCA))
	return k, nil
}

// openAgents makes the client certificates of roles that may run as processes of their own.
func (k *keys) openAgents(cfg Config) (err error) {
	for _, r := range table() {
		if r.file == "" {
			continue
		}
		u := r.user(cfg)
		groups := slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return g == auth.Authenticated })
		if k.agentPairs[r.file], err = k.ca.Client(r.file, pki.Subject{Name: u.Name, Groups: groups}); err != nil {
			return err
		}
	}
	return nil
}

const frontProxyUser = "front-proxy-client"

// openProxy makes the authority and the certificate by which aggregated servers know that a request comes from this one. They are
// apart from the cluster's own: who holds such a certificate may name any user.
func (k *keys) openProxy(ids *identities) error {
	var err error
	if k.proxyCA, err = ids.authority("front-proxy-ca"); err != nil {
		return err
	}
	pair, err := k.proxyCA.Client("front-proxy-client", pki.Subject{Name: frontProxyUser})
	if err != nil {
		return err
	}
	if k.toOthers, err = pair.TLS(); err != nil {
		return fmt.Errorf("certificate for aggregated servers: %w", err)
	}
	return nil
}

// authenticationInfoName is the ConfigMap in kube-system by which servers that belong to the cluster know their callers.
const authenticationInfoName = "extension-apiserver-authentication"

// authenticationInfo tells aggregated servers how to know their callers, where Kubernetes has told them.
func (k *keys) authenticationInfo() *corev1.ConfigMap {
	cm := &corev1.ConfigMap{}
	cm.Namespace, cm.Name = "kube-system", authenticationInfoName
	cm.Data = map[string]string{
		"client-ca-file":                     string(k.ca.CertPEM()) + string(k.clientCA),
		"requestheader-client-ca-file":       string(k.proxyCA.CertPEM()),
		"requestheader-allowed-names":        `["` + frontProxyUser + `"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	return cm
}

func serverCert(ca *pki.Authority, name string, s pki.Subject) (tls.Certificate, error) {
	pair, err := ca.Server(name, s)
	if err != nil {
		return tls.Certificate{}, err
	}
	c, err := pair.TLS()
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s: %w", name, err)
	}
	return c, nil
}

// firstOf is the first usable address of a range: the service "kubernetes", the bridge.
func firstOf(p netip.Prefix) net.IP { return p.Masked().Addr().Next().AsSlice() }

// writeKubeconfigs writes the administrator's kubeconfig, and one for each agent below pki/.
func (k *keys) writeKubeconfigs(dir DataDir, url string) error {
	write := func(path, user string, p pki.Pair, save func(string, []byte) error) error {
		name := ""
		if !k.serving.Own() {
			name = ownName // so that the server shows its own certificate
		}
		b, err := pki.Kubeconfig(user, url, name, k.ca.CertPEM(), p)
		if err != nil {
			return err
		}
		return save(path, b)
	}
	if err := write(dir.Kubeconfig(), "keelson", k.adminPair, pki.RefreshKubeconfig); err != nil {
		return err
	}
	for file, p := range k.agentPairs {
		if err := write(dir.Sub("pki/"+file+".kubeconfig"), file, p, writeIfChanged); err != nil {
			return err
		}
	}
	return nil
}
