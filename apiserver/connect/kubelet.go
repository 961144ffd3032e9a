// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/kubelets"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
)

// nodes connects requests to the kubelets of nodes.
type nodes struct{ *kubelets.Kubelets }

// notAllowed is the client's error if the server refused to connect to an address; nil for other errors.
func notAllowed(err error) error {
	if refused, ok := errors.AsType[*outbound.RefusedError](err); ok {
		return apierrors.NewBadRequest(refused.Error())
	}
	return nil
}

// target is the URL of a request to a node's kubelet, which gets a place in the node's tunnel until it ends.
func (n nodes) target(
	ctx context.Context, rq *pipeline.Request, node string, path []string, query url.Values,
) (*url.URL, error) {
	base, err := n.URL(ctx, node)
	if err != nil {
		return nil, err
	}
	if err := n.enter(rq, node); err != nil {
		return nil, err
	}
	target := base.JoinPath(path...)
	target.RawQuery = query.Encode()
	return target, nil
}

// enter takes a place in a node's tunnel, which the request gives back when it ends.
func (n nodes) enter(rq *pipeline.Request, node string) error {
	leave, ok := n.Enter(node, rq.Owner())
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("node %s has a tunnel, and your share of connections is "+
			"taken: end other exec, logs, port-forward or proxy requests", node), 1)
	}
	rq.OnEnd(leave)
	return nil
}

// websockets reports whether a node's kubelet takes the websockets of clients as they are. For the others the server
// translates them.
func (n nodes) websockets(ctx context.Context, name string) bool {
	node, err := n.Node(ctx, name)
	return err == nil && slices.Contains(node.Status.DeclaredFeatures, "ExtendWebSocketsToKubelet")
}
