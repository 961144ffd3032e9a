// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Claims groups objects by what their owner should do with them.
type Claims[T metav1.Object] struct {
	Owned   []T // controlled by the owner, and its selector matches
	Adopt   []T // matching, with no controller
	Release []T // controlled by the owner but no longer matching
}

// Claim decides which of objs belong to owner. An owner in deletion adopts and releases nothing, and objects in
// deletion are not adopted.
func Claim[T metav1.Object](owner metav1.Object, selector labels.Selector, objs []T) Claims[T] {
	var c Claims[T]
	going := owner.GetDeletionTimestamp() != nil
	for _, o := range objs {
		ref := metav1.GetControllerOfNoCopy(o)
		matches := selector.Matches(labels.Set(o.GetLabels()))
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches:
			c.Owned = append(c.Owned, o)
		case ref != nil:
			if !going {
				c.Release = append(c.Release, o)
			}
		case matches && !going && o.GetDeletionTimestamp() == nil && o.GetNamespace() == owner.GetNamespace():
			c.Adopt = append(c.Adopt, o)
		}
	}
	return c
}

// Ownership adopts and releases objects of type T for owners of one kind.
type Ownership[T metav1.Object] struct {
	// Owner is the owners' kind.
	Owner schema.GroupVersionKind
	// Live reads an owner from the API server, not from a cache: a deleted owner must not adopt an object, because the
	// garbage collector would delete it.
	Live func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// Patch sends a strategic merge patch to an object.
	Patch func(ctx context.Context, o T, patch []byte) error
	// Finalizer is added at adoption and removed at release; "": none.
	Finalizer string
}

// PodOwnership is the Ownership of pods.
func PodOwnership(env *Env, owner schema.GroupVersionKind, live func(
	ctx context.Context, namespace, name string,
) (metav1.Object, error),
) Ownership[*corev1.Pod] {
	return Ownership[*corev1.Pod]{
		Owner: owner,
		Live:  live,
		Patch: func(ctx context.Context, p *corev1.Pod, patch []byte) error {
			_, err := env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}
}

// ClaimCached calls ClaimObjects for the objects of owner, and of no controller, in a cache with the index
// ByController. keep selects among them; nil: all.
func (o Ownership[T]) ClaimCached(
	ctx context.Context, cached cache.Indexer, owner metav1.Object, selector labels.Selector, keep func(T) bool,
) (mine, adopted []T, err error) {
	var all []T
	for _, at := range []string{string(owner.GetUID()), OrphanKey(owner.GetNamespace())} {
		objs, err := byIndex[T](cached, ByController, at)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, objs...)
	}
	if keep != nil {
		all = slices.DeleteFunc(all, func(obj T) bool { return !keep(obj) })
	}
	return o.ClaimObjects(ctx, owner, selector, all)
}

// ClaimObjects executes what Claim decides about objs. It returns the objects that owner controlled before, and the
// newly adopted ones, which the cache does not show as owned yet.
func (o Ownership[T]) ClaimObjects(
	ctx context.Context, owner metav1.Object, selector labels.Selector, objs []T,
) (mine, adopted []T, err error) {
	claims := Claim(owner, selector, objs)
	for _, obj := range claims.Release {
		if err := o.Release(ctx, owner.GetUID(), obj); err != nil {
			return nil, nil, err
		}
	}
	if len(claims.Adopt) == 0 {
		return claims.Owned, nil, nil
	}
	live, err := o.Live(ctx, owner.GetNamespace(), owner.GetName())
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("recheck before adopting: %w", err)
	case live.GetUID() != owner.GetUID() || live.GetDeletionTimestamp() != nil:
		return claims.Owned, nil, nil
	}
	for _, obj := range claims.Adopt {
		err := o.patch(ctx, obj, metav1.NewControllerRef(owner, o.Owner), "finalizers")
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, nil, fmt.Errorf("adopt %s: %w", obj.GetName(), err)
		default:
			adopted = append(adopted, obj)
		}
	}
	return claims.Owned, adopted, nil
}

// Release removes the owner with this UID from obj. A deleted object, or one with another owner, is no error.
func (o Ownership[T]) Release(ctx context.Context, owner types.UID, obj T) error {
	err := o.patch(ctx, obj, map[string]any{"$patch": "delete", "uid": owner}, "$deleteFromPrimitiveList/finalizers")
	// Invalid: the object has another owner or was recreated; in both cases it is not ours any more.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
		return fmt.Errorf("release %s: %w", obj.GetName(), err)
	}
	return nil
}

// patch changes one owner reference, and the finalizer. The UID in the patch protects a new object of the same name.
func (o Ownership[T]) patch(ctx context.Context, obj T, ref any, finalizers string) error {
	meta := map[string]any{"uid": obj.GetUID(), "ownerReferences": []any{ref}}
	if o.Finalizer != "" {
		meta[finalizers] = []string{o.Finalizer}
	}
	b, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	return o.Patch(ctx, obj, b)
}
