// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/api/apiextensions"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/lib/keyed"
)

// cleanUp deletes all objects of a deleted definition and then removes its finalizer; keyed.ErrAgain while some objects
// are left.
func (d *Definitions) cleanUp(
	ctx context.Context, crd *v1.CustomResourceDefinition, definition *servedDefinition,
) error {
	done := v1.CustomResourceDefinitionCondition{
		Type:    v1.Terminating,
		Status:  v1.ConditionFalse,
		Reason:  "InstanceDeletionCompleted",
		Message: "removed all instances",
	}
	switch definition {
	case nil:
		done.Reason = "NeverEstablished"
		done.Message = "resource was never established"
	default:
		left, err := deleteAll(ctx, definition.base)
		if err != nil {
			return errors.Join(err, d.setTerminating(ctx, crd, "InstanceDeletionFailed",
				fmt.Sprintf("could not issue all deletes: %v", err)))
		}
		if left > 0 {
			return cmp.Or(d.setTerminating(ctx, crd, "InstanceDeletionInProgress",
				"CustomResource deletion is in progress"), keyed.ErrAgain)
		}
	}
	err := d.writeStatus(ctx, crd, func(out *v1.CustomResourceDefinition) {
		setCondition(out, done)
		out.Finalizers = slices.DeleteFunc(out.Finalizers, func(f string) bool {
			return f == v1.CustomResourceCleanupFinalizer
		})
	})
	if err != nil {
		return err
	}
	if len(crd.Finalizers) > 1 {
		return nil // it has other finalizers
	}
	_, _, err = d.config.Stored.Delete(ctx, "", crd.Name, func(current kind.Object) error {
		if current.GetUID() != crd.UID || len(current.GetFinalizers()) > 0 {
			return errStale
		}
		return nil
	})
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// setTerminating sets the condition Terminating with the reason why the definition still exists.
func (d *Definitions) setTerminating(
	ctx context.Context, crd *v1.CustomResourceDefinition, reason, message string,
) error {
	c := v1.CustomResourceDefinitionCondition{
		Type:    v1.Terminating,
		Status:  v1.ConditionTrue,
		Reason:  reason,
		Message: message,
	}
	if have := apiextensions.Condition(crd, c.Type); have != nil && have.Status == c.Status &&
		have.Reason == c.Reason && have.Message == c.Message {
		return nil
	}
	return d.writeStatus(ctx, crd, func(out *v1.CustomResourceDefinition) { setCondition(out, c) })
}

// deleteAll deletes every object without admission, as Kubernetes does. left is the number of objects with finalizers.
func deleteAll(ctx context.Context, st objects.Storage) (remaining int, err error) {
	page, err := st.List(ctx, objects.ListQuery{Labels: labels.Everything(), Fields: fields.Everything()})
	if err != nil {
		return 0, fmt.Errorf("could not list instances: %w", err)
	}
	for _, e := range page.Items {
		held, err := deleteOne(ctx, st, e.Object.GetNamespace(), e.Object.GetName())
		if err != nil {
			return 0, err
		}
		if held {
			remaining++
		}
	}
	return remaining, nil
}

// errFinalizersPending means that the object has finalizers and is marked for deletion.
var errFinalizersPending = errors.New("held by finalizers")

func deleteOne(ctx context.Context, st objects.Storage, namespace, name string) (pending bool, err error) {
	_, _, err = st.Delete(ctx, namespace, name, func(current kind.Object) error {
		if len(current.GetFinalizers()) > 0 {
			return errFinalizersPending
		}
		return nil
	})
	if errors.Is(err, errFinalizersPending) {
		_, _, _, err = st.Update(ctx, namespace, name, false, objects.Replace(func(
			_ context.Context, current kind.Object,
		) (kind.Object, error) {
			if current.GetDeletionTimestamp() != nil {
				return current, nil
			}
			next, _ := current.DeepCopyObject().(kind.Object)
			now := metav1.Now().Rfc3339Copy()
			zero := int64(0)
			next.SetDeletionTimestamp(&now)
			next.SetDeletionGracePeriodSeconds(&zero)
			next.SetGeneration(next.GetGeneration() + 1)
			return next, nil
		}))
		pending = true
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return pending, err
}

// setAPIApproval sets the condition about the API approval that definitions in Kubernetes' own groups need.
func setAPIApproval(crd *v1.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	condition := v1.CustomResourceDefinitionCondition{
		Type:   v1.KubernetesAPIApprovalPolicyConformant,
		Status: v1.ConditionFalse,
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	condition.Message = reason
	switch state {
	case apihelpers.APIApprovalInvalid:
		condition.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		condition.Reason = "MissingAnnotation"
	case apihelpers.APIApprovalBypassed:
		condition.Reason = "UnapprovedAPI"
	case apihelpers.APIApproved:
		condition.Status = v1.ConditionTrue
		condition.Reason = "ApprovedAnnotation"
	default:
		return
	}
	setCondition(crd, condition)
}
