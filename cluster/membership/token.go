// SPDX-License-Identifier: Apache-2.0

// Package membership is how machines become nodes of a cluster and leave it: bootstrap tokens and the ConfigMap
// cluster-info on the server's side, the verified discovery of a server on the machine's, and the record of nodes that
// were removed. It knows a cluster by its API and a machine by its data directory; it runs no role.
package membership

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/cluster/credentials"
	"keelson/pki"
)

// The names of bootstrap token objects and of their RBAC are kubeadm's (docs/decisions/0091).
const (
	tokenPrefix = "bootstrap-token-"
	joiners     = "system:bootstrappers:kubeadm:default-node-token"
)

// TokenRequest asks for a bootstrap token.
type TokenRequest struct {
	// TTL is its lifetime; 0: it does not expire.
	TTL time.Duration
	// Server is the API's URL for other machines, https://HOST:PORT; empty: the endpoint of the Service kubernetes.
	Server      string
	Description string
}

// Invitation is what a machine needs to join.
type Invitation struct {
	Token, Server string
	CAHash        []string
}

// Command is the join command.
func (i Invitation) Command() string {
	return fmt.Sprintf("keelson join %s --token %s --ca-hash %s", i.Server, i.Token, strings.Join(i.CAHash, ","))
}

// CreateToken creates a bootstrap token, and the ConfigMap and RBAC for joining where they are missing.
func CreateToken(ctx context.Context, to *rest.Config, tokenRequest TokenRequest) (Invitation, error) {
	var none Invitation
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return none, err
	}
	ca, err := credentials.RootCA(to)
	if err != nil {
		return none, err
	}
	inv := Invitation{Server: tokenRequest.Server}
	if inv.CAHash, err = hashesOf(ca); err != nil {
		return none, err
	}
	if inv.Server == "" {
		if inv.Server, err = externalServer(ctx, cl, to); err != nil {
			return none, err
		}
	}
	if err := publishClusterInfo(ctx, cl, inv.Server, ca); err != nil {
		return none, err
	}
	id := randomText(6)
	secret := randomText(16)
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: tokenPrefix + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id":                       id,
			"token-secret":                   secret,
			"usage-bootstrap-authentication": "true",
			"usage-bootstrap-signing":        "true",
			"auth-extra-groups":              joiners,
		},
	}
	if tokenRequest.Description != "" {
		s.StringData["description"] = tokenRequest.Description
	}
	if tokenRequest.TTL > 0 {
		s.StringData["expiration"] = time.Now().Add(tokenRequest.TTL).UTC().Format(time.RFC3339)
	}
	if _, err := cl.CoreV1().Secrets(s.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return none, fmt.Errorf("create token: %w", err)
	}
	inv.Token = id + "." + secret
	return inv, nil
}

// randomText returns n random letters and digits.
func randomText(n int) string {
	const from = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	for i := range b {
		k, _ := rand.Int(rand.Reader, big.NewInt(int64(len(from)))) // crypto/rand does not fail
		b[i] = from[k.Int64()]
	}
	return string(b)
}

// hashesOf returns the hashes of the public keys of the CAs in pem.
func hashesOf(ca []byte) ([]string, error) {
	certs, err := certificatesOf(ca)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range certs {
		h, err := pki.Fingerprint(c.PublicKey)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

func certificatesOf(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("certificate authority: there is no certificate")
	}
	return out, nil
}

// externalServer is the server's URL for other machines: the kubeconfig's if it has a name or is one of the addresses
// that the servers advertise, else the first of those, else the kubeconfig's if that is not local to this machine.
func externalServer(ctx context.Context, cl kubernetes.Interface, to *rest.Config) (string, error) {
	u, err := url.Parse(to.Host)
	if err != nil {
		return "", fmt.Errorf("address of the server: %w", err)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	isName := err != nil && u.Hostname() != "localhost"
	if isName {
		return "https://" + u.Host, nil
	}
	advertised, err := advertisedServers(ctx, cl)
	if err != nil {
		return "", err
	}
	switch {
	case slices.Contains(advertised, u.Host):
		return "https://" + u.Host, nil
	case len(advertised) > 0:
		return "https://" + advertised[0], nil
	case ip.IsValid() && !ip.IsLoopback():
		return "https://" + u.Host, nil
	}
	return "", errors.New("other machines do not reach the API: start the server with --bind-address=0.0.0.0 (or one " +
		"of this machine's addresses), or say by --server https://HOST:PORT how they do")
}

// advertisedServers are the endpoints of the Service kubernetes that machines outside the cluster may reach.
func advertisedServers(ctx context.Context, cl kubernetes.Interface) ([]string, error) {
	nodes, err := cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	list, err := cl.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		return nil, fmt.Errorf("find the server's address: %w", err)
	}
	var out []string
	for i := range list.Items {
		slice := &list.Items[i]
		if len(slice.Ports) != 1 || slice.Ports[0].Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if ip, err := netip.ParseAddr(e.Addresses[0]); err == nil && !inPodCIDR(nodes.Items, ip) {
				out = append(out, net.JoinHostPort(ip.String(), fmt.Sprint(*slice.Ports[0].Port)))
			}
		}
	}
	return out, nil
}

// inPodCIDR reports whether an address is in a node's pod CIDR. Other machines do not reach it before they have joined.
func inPodCIDR(nodes []corev1.Node, ip netip.Addr) bool {
	for i := range nodes {
		for _, text := range append(nodes[i].Spec.PodCIDRs, nodes[i].Spec.PodCIDR) {
			if p, err := netip.ParsePrefix(text); err == nil && p.Contains(ip) {
				return true
			}
		}
	}
	return false
}

// Token describes a bootstrap token without its secret.
type Token struct {
	ID, Description string
	Expires         time.Time // zero: never
}

// ListTokens lists all bootstrap tokens.
func ListTokens(ctx context.Context, to *rest.Config) ([]Token, error) {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, err
	}
	list, err := cl.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	var out []Token
	for i := range list.Items {
		d := list.Items[i].Data
		t := Token{ID: string(d["token-id"]), Description: string(bytes.TrimSpace(d["description"]))}
		t.Expires, _ = time.Parse(time.RFC3339, string(d["expiration"])) // no expiration: the zero time
		out = append(out, t)
	}
	return out, nil
}

// DeleteToken deletes a token, given its ID or the whole token.
func DeleteToken(ctx context.Context, to *rest.Config, token string) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	id, _, _ := strings.Cut(token, ".")
	err = cl.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, tokenPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %q", id)
	}
	return err
}
