// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/client"
	"keelson/cluster/datadir"
	"keelson/controllers/nodeipam"
	"keelson/kubelet"
	"keelson/network"
)

// How long a node in a process of its own waits for its pod CIDRs at its first start: after a join for the server's
// node IPAM controller, else shorter, because the cluster may have no such controller.
const (
	joinRangeWait = 30 * time.Second
	ownRangeWait  = 3 * time.Second
)

// askPodCIDRs returns the pod CIDRs of a node in a process of its own: configured, stored, allocated by the cluster, or
// chosen by the node. They are stored, so that the next start needs no server.
func askPodCIDRs(
	ctx context.Context, cfg Config, dir datadir.Dir, cl *client.Client, wait time.Duration,
) ([]netip.Prefix, io.Closer, error) {
	have, err := storedPodCIDRs(dir)
	if err != nil {
		return nil, nil, err
	}
	if len(cfg.PodCIDRs) == 0 && len(have) > 0 {
		if have, err = settledPodCIDRs(ctx, cfg, dir, cl, have); err != nil {
			return nil, nil, err
		}
	}
	if len(cfg.PodCIDRs) == 0 && len(have) == 0 {
		given, err := givenPodCIDRs(ctx, cfg, cl, wait)
		// without a server, a node that does not join chooses its own
		if err != nil && (wait != ownRangeWait || ctx.Err() != nil) {
			return nil, nil, err
		}
		if len(given) > 0 {
			if err := storePodCIDRs(dir, given); err != nil {
				return nil, nil, err
			}
		}
	}
	return choosePodCIDRs(cfg.PodCIDRs, dir, cfg.Controllers.PodRanges)
}

// settledPodCIDRs returns the stored pod CIDRs. If another node has the same ones, or the Node object has others, it
// returns new ones from the cluster, provided that no pod has an address yet. None: the node must ask as if it were
// new.
func settledPodCIDRs(
	ctx context.Context, cfg Config, dir datadir.Dir, cl *client.Client, have []netip.Prefix,
) ([]netip.Prefix, error) {
	if cfg.RuntimeEndpoint != "" || cfg.CNI.on() {
		return have, nil // pods use them
	}
	pods, err := network.New(network.Config{ID: dir.ID(), Dir: dir.Sub("network"), PodCIDRs: have})
	if err != nil || len(pods.Attached()) > 0 {
		return have, err
	}
	brief, cancel := context.WithTimeout(ctx, ownRangeWait)
	node, err := cl.CoreV1().Nodes().Get(brief, cfg.NodeName, metav1.GetOptions{})
	cancel()
	if apierrors.IsNotFound(err) {
		return nil, nil // another node may have the range by now
	}
	if err != nil {
		return have, ctx.Err() // the start needs no server
	}
	now, err := parsePodCIDRs(node)
	if err != nil || len(now) == 0 {
		return now, err
	}
	if slices.Equal(now, have) && node.Annotations[nodeipam.AnnotationConflict] != "" {
		if now, err = otherPodCIDRs(ctx, node, cl); err != nil {
			return nil, err
		}
	}
	if len(now) == 0 || slices.Equal(now, have) {
		return have, nil
	}
	return now, storePodCIDRs(dir, now)
}

// otherPodCIDRs releases a node's pod CIDRs and waits for others; none: there were none in time.
func otherPodCIDRs(ctx context.Context, node *corev1.Node, cl *client.Client) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, joinRangeWait)
	defer cancel()
	had := strings.Join(node.Spec.PodCIDRs, ",")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{nodeipam.AnnotationRelease: had}},
	})
	if err != nil {
		return nil, err
	}
	if node, err = cl.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return nil, fmt.Errorf("give up the node's pod addresses, which another node has: %w", err)
	}
	return waitPodCIDRs(ctx, cl, node, func(n *corev1.Node) bool {
		return len(n.Spec.PodCIDRs) > 0 && strings.Join(n.Spec.PodCIDRs, ",") != had
	})
}

// givenPodCIDRs registers the node if necessary and waits for its pod CIDRs; none: there were none in time.
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
	return waitPodCIDRs(ctx, cl, n, func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
}

// waitPodCIDRs waits until the node's pod CIDRs satisfy wanted; none: they did not in time.
func waitPodCIDRs(ctx context.Context, cl *client.Client, n *corev1.Node, wanted func(
	*corev1.Node,
) bool,
) ([]netip.Prefix, error) {
	watcher, err := cl.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", n.Name).String(),
		ResourceVersion: n.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the node's pod addresses: %w", err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case e, ok := <-watcher.ResultChan():
			if !ok {
				return nil, nil
			}
			if n, is := e.Object.(*corev1.Node); is && e.Type != watch.Deleted && wanted(n) {
				return parsePodCIDRs(n)
			}
		}
	}
}

// newNode is the Node object before the kubelet runs, with what is set only at registration.
func newNode(cfg Config) *corev1.Node {
	var kc kubelet.Config
	cfg.Node.apply(&kc)
	labels := map[string]string{
		corev1.LabelHostname:   cfg.NodeName,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: goruntime.GOARCH,
	}
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
