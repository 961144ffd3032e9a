// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// owner is a controller of pods with its replicas.
type owner struct {
	uid      types.UID
	replicas int32
}

// resource is the resource of a kind, and whether it has a scale subresource.
type resource struct {
	schema.GroupVersionResource
	scale bool
}

// maxKinds limits the cache of kinds, because owner references may name any kind.
const maxKinds = 256

// expected is the total replicas of the owners of pods. unmanaged: some pods have no owner and are not counted. Neither
// are mirror pods, whose owner is their node: a node chooses their labels, and must not stop the evictions of others.
func (c *Controller) expected(ctx context.Context, pods []*corev1.Pod) (sum int32, unmanaged bool, err error) {
	seen := map[types.UID]bool{}
	counted := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		switch {
		case ref == nil, ref.Kind == "Node" && ref.APIVersion == "v1":
			unmanaged = true
			continue
		case seen[ref.UID]:
			continue
		}
		seen[ref.UID] = true
		o, err := c.owner(ctx, pod.Namespace, ref)
		if err != nil {
			return 0, unmanaged, err
		}
		if o == nil {
			return 0, unmanaged, fmt.Errorf("found no controllers for pod %q", pod.Name)
		}
		if !counted[o.uid] { // several ReplicaSets may have one Deployment
			counted[o.uid] = true
			sum += o.replicas
		}
	}
	return sum, unmanaged, nil
}

// owner resolves a reference to the object that is scaled; nil: it does not exist.
func (c *Controller) owner(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*owner, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	apps := gv.Group == "apps" || gv.Group == "extensions"
	switch {
	case apps && ref.Kind == "ReplicaSet":
		return c.replicaSet(ctx, namespace, ref)
	case apps && ref.Kind == "Deployment":
		d, err := c.deployments.Deployments(namespace).Get(ref.Name)
		return ownerFrom(d, err, ref, func() *int32 { return d.Spec.Replicas })
	case gv.Group == "apps" && ref.Kind == "StatefulSet":
		s, err := c.statefulSets.StatefulSets(namespace).Get(ref.Name)
		return ownerFrom(s, err, ref, func() *int32 { return s.Spec.Replicas })
	case gv.Group == "" && ref.Kind == "ReplicationController":
		r, err := c.controllers.ReplicationControllers(namespace).Get(ref.Name)
		return ownerFrom(r, err, ref, func() *int32 { return r.Spec.Replicas })
	}
	return c.readScale(ctx, namespace, ref)
}

// replicaSet resolves a ReplicaSet, or the Deployment that owns it.
func (c *Controller) replicaSet(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*owner, error) {
	rs, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
	o, err := ownerFrom(rs, err, ref, func() *int32 { return rs.Spec.Replicas })
	if o == nil || err != nil {
		return nil, err
	}
	above := metav1.GetControllerOfNoCopy(rs)
	switch {
	case above == nil || above.Kind == "ReplicaSet":
		return o, nil
	case above.Kind == "Deployment":
		return c.owner(ctx, namespace, above)
	}
	return o, nil
}

// ownerFrom is the owner found by a lister for ref; nil if it was deleted or recreated.
func ownerFrom[T metav1.Object](o T, err error, ref *metav1.OwnerReference, replicas func() *int32) (*owner, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // nil: it does not exist
	case err != nil:
		return nil, err
	case o.GetUID() != ref.UID:
		return nil, nil // nil: it does not exist
	}
	n := int32(1)
	if r := replicas(); r != nil {
		n = *r
	}
	return &owner{o.GetUID(), n}, nil
}

// readScale reads the scale subresource of a kind without a lister here.
func (c *Controller) readScale(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*owner, error) {
	r, err := c.resourceOf(ref)
	if err != nil {
		return nil, err
	}
	if !r.scale {
		return nil, fmt.Errorf("%s does not implement the scale subresource", r.GroupResource())
	}
	scale, err := c.env.Client.Dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Get(ctx, ref.Name,
		metav1.GetOptions{}, "scale")
	switch {
	case apierrors.IsNotFound(err):
		c.forgetKind(ref) // the kind may be served by another resource now
		return nil, nil   // nil: it does not exist
	case err != nil:
		return nil, err
	case scale.GetUID() != ref.UID:
		return nil, nil // nil: it does not exist
	}
	n, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err != nil {
		return nil, fmt.Errorf("scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	return &owner{ref.UID, int32(max(0, min(n, 1<<30)))}, nil
}

// resourceOf finds the resource of the reference's kind by discovery.
func (c *Controller) resourceOf(ref *metav1.OwnerReference) (resource, error) {
	of := metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind}
	c.mu.Lock()
	r, ok := c.scalable[of]
	c.mu.Unlock()
	if ok {
		return r, nil
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return resource{}, err
	}
	list, err := c.env.Client.Discovery().ServerResourcesForGroupVersion(ref.APIVersion)
	if apierrors.IsNotFound(err) {
		list = &metav1.APIResourceList{}
		err = nil
	}
	if err != nil {
		return resource{}, err
	}
	is := func(name string) func(metav1.APIResource) bool {
		return func(a metav1.APIResource) bool { return a.Name == name && a.Kind == "Scale" }
	}
	i := slices.IndexFunc(list.APIResources, func(a metav1.APIResource) bool {
		return a.Kind == ref.Kind && !slices.Contains([]byte(a.Name), '/')
	})
	if i < 0 {
		return resource{}, fmt.Errorf("no matches for kind %q in version %q", ref.Kind, ref.APIVersion)
	}
	r.GroupVersionResource = gv.WithResource(list.APIResources[i].Name)
	r.scale = slices.ContainsFunc(list.APIResources, is(r.Resource+"/scale"))
	if !r.scale {
		return r, nil // it may get a scale subresource later, so it is not cached
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.scalable) >= maxKinds {
		clear(c.scalable)
	}
	c.scalable[of] = r
	return r, nil
}

func (c *Controller) forgetKind(ref *metav1.OwnerReference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.scalable, metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind})
}
