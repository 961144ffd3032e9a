// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Claims sorts objects by what an owner should do with them.
type Claims[T metav1.Object] struct {
	Mine    []T // controlled by the owner, and its selector matches
	Adopt   []T // matching, with no controller
	Release []T // controlled by the owner but no longer matching
}

// Claim decides which of objs belong to owner. An owner that is being deleted adopts and releases nothing.
// Objects that are being deleted are not adopted.
func Claim[T metav1.Object](owner metav1.Object, selector labels.Selector, objs []T) Claims[T] {
	var c Claims[T]
	going := owner.GetDeletionTimestamp() != nil
	for _, o := range objs {
		ref := metav1.GetControllerOfNoCopy(o)
		matches := selector.Matches(labels.Set(o.GetLabels()))
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches:
			c.Mine = append(c.Mine, o)
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

// patchMeta is the part of an object that a claim changes. The UID guards against a successor of the same name.
type patchMeta struct {
	Metadata struct {
		UID             types.UID `json:"uid"`
		OwnerReferences []any     `json:"ownerReferences"`
	} `json:"metadata"`
}

// AdoptPatch is the strategic merge patch that makes owner the controller of the object with this UID.
func AdoptPatch(owner metav1.Object, gvk schema.GroupVersionKind, object types.UID) ([]byte, error) {
	var p patchMeta
	p.Metadata.UID = object
	p.Metadata.OwnerReferences = []any{metav1.NewControllerRef(owner, gvk)}
	return json.Marshal(p)
}

// ReleasePatch is the strategic merge patch that removes owner from the object's references.
func ReleasePatch(owner, object types.UID) ([]byte, error) {
	var p patchMeta
	p.Metadata.UID = object
	p.Metadata.OwnerReferences = []any{map[string]any{"$patch": "delete", "uid": owner}}
	return json.Marshal(p)
}
