// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// action is the decision about a node.
type action struct {
	kind actionKind
	// owners are the remaining owner references, for actionPatchOwners.
	owners []metav1.OwnerReference
	// policy is the propagation policy of the delete.
	policy metav1.DeletionPropagation
	// unblock: first clear blockOwnerDeletion, because the node and its dependents wait for each other.
	unblock bool
	// next are nodes to process, for wait.
	next []*node
}

type actionKind int

const (
	actionNone            actionKind = iota // do nothing
	actionWait                              // its dependents must be deleted first
	actionRemoveFinalizer                   // its dependents are deleted: remove its finalizer foregroundDeletion
	actionPatchOwners                       // remove the references to owners that are deleted or being deleted
	actionDelete                            // no owner is left: delete it
)

// decide chooses the action for a node. absent are those of v.unknown that do not exist; the others count as existing.
//
//	owners                     action
//	some exist and stay        remove the references to the absent and the waiting ones, if any
//	none stays, some wait      delete; in the foreground if the node has dependents, so that the owner waits for
//	                           these, too
//	all absent                 delete, with the propagation policy of the node's own finalizers
func decide(v *view, absent []metav1.OwnerReference) action {
	if v.deletingDependents() {
		if len(v.blocking) == 0 {
			return action{kind: actionRemoveFinalizer}
		}
		return action{kind: actionWait, next: slices.DeleteFunc(slices.Clone(v.blocking), (*node).deletingDependents)}
	}
	if v.deleting || len(v.owners) == 0 {
		return action{kind: actionNone}
	}
	solid := slices.Clone(v.solid)
	for _, r := range v.unknown {
		if !slices.ContainsFunc(absent, func(a metav1.OwnerReference) bool { return sameRef(a, r) }) {
			solid = append(solid, r)
		}
	}
	switch {
	case len(solid) == len(v.owners):
		return action{kind: actionNone}
	case len(solid) > 0:
		return action{kind: actionPatchOwners, owners: solid}
	case len(v.waiting) > 0 && v.dependents > 0:
		return action{
			kind:   actionDelete,
			policy: metav1.DeletePropagationForeground,
			unblock: v.waitingDependents &&
				v.blocksOwners(),
		}
	case v.orphan:
		return action{kind: actionDelete, policy: metav1.DeletePropagationOrphan}
	case v.foreground:
		return action{kind: actionDelete, policy: metav1.DeletePropagationForeground}
	}
	return action{kind: actionDelete, policy: metav1.DeletePropagationBackground}
}

// blocksOwners reports whether n blocks the foreground deletion of any owner.
func (n *node) blocksOwners() bool {
	return slices.ContainsFunc(n.owners, func(r metav1.OwnerReference) bool {
		return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
	})
}
