// SPDX-License-Identifier: Apache-2.0

package cluster

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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/auth"
	"keelson/cluster/credentials"
	"keelson/kubelet/node"
	"keelson/pki"
)

// The names of bootstrap token objects and of their RBAC are kubeadm's (docs/decisions/0091).
const (
	tokenPrefix  = "bootstrap-token-"
	joiners      = "system:bootstrappers:kubeadm:default-node-token"
	clusterInfo  = "cluster-info"
	infoFile     = "kubeconfig"
	signatureOf  = "jws-kubeconfig-"
	requestsRole = "system:certificates.k8s.io:certificatesigningrequests:"
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

// publishClusterInfo creates the ConfigMap cluster-info, which machines read before they trust the cluster, and the
// RBAC of a join.
func publishClusterInfo(ctx context.Context, cl kubernetes.Interface, server string, ca []byte) error {
	c := clientcmdapi.NewConfig()
	c.Clusters[""] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	b, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write %s: %w", clusterInfo, err)
	}
	infos := cl.CoreV1().ConfigMaps(metav1.NamespacePublic)
	for {
		cm, err := infos.Get(ctx, clusterInfo, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			cm = &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespacePublic,
					Name:      clusterInfo,
				},
				Data: map[string]string{infoFile: string(b)},
			}
			_, err = infos.Create(ctx, cm, metav1.CreateOptions{})
		case err == nil && cm.Data[infoFile] != string(b):
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
			cm.Data[infoFile] = string(b)
			_, err = infos.Update(ctx, cm, metav1.UpdateOptions{})
		}
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s/%s: %w", metav1.NamespacePublic, clusterInfo, err)
		}
		break
	}
	return grantJoin(ctx, cl)
}

// refreshClusterInfo puts the current CA bundle into cluster-info, if that has an earlier one of this CA. A controller
// signs it again.
func refreshClusterInfo(ctx context.Context, cl kubernetes.Interface, ca *pki.Authority) error {
	infos := cl.CoreV1().ConfigMaps(metav1.NamespacePublic)
	cm, err := infos.Get(ctx, clusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // nobody joins by token
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", clusterInfo, err)
	}
	file, err := clientcmd.Load([]byte(cm.Data[infoFile]))
	if err != nil {
		return nil //nolint:nilerr // somebody else's
	}
	changed := false
	for _, of := range file.Clusters {
		have := of.CertificateAuthorityData
		if !bytes.Equal(have, ca.CertPEM()) && pki.ShareAuthority(have, slices.Concat(ca.CertPEM(), ca.RetiredPEM())) {
			of.CertificateAuthorityData = ca.CertPEM()
			changed = true
		}
	}
	if !changed {
		return nil
	}
	b, err := clientcmd.Write(*file)
	if err != nil {
		return fmt.Errorf("write %s: %w", clusterInfo, err)
	}
	cm = cm.DeepCopy()
	cm.Data[infoFile] = string(b)
	if _, err = infos.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write %s/%s: %w", metav1.NamespacePublic, clusterInfo, err)
	}
	return nil
}

// grantJoin lets anonymous users read cluster-info, bootstrap tokens request a node's certificate, and nodes renew
// theirs.
func grantJoin(ctx context.Context, cl kubernetes.Interface) error {
	const reader, nodesReader, serving = "kubeadm:bootstrap-signer-clusterinfo", "kubeadm:get-nodes",
		"keelson:serving-certificates"
	there := func(err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: reader},
		Rules: []rbacv1.PolicyRule{{
			APIGroups:     []string{""},
			Resources:     []string{"configmaps"},
			ResourceNames: []string{clusterInfo},
			Verbs:         []string{"get"},
		}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: reader},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
	}
	_, err := cl.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{})
	_, err2 := cl.RbacV1().RoleBindings(role.Namespace).Create(ctx, binding, metav1.CreateOptions{})
	errs := []error{there(err), there(err2)}
	for _, clusterRole := range []*rbacv1.ClusterRole{
		{
			ObjectMeta: metav1.ObjectMeta{Name: nodesReader},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: serving},
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{"certificates.k8s.io"},
					Resources: []string{"certificatesigningrequests/selfnodeserver"},
					Verbs:     []string{"create"},
				},
			},
		},
	} {
		_, err := cl.RbacV1().ClusterRoles().Create(ctx, clusterRole, metav1.CreateOptions{})
		errs = append(errs, there(err))
	}
	for _, b := range [][3]string{
		{"kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joiners},
		{"kubeadm:node-autoapprove-bootstrap", requestsRole + "nodeclient", joiners},
		{"kubeadm:node-autoapprove-certificate-rotation", requestsRole + "selfnodeclient", auth.Nodes},
		{nodesReader, nodesReader, joiners},
		{serving, serving, auth.Nodes},
	} {
		_, err := cl.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b[0]},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b[1]},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: b[2]}},
		}, metav1.CreateOptions{})
		errs = append(errs, there(err))
	}
	return errors.Join(errs...)
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

// RemoveNode deletes a node, its lease and its certificate requests. Its certificates are invalid from then on
// (removedNodeCheck), as are the tokens of the roles beside its kubelet. A Keelson kubelet that still runs ends the
// node's pods.
func RemoveNode(ctx context.Context, to *rest.Config, name string) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	leaves := []byte(`{"metadata":{"annotations":{"` + node.AnnotationRemoved + `":"true"}}}`)
	if _, err := cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
		if err := recordRemoved(ctx, cl, name, time.Now()); err != nil {
			return err
		}
	}
	if _, err = cl.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, leaves, metav1.PatchOptions{}); err == nil {
		err = cl.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no node %q: `keelson kubectl get nodes` lists them", name)
	}
	if err != nil {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	errs := []error{cl.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})}
	list, err := cl.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	errs = append(errs, err)
	if err == nil {
		for i := range list.Items {
			if list.Items[i].Spec.Username == "system:node:"+name {
				errs = append(errs, cl.CertificatesV1().CertificateSigningRequests().Delete(ctx, list.Items[i].Name,
					metav1.DeleteOptions{}))
			}
		}
	}
	for i, err := range errs {
		if apierrors.IsNotFound(err) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
