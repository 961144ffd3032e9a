// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusClient is the part of a typed client for WriteStatus, such as env.Client.AppsV1().ReplicaSets(namespace).
type StatusClient[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	UpdateStatus(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
}

// StatusObject is an object that WriteStatus can copy.
type StatusObject[T any] interface {
	metav1.Object
	DeepCopy() T
}

// UpdateStatus is WriteStatus without the retry: a conflict is an error, so that the next pass sees the newer object.
func UpdateStatus[T StatusObject[T], S any](ctx context.Context, client StatusClient[T], obj T, status func(
	T,
) *S, want S,
) error {
	if equality.Semantic.DeepEqual(*status(obj), want) {
		return nil
	}
	next := obj.DeepCopy()
	*status(next) = want
	if _, err := client.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// WriteStatus writes want as the status of obj, which is not modified; status returns the status field of an object. If
// obj has that status already, nothing is written. After a conflict it retries once with the server's version of the
// same object. That overwrites concurrent changes, so it is only for kinds whose status has one writer.
// want.observedGeneration must be that of the obj seen by the pass. A deleted or recreated object is no error. The
// result is the stored object, or obj if nothing was written.
func WriteStatus[T StatusObject[T], S any](ctx context.Context, client StatusClient[T], obj T, status func(
	T,
) *S, want S,
) (T, error) {
	if equality.Semantic.DeepEqual(*status(obj), want) {
		return obj, nil
	}
	write := func(base T) (T, error) {
		next := base.DeepCopy()
		*status(next) = want
		return client.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	}
	stored, err := write(obj)
	if apierrors.IsConflict(err) {
		var live T
		live, err = client.Get(ctx, obj.GetName(), metav1.GetOptions{})
		switch {
		case err != nil:
		case live.GetUID() != obj.GetUID():
			return obj, nil
		case equality.Semantic.DeepEqual(*status(live), want):
			return live, nil
		default:
			stored, err = write(live)
		}
	}
	switch {
	case err == nil:
		return stored, nil
	case apierrors.IsNotFound(err):
		return obj, nil
	}
	return obj, fmt.Errorf("write status of %s: %w", KeyOf(obj), err)
}
