// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"keelson/client"
	"keelson/kubelet"
)

// How long a node of its own process waits for its ranges, at its first start: one that joins waits for the server's node IPAM controller,
// another may belong to a cluster that has none.
const (
	joinRangeWait = 30 * time.Second
	ownRangeWait  = 3 * time.Second
)

// askPodCIDRs are the ranges of a node in a process of its own: those it was told, or had before, or those that the cluster gives the
// node, or one of its own. From then on the directory has them: the next start needs no server.
func askPodCIDRs(ctx context.Context, cfg Config, dir DataDir, cl *client.Client, wait time.Duration) ([]netip.Prefix, io.Closer, error) {
	have, err := rememberedPodCIDRs(dir)
	if err != nil {
		return nil, nil, err
	}
	if len(cfg.PodCIDRs) == 0 && len(have) == 0 {
		given, err := givenPodCIDRs(ctx, cfg, cl, wait)
		if err != nil && (wait != ownRangeWait || ctx.Err() != nil) { // where the server is away, a node that does not join brings its own
			return nil, nil, err
		}
		if len(given) > 0 {
			if err := rememberPodCIDRs(dir, given); err != nil {
				return nil, nil, err
			}
		}
	}
	return choosePodCIDRs(cfg.PodCIDRs, dir, cfg.Controllers.PodRanges)
}

// givenPodCIDRs registers the node, if it is not there, and waits until the cluster has given it its ranges; none if it does not in time.
func givenPodCIDRs(ctx context.Context, cfg Config, cl *client.Client, wait time.Duration) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	nodes := cl.CoreV1().Nodes()
	n, err := nodes.Get(ctx, cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n, err = nodes.Create(ctx, newNode(cfg), metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the node's pod addresses: %w", err)
	}
	if len(n.Spec.PodCIDRs) > 0 {
		return parsePodCIDRs(n)
	}
	w, err := nodes.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", cfg.NodeName).String(), ResourceVersion: n.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the node's pod addresses: %w", err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil, nil
			}
			if n, is := e.Object.(*corev1.Node); is && len(n.Spec.PodCIDRs) > 0 {
				return parsePodCIDRs(n)
			}
		}
	}
}

// newNode is a node before its kubelet runs, with what only a new node gets.
func newNode(cfg Config) *corev1.Node {
	var kc kubelet.Config
	cfg.Node.apply(&kc)
	labels := map[string]string{corev1.LabelHostname: cfg.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: goruntime.GOARCH}
	maps.Copy(labels, kc.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.NodeName, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: kc.Taints},
	}
}

func parsePodCIDRs(n *corev1.Node) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the node %s has a pod range that is none: %w", n.Name, err)
		}
		out = append(out, p)
	}
	return out, nil
}
