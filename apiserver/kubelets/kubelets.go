// SPDX-License-Identifier: Apache-2.0

// Package kubelets calls the kubelets of nodes: by the tunnel that a node has opened, or at its address. handlers uses
// it for logs, exec and port-forward, usage for metrics. It decides nothing about the rights of users.
package kubelets

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/metrics"
	"keelson/apiserver/outbound"
	"keelson/apiserver/tunnels"
	"keelson/lib/connlimit"
)

// addressOrder is the order of preference of a node's address types.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS,
}

// defaultPort is the kubelet's default port.
const defaultPort = 10250

var nodes = corev1.SchemeGroupVersion.WithResource("nodes")

// Reader reads the stored state of an object.
type Reader interface {
	GetLatest(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
}

// Kubelets calls kubelets. It is safe for concurrent use.
type Kubelets struct {
	reader    Reader
	tunnels   *tunnels.Tunnels
	transport *http.Transport
}

// New returns the kubelets of the nodes that reader has. conf returns the client certificate for them and the CAs of
// their certificates, for each connection; nil: they cannot be called.
func New(
	reader Reader, egress *outbound.Egress, opened *tunnels.Tunnels, conf func() *tls.Config,
) *Kubelets {
	kubelets := &Kubelets{reader: reader, tunnels: opened}
	kubelets.transport = egress.NodeTransport(conf, kubelets.Address, opened.Dial)
	return kubelets
}

// Node returns a node as it is stored.
func (k *Kubelets) Node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := k.reader.GetLatest(ctx, nodes, "", name)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("node %s is a %T", name, obj))
	}
	return node, nil
}

// URL is the URL of a node's kubelet for Transport: its host is the node's name, not an address.
func (k *Kubelets) URL(ctx context.Context, name string) (*url.URL, error) {
	node, err := k.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	if metrics.Fake(node) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"node %s is simulated: its pods run in name only, so they have no logs, no processes to exec into or "+
				"attach to, and no ports to forward", name))
	}
	if _, err := addressOf(node); err != nil {
		return nil, err
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = defaultPort
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(node.Name, strconv.Itoa(int(port))), Path: "/"}, nil
}

// Get requests a document from a node's kubelet for the server itself: it needs no share of the node's tunnel.
func (k *Kubelets) Get(ctx context.Context, node string, path ...string) (*http.Response, error) {
	base, err := k.URL(ctx, node)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path...).String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	return k.transport.RoundTrip(req)
}

// Certificate returns the certificate that a node's kubelet serves with at the moment.
func (k *Kubelets) Certificate(ctx context.Context, node string) (*x509.Certificate, error) {
	base, err := k.URL(ctx, node)
	if err != nil {
		return nil, err
	}
	conn, err := k.transport.DialTLSContext(ctx, "tcp", base.Host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	encrypted, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok { // cannot happen: outbound returns such connections
		return nil, fmt.Errorf("the connection to node %s is a %T", node, conn)
	}
	return encrypted.ConnectionState().PeerCertificates[0], nil
}

// Transport is for the URLs of URL.
func (k *Kubelets) Transport() *http.Transport { return k.transport }

// CloseIdle closes idle connections.
func (k *Kubelets) CloseIdle() { k.transport.CloseIdleConnections() }

// Enter takes a place in a node's tunnel for a request of owner; false: the owner has its share.
func (k *Kubelets) Enter(node string, owner connlimit.Owner) (leave func(), ok bool) {
	return k.tunnels.Enter(node, owner)
}

// Address is the address of a node.
func (k *Kubelets) Address(ctx context.Context, name string) (string, error) {
	node, err := k.Node(ctx, name)
	if err != nil {
		return "", err
	}
	return addressOf(node)
}

func addressOf(node *corev1.Node) (string, error) {
	for _, t := range addressOrder {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v",
		node.Status.Addresses))
}
