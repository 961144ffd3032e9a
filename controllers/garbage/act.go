// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// attemptDelete decides about one object in the graph and executes the action.
func (c *Controller) attemptDelete(ctx context.Context, uid types.UID) error {
	view := c.graph.viewOf(uid)
	if view == nil {
		return nil
	}
	var absent []metav1.OwnerReference
	if !view.deleting {
		var err error
		if absent, err = c.absentOwnersOf(ctx, view); err != nil {
			return err
		}
	}
	c.reportForeign(view, absent)
	//exhaustive:enforce
	switch action := decide(view, absent); action.kind {
	case actionNone:
	case actionWait:
		for _, n := range action.next {
			c.attemptToDelete.Add(n.uid)
		}
		return nil
	case actionRemoveFinalizer:
		return c.removeFinalizer(ctx, view.node, metav1.FinalizerDeleteDependents)
	case actionPatchOwners:
		return ignoreNotFound(c.patchOwners(ctx, view.node, action.owners))
	case actionDelete:
		return c.remove(ctx, view.node, action)
	}
	return nil
}

// ignoreNotFound ignores the error that the object does not exist any more.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Controller) client(n *node) metadata.ResourceInterface {
	return c.env.Client.Metadata.Resource(n.res.GVR).Namespace(n.namespace)
}

func (c *Controller) remove(ctx context.Context, n *node, d action) error {
	if d.unblock {
		no := false
		refs := slices.Clone(n.owners)
		for i := range refs {
			refs[i].BlockOwnerDeletion = &no
		}
		// The update event triggers the deletion.
		return ignoreNotFound(c.patchOwners(ctx, n, refs))
	}
	uid := n.uid
	rv := n.rv
	err := c.client(n).Delete(ctx, n.name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &rv},
		PropagationPolicy: &d.policy,
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", n.res.GVR.Resource, n.name, err)
	}
	if err == nil {
		c.env.Log.Info("deleted object without owners", "controller", c.env.Name, "object",
			n.res.GVR.Resource+"/"+n.namespace+"/"+n.name)
	}
	return nil
}

// patchOwners sets the owner references of n to refs, unless n has changed.
func (c *Controller) patchOwners(ctx context.Context, n *node, refs []metav1.OwnerReference) error {
	if len(refs) == 0 {
		refs = nil // null removes the field in a merge patch
	}
	return c.patch(ctx, n, n.rv, "ownerReferences", refs)
}

func (c *Controller) patch(ctx context.Context, n *node, rv, field string, value any) error {
	b, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.uid, "resourceVersion": rv, field: value},
	})
	if err != nil {
		return err
	}
	if _, err = c.client(n).Patch(ctx, n.name, types.MergePatchType, b, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch %s of %s %s: %w", field, n.res.GVR.Resource, n.name, err)
	}
	return nil
}

// removeFinalizer removes a finalizer of n.
func (c *Controller) removeFinalizer(ctx context.Context, n *node, finalizer string) error {
	live, err := c.client(n).Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != n.uid {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", n.res.GVR.Resource, n.name, err)
	}
	left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	if len(left) == len(live.Finalizers) {
		return nil
	}
	if len(left) == 0 {
		left = nil
	}
	return ignoreNotFound(c.patch(ctx, n, live.ResourceVersion, "finalizers", left))
}

// attemptOrphan removes the owner from all its dependents, then the owner's finalizer.
func (c *Controller) attemptOrphan(ctx context.Context, uid types.UID) error {
	view := c.graph.viewOf(uid)
	if view == nil || !view.deleting || !view.orphan {
		return nil
	}
	var all error
	for _, n := range c.graph.dependents(uid) {
		keep := slices.DeleteFunc(slices.Clone(n.owners), func(r metav1.OwnerReference) bool { return r.UID == uid })
		all = errors.Join(all, ignoreNotFound(c.patchOwners(ctx, n, keep)))
	}
	if all != nil {
		return all
	}
	return c.removeFinalizer(ctx, view.node, metav1.FinalizerOrphanDependents)
}

// reportForeign records events about owner references across namespaces, which count as absent owners.
func (c *Controller) reportForeign(v *view, absent []metav1.OwnerReference) {
	for _, ownerReference := range v.foreign {
		// A cluster-scoped object cannot have a namespaced owner: the reference is invalid but kept.
		if v.namespace != "" && !slices.ContainsFunc(absent, func(a metav1.OwnerReference) bool {
			return sameRef(a, ownerReference)
		}) {
			continue
		}
		ref := &corev1.ObjectReference{
			APIVersion: v.res.GVR.GroupVersion().String(),
			Kind:       v.res.Kind,
			Namespace:  v.namespace,
			Name:       v.name,
			UID:        v.uid,
		}
		owner := fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", ownerReference.APIVersion,
			ownerReference.Kind, v.namespace, ownerReference.Name,
			ownerReference.UID)
		c.env.Events.Eventf(ref, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
			"ownerRef %s does not exist in namespace %q", owner, v.namespace)
	}
}
