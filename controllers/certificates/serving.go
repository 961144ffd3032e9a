// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/pki"
)

// serverPermission is the subresource of the permission for kubelet serving certificates: a node with it gets one for itself only.
const serverPermission = "selfnodeserver"

// asServer returns the node that requests a serving certificate for itself; "" for other requests.
func asServer(csr *certv1.CertificateSigningRequest) string {
	if csr.Spec.SignerName != certv1.KubeletServingSignerName || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		return ""
	}
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil || kubeletServing(req, csr.Spec.Usages) != nil || req.Subject.CommonName != csr.Spec.Username {
		return ""
	}
	return strings.TrimPrefix(csr.Spec.Username, nodePrefix)
}

// surroundings are the names and addresses that a node's certificate must not contain.
type surroundings struct {
	node   *corev1.Node
	others []corev1.Node
	// servers are the addresses of the API server and of its Service.
	servers []netip.Addr
}

// mayServe is why a node may not have the requested certificate; nil: it may. A node sets its own addresses, so they only count if no other
// node, the API server or the loopback interface has them.
func mayServe(csr *certv1.CertificateSigningRequest, at surroundings) error {
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil {
		return err
	}
	name := at.node.Name
	switch first, _, _ := strings.Cut(name, "."); first {
	case "kubernetes", "keelson", "localhost":
		return fmt.Errorf("the name %s is the API server's", name)
	}
	for _, dns := range req.DNSNames {
		if dns != name {
			return fmt.Errorf("the name %q is not the node's", dns)
		}
	}
	own := addresses(at.node)
	for _, text := range req.IPAddresses {
		ip, ok := netip.AddrFromSlice(text)
		ip = ip.Unmap()
		switch {
		case !ok || !slices.Contains(own, ip):
			return fmt.Errorf("the address %s is not one of the node's", text)
		case ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
			return fmt.Errorf("the address %s is every machine's", ip)
		case slices.Contains(at.servers, ip):
			return fmt.Errorf("the address %s is the API server's", ip)
		}
		for i := range at.others {
			if at.others[i].Name != name && slices.Contains(addresses(&at.others[i]), ip) {
				return fmt.Errorf("the address %s is node %s's, too", ip, at.others[i].Name)
			}
		}
	}
	return nil
}

func addresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// look reads the input of mayServe. missing means that the node has no addresses yet.
func (c *Controller) look(ctx context.Context, name string) (at surroundings, missing bool, err error) {
	nodes, err := c.env.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return at, false, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name == name {
			at.node = &nodes.Items[i]
		}
	}
	at.others = nodes.Items
	service, err := c.env.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return at, false, fmt.Errorf("read service kubernetes: %w", err)
	}
	if err == nil {
		for _, text := range service.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil {
				at.servers = append(at.servers, ip)
			}
		}
	}
	slice, err := c.env.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return at, false, fmt.Errorf("read endpoints of kubernetes: %w", err)
	}
	if err == nil {
		for _, e := range slice.Endpoints {
			if ip, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				at.servers = append(at.servers, ip)
			}
		}
	}
	return at, at.node == nil || len(addresses(at.node)) == 0, nil
}

// soon is how long after the request of a new node to wait for its addresses, checking every second.
const soon = time.Minute

// serves reports whether a node may have the requested serving certificate. If not, an administrator must decide, and a line is logged.
func (c *Controller) serves(ctx context.Context, csr *certv1.CertificateSigningRequest, node string) (bool, error) {
	at, missing, err := c.look(ctx, node)
	if err != nil {
		return false, err
	}
	if missing {
		again := askAgain
		if time.Since(csr.CreationTimestamp.Time) < soon {
			again = time.Second
		}
		c.again(csr, again)
		return false, nil
	}
	if err := mayServe(csr, at); err != nil {
		c.env.Log.Warn("serving certificate of a node waits for kubectl certificate approve", "request", csr.Name, "node", node, "why", err)
		return false, nil
	}
	return true, nil
}
