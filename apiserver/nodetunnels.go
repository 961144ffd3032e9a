// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
	"keelson/apiserver/access"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/tunnels"
	"keelson/auth/authz"
)

var nodesGVR = corev1.SchemeGroupVersion.WithResource("nodes")

// newTunnels accepts the connections that nodes open so that this server can reach their kubelets
// (docs/decisions/0092).
func newTunnels(reader *access.Reader, log *slog.Logger) *tunnels.Tunnels {
	return tunnels.New(tunnels.Config{
		Caller: tunnelNode,
		Exists: func(ctx context.Context, node string) (bool, error) {
			_, err := reader.Get(ctx, nodesGVR, "", node)
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		},
		Log: log,
	})
}

// closeTunnels ends the tunnels of deleted nodes.
func closeTunnels(opened *tunnels.Tunnels) access.EventHandler {
	return access.EventHandler{
		Resource: nodesGVR,
		Set:      func(runtime.Object) {},
		Remove: func(obj runtime.Object) {
			if o, ok := obj.(kind.Object); ok {
				opened.CloseNode(o.GetName())
			}
		},
	}
}

// tunnelNode is the node in a request's client certificate. An impersonated node is rejected.
func tunnelNode(r *http.Request) (string, error) {
	rq := pipeline.From(r.Context())
	if rq == nil || rq.User == nil {
		return "", errors.New("only nodes open tunnels")
	}
	node, ok := authz.NodeName(rq.User)
	switch {
	case !ok:
		return "", fmt.Errorf("only nodes open tunnels, and %q is none", rq.User.Name)
	case r.TLS == nil || len(r.TLS.PeerCertificates) == 0 ||
		r.TLS.PeerCertificates[0].Subject.CommonName != rq.User.Name:
		return "", errors.New("a tunnel is opened with the node's own client certificate")
	}
	return node, nil
}
