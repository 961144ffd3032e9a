// SPDX-License-Identifier: Apache-2.0

package nodehost

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
	JoinRangeWait = 30 * time.Second
	OwnRangeWait  = 3 * time.Second
)

// RangeRequest is how a node in a process of its own gets its pod CIDRs.
type RangeRequest struct {
	Dir      datadir.Dir
	NodeName string
	// PodCIDRs are configured ones; none: the cluster's or the node's own choice.
	PodCIDRs []netip.Prefix
	// From are the ranges from which the node chooses.
	From nodeipam.Config
	// Foreign reports that pods have no addresses of the built-in network.
	Foreign bool
	// Kubelet has what is set when the node registers.
	Kubelet Options
	Client  *client.Client
	// Wait is how long the node waits for the cluster's answer: JoinRangeWait or OwnRangeWait.
	Wait time.Duration
}

// AskPodCIDRs returns the pod CIDRs: configured, stored, allocated by the cluster, or chosen by the node. They are
// stored, so that the next start needs no server.
func (q RangeRequest) AskPodCIDRs(ctx context.Context) ([]netip.Prefix, io.Closer, error) {
	have, err := storedPodCIDRs(q.Dir)
	if err != nil {
		return nil, nil, err
	}
	if len(q.PodCIDRs) == 0 && len(have) > 0 {
		if have, err = q.settled(ctx, have); err != nil {
			return nil, nil, err
		}
	}
	if len(q.PodCIDRs) == 0 && len(have) == 0 {
		given, err := q.given(ctx)
		// without a server, a node that does not join chooses its own
		if err != nil && (q.Wait != OwnRangeWait || ctx.Err() != nil) {
			return nil, nil, err
		}
		if len(given) > 0 {
			if err := storePodCIDRs(q.Dir, given); err != nil {
				return nil, nil, err
			}
		}
	}
	return ChoosePodCIDRs(q.PodCIDRs, q.Dir, q.From)
}

// settled returns the stored pod CIDRs. If another node has the same ones, or the Node object has others, it
// returns new ones from the cluster, provided that no pod has an address yet. None: the node must ask as if it were
// new.
func (q RangeRequest) settled(ctx context.Context, have []netip.Prefix) ([]netip.Prefix, error) {
	if q.Foreign {
		return have, nil // pods use them
	}
	pods, err := network.New(network.Config{ID: q.Dir.ID(), Dir: q.Dir.Sub("network"), PodCIDRs: have})
	if err != nil || len(pods.Attached()) > 0 {
		return have, err
	}
	brief, cancel := context.WithTimeout(ctx, OwnRangeWait)
	node, err := q.Client.CoreV1().Nodes().Get(brief, q.NodeName, metav1.GetOptions{})
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
		if now, err = otherPodCIDRs(ctx, node, q.Client); err != nil {
			return nil, err
		}
	}
	if len(now) == 0 || slices.Equal(now, have) {
		return have, nil
	}
	return now, storePodCIDRs(q.Dir, now)
}

// otherPodCIDRs releases a node's pod CIDRs and waits for others; none: there were none in time.
func otherPodCIDRs(ctx context.Context, node *corev1.Node, cl *client.Client) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, JoinRangeWait)
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

// given registers the node if necessary and waits for its pod CIDRs; none: there were none in time.
func (q RangeRequest) given(ctx context.Context) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	nodes := q.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, q.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n, err = nodes.Create(ctx, q.newNode(), metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the node's pod addresses: %w", err)
	}
	if len(n.Spec.PodCIDRs) > 0 {
		return parsePodCIDRs(n)
	}
	return waitPodCIDRs(ctx, q.Client, n, func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
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
func (q RangeRequest) newNode() *corev1.Node {
	var kc kubelet.Config
	q.Kubelet.Apply(&kc)
	labels := map[string]string{
		corev1.LabelHostname:   q.NodeName,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: goruntime.GOARCH,
	}
	maps.Copy(labels, kc.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: q.NodeName, Labels: labels},
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
