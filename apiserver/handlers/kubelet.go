// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
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
)

// addressOrder is the order of preference of a node's address types.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS,
}

// kubeletPort is the kubelet's default port.
const kubeletPort = 10250

func (h *Handler) node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := h.object(ctx, "nodes", "", name)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("node %s is a %T", name, obj))
	}
	return node, nil
}

// kubeletURL is the URL of a node's kubelet for the kubelet transport: its host is the node's name, not an address.
func (h *Handler) kubeletURL(ctx context.Context, name string) (*url.URL, error) {
	node, err := h.node(ctx, name)
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

// Kubelet requests a document from a node's kubelet for the server itself: it needs no share of the node's tunnel.
func (h *Handler) Kubelet(ctx context.Context, node string, path ...string) (*http.Response, error) {
	base, err := h.kubeletURL(ctx, node)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path...).String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	return h.connect.kubelets.RoundTrip(req)
}

// nodeAddress is the address of a node.
func (h *Handler) nodeAddress(ctx context.Context, name string) (string, error) {
	node, err := h.node(ctx, name)
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

// CloseIdle closes idle connections to kubelets and pods.
func (h *Handler) CloseIdle() {
	for _, t := range []*http.Transport{h.connect.kubelets, h.connect.pods} {
		t.CloseIdleConnections()
	}
}
