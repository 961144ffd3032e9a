// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
)

// The pod CIDRs of a Node are immutable: for others the Node must be deleted and recreated. That is only done when the
// node itself reports that no pod has an address of its range, because only the node knows.
//
//	two nodes have a range -> the newer one gets AnnotationConflict
//	it starts without pods, and writes AnnotationRelease -> its Node is recreated with labels, annotations and taints,
//	    without a range
//	it is given one like any new node
const (
	// AnnotationConflict names the older node that has one of the ranges too.
	AnnotationConflict = "keelson.dev/pod-cidr-conflict"
	// AnnotationRelease lists the ranges that the node releases, separated by commas. The node writes it.
	AnnotationRelease = "keelson.dev/pod-cidr-release"
)

type conflictAnnotations struct{ conflict, release string }

func conflictAnnotationsOf(n *corev1.Node) conflictAnnotations {
	return conflictAnnotations{n.Annotations[AnnotationConflict], n.Annotations[AnnotationRelease]}
}

// requeueSharing requeues all nodes that have one of the ranges; false: there is only one.
func (c *Controller) requeueSharing(node string, have []netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := false
	for name, theirs := range c.owned {
		if name != node && overlap(have, theirs) != "" {
			found = true
			c.conflicting[name] = struct{}{}
			c.loop.Add(framework.Key{Name: name})
		}
	}
	if found {
		c.conflicting[node] = struct{}{}
		c.loop.Add(framework.Key{Name: node})
	}
	return found
}

func overlap(a, b []netip.Prefix) string {
	for _, p := range a {
		if slices.ContainsFunc(b, p.Overlaps) {
			return p.String()
		}
	}
	return ""
}

// conflictingNode is the oldest of the nodes older than node that have one of its ranges; "": none.
func (c *Controller) conflictingNode(node *corev1.Node) (name, shared string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *corev1.Node
	contested := false
	for other, theirs := range c.owned {
		p := overlap(c.owned[node.Name], theirs)
		if other == node.Name || p == "" {
			continue
		}
		contested = true
		o, err := c.nodes.Get(other)
		if err != nil || !older(o, node) || first != nil && !older(o, first) {
			continue
		}
		first = o
		name = other
		shared = p
	}
	if !contested {
		delete(c.conflicting, node.Name)
	}
	return name, shared
}

func older(a, b *corev1.Node) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// repair annotates a node whose range an older node has, removes an outdated annotation, and recreates a node that has
// released its range.
func (c *Controller) repair(ctx context.Context, node *corev1.Node) error {
	rival, shared := c.conflictingNode(node)
	had := conflictAnnotationsOf(node)
	if rival != "" && had.release == strings.Join(node.Spec.PodCIDRs, ",") {
		return c.deleteForRecreation(ctx, node, rival)
	}
	want := map[string]any{}
	if had.conflict != rival {
		want[AnnotationConflict] = rival
		if rival == "" {
			want[AnnotationConflict] = nil
		}
	}
	if had.release != "" {
		want[AnnotationRelease] = nil // the released range is another one, or there is no conflict
	}
	if len(want) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "annotations": want}})
	if err != nil {
		return err
	}
	if _, err := c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("mark the conflict of node %s: %w", node.Name, err)
	}
	if rival != "" && had.conflict != rival {
		c.env.Events.Eventf(node, corev1.EventTypeWarning, "CIDRConflict",
			"Node %s has the pod range %s, which node %s had before: other nodes send there. A Keelson node gets "+
				"another one when it starts without pods (keelson down, and start it again)", node.Name, shared, rival)
	}
	return nil
}

// deleteForRecreation deletes a Node so that it is recreated without its ranges.
func (c *Controller) deleteForRecreation(ctx context.Context, node *corev1.Node, rival string) error {
	next := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, Annotations: maps.Clone(node.Annotations)},
		Spec: corev1.NodeSpec{
			Taints:        node.Spec.Taints,
			Unschedulable: node.Spec.Unschedulable,
			ProviderID:    node.Spec.ProviderID,
		},
	}
	delete(next.Annotations, AnnotationConflict)
	delete(next.Annotations, AnnotationRelease)
	nodes := c.env.Client.CoreV1().Nodes()
	// Without the right to create nodes this one must not be deleted.
	if _, err := nodes.Create(ctx, next,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("node %s cannot be recreated with another pod range: %w", node.Name, err)
	}
	c.mu.Lock()
	c.recreating[node.Name] = next
	c.mu.Unlock()
	err := nodes.Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID:             &node.UID,
		ResourceVersion: &node.ResourceVersion,
	}})
	if err != nil {
		c.mu.Lock()
		delete(c.recreating, node.Name)
		c.mu.Unlock()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("delete node %s to give it another pod range: %w", node.Name, err)
	}
	c.env.Log.Info("recreate node for another pod range", "node", node.Name, "had",
		strings.Join(node.Spec.PodCIDRs, ","),
		"which has", rival)
	c.env.Events.Eventf(node, corev1.EventTypeNormal, "CIDRReleased",
		"Node %s gave up the pod range %s, which node %s "+
			"has, and gets another one", node.Name, strings.Join(node.Spec.PodCIDRs, ","), rival)
	return c.recreate(ctx, node.Name)
}

// recreate recreates a node that deleteForRecreation has deleted. If it exists meanwhile, it stays unchanged.
func (c *Controller) recreate(ctx context.Context, name string) error {
	c.mu.Lock()
	next := c.recreating[name]
	c.mu.Unlock()
	if next == nil {
		return nil
	}
	if _, err := c.env.Client.CoreV1().Nodes().Create(ctx, next, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("recreate node %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recreating, name)
	return nil
}
