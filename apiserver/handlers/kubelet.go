// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/api/metrics"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/lib/connlimit"
)

// addressOrder is the order of preference of a node's address types.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS,
}

// kubeletPort is the kubelet's default port.
const kubeletPort = 10250

// kubelets connects to the kubelets of nodes.
type kubelets struct {
	finder    *finder
	transport *http.Transport
	// enterTunnel is Config.EnterTunnel; nil: tunnels have no limits.
	enterTunnel func(node string, owner connlimit.Owner) (leave func(), ok bool)
}

func newKubelets(
	finder *finder, certificate func() *tls.Config, egress *outbound.Egress, tunnel outbound.TunnelDialer,
	enterTunnel func(node string, owner connlimit.Owner) (leave func(), ok bool),
) *kubelets {
	k := &kubelets{finder: finder, enterTunnel: enterTunnel}
	k.transport = egress.NodeTransport(certificate, k.address, tunnel)
	return k
}

// url is the URL of a node's kubelet for the kubelet transport: its host is the node's name, not an address.
func (k *kubelets) url(ctx context.Context, name string) (*url.URL, error) {
	node, err := k.finder.node(ctx, name)
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
		port = kubeletPort
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(node.Name, strconv.Itoa(int(port))), Path: "/"}, nil
}

// get requests a document from a node's kubelet for the server itself: it needs no share of the node's tunnel.
func (k *kubelets) get(ctx context.Context, node string, path ...string) (*http.Response, error) {
	base, err := k.url(ctx, node)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path...).String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	return k.transport.RoundTrip(req)
}

// address is the address of a node.
func (k *kubelets) address(ctx context.Context, name string) (string, error) {
	node, err := k.finder.node(ctx, name)
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

// notAllowed is the client's error if the server refused to connect to an address; nil for other errors.
func notAllowed(err error) error {
	if refused, ok := errors.AsType[*outbound.RefusedError](err); ok {
		return apierrors.NewBadRequest(refused.Error())
	}
	return nil
}

// target is the URL of a request to a node's kubelet, which gets a place in the node's tunnel until it ends.
func (k *kubelets) target(
	ctx context.Context, rq *pipeline.Request, node string, path []string, query url.Values,
) (*url.URL, error) {
	base, err := k.url(ctx, node)
	if err != nil {
		return nil, err
	}
	if err := k.enter(rq, node); err != nil {
		return nil, err
	}
	target := base.JoinPath(path...)
	target.RawQuery = query.Encode()
	return target, nil
}

// enter takes a place in a node's tunnel, which the request gives back when it ends.
func (k *kubelets) enter(rq *pipeline.Request, node string) error {
	if k.enterTunnel == nil {
		return nil
	}
	leave, ok := k.enterTunnel(node, rq.Owner())
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("node %s has a tunnel, and your share of connections is "+
			"taken: end other exec, logs, port-forward or proxy requests", node), 1)
	}
	rq.OnEnd(leave)
	return nil
}
