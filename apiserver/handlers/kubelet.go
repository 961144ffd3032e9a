// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Kubelet says how nodes' own servers are reached.
type Kubelet struct {
	// TLS holds the server's client certificate and the authority of kubelets; nil: kubelets cannot be reached.
	TLS *tls.Config
	// Dial opens connections to nodes and pods; nil: directly.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// transport speaks HTTP/1.1, which upgrades need.
func (k Kubelet) transport(insecure bool) *http.Transport {
	t := &http.Transport{
		DialContext: k.Dial, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
	}
	if t.DialContext == nil {
		d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
		t.DialContext = d.DialContext
	}
	if insecure {
		// What runs in a pod or behind a service has a certificate that nobody here can check; Kubernetes' proxy does not either.
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // see above
	} else if k.TLS != nil {
		t.TLSClientConfig = k.TLS.Clone()
	}
	return t
}

// addressOrder is where kubelets are looked for first.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS,
}

// kubeletURL is the kubelet's server on a node.
func (h *Handler) kubeletURL(ctx context.Context, name string) (*url.URL, error) {
	obj, err := h.object(ctx, "nodes", "", name)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("node %s is a %T", name, obj))
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = 10250
	}
	for _, t := range addressOrder {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(int(port))), Path: "/"}, nil
			}
		}
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v", node.Status.Addresses))
}
