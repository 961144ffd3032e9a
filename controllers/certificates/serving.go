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

// serverPermission is the subresource of the permission for kubelet serving certificates: a node with it gets one for
// itself only.
const serverPermission = "selfnodeserver"

// servingNodeOf returns the node that requests a serving certificate for itself; "" for other requests.
func servingNodeOf(csr *certv1.CertificateSigningRequest) string {
	if csr.Spec.SignerName != certv1.KubeletServingSignerName || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		return ""
	}
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil || kubeletServing(req, csr.Spec.Usages) != nil || req.Subject.CommonName != csr.Spec.Username {
		return ""
	}
	return strings.TrimPrefix(csr.Spec.Username, nodePrefix)
}

// otherAddresses are the names and addresses that a node's certificate must not contain.
type otherAddresses struct {
	node       *corev1.Node
	otherNodes []corev1.Node
	// apiServers are the addresses of the API server and of its Service.
	apiServers []netip.Addr
}

// mayServe is why a node may not have the requested certificate; nil: it may. A node sets its own addresses, so they
// only count if no other node, the API server or the loopback interface has them.
func mayServe(csr *certv1.CertificateSigningRequest, others otherAddresses) error {
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil {
		return err
	}
	name := others.node.Name
	switch first, _, _ := strings.Cut(name, "."); first {
	case "kubernetes", "keelson", "localhost":
		return fmt.Errorf("the name %s is the API server's", name)
	}
	for _, dns := range req.DNSNames {
		if dns != name {
			return fmt.Errorf("the name %q is not the node's", dns)
		}
	}
	own := addresses(others.node)
	for _, text := range req.IPAddresses {
		ip, ok := netip.AddrFromSlice(text)
		ip = ip.Unmap()
		switch {
		case !ok || !slices.Contains(own, ip):
			return fmt.Errorf("the address %s is not one of the node's", text)
		case ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
			return fmt.Errorf("the address %s is every machine's", ip)
		case slices.Contains(others.apiServers, ip):
			return fmt.Errorf("the address %s is the API server's", ip)
		}
		for i := range others.otherNodes {
			if others.otherNodes[i].Name != name && slices.Contains(addresses(&others.otherNodes[i]), ip) {
				return fmt.Errorf("the address %s is node %s's, too", ip, others.otherNodes[i].Name)
			}
		}
	}
	return nil
}

func addresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil &&
			(a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// readOtherAddresses reads the input of mayServe. missing means that the node has no addresses yet.
func (c *Controller) readOtherAddresses(
	ctx context.Context, name string,
) (others otherAddresses, missing bool, err error) {
	nodes, err := c.env.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return others, false, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name == name {
			others.node = &nodes.Items[i]
		}
	}
	others.otherNodes = nodes.Items
	service, err := c.env.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return others, false, fmt.Errorf("read service kubernetes: %w", err)
	}
	if err == nil {
		for _, text := range service.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil {
				others.apiServers = append(others.apiServers, ip)
			}
		}
	}
	slice, err := c.env.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return others, false, fmt.Errorf("read endpoints of kubernetes: %w", err)
	}
	if err == nil {
		for _, e := range slice.Endpoints {
			if ip, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				others.apiServers = append(others.apiServers, ip)
			}
		}
	}
	return others, others.node == nil || len(addresses(others.node)) == 0, nil
}

// addressWait is how long after the request of a new node to wait for its addresses, checking every second.
const addressWait = time.Minute

// mayHaveServing reports whether a node may have the requested serving certificate. If not, an administrator must
// decide, and a line is logged.
func (c *Controller) mayHaveServing(
	ctx context.Context, csr *certv1.CertificateSigningRequest, node string,
) (bool, error) {
	at, missing, err := c.readOtherAddresses(ctx, node)
	if err != nil {
		return false, err
	}
	if missing {
		requeueAfter := recheckInterval
		if time.Since(csr.CreationTimestamp.Time) < addressWait {
			requeueAfter = time.Second
		}
		c.requeueAfter(csr, requeueAfter)
		return false, nil
	}
	if err := mayServe(csr, at); err != nil {
		c.env.Log.Warn("serving certificate of a node waits for kubectl certificate approve", "request", csr.Name,
			"node", node, "why", err)
		return false, nil
	}
	return true, nil
}
