// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusClient is the part of a typed client that WriteStatus needs, such as env.Client.AppsV1().ReplicaSets(namespace).
type StatusClient[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	UpdateStatus(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
}

// StatusObject is an object that WriteStatus can copy.
type StatusObject[T any] interface {
	metav1.Object
	DeepCopy() T
}

// WriteStatus stores want as the status of obj, which is not modified; status tells where in an object it is. It writes
// nothing where obj has that status. On a conflict it tries once more from the server's version of this very object: what others
// have changed of the status meanwhile is overwritten, so it is for kinds whose status has one writer. want.observedGeneration
// must be that of the obj which the pass has seen. An object that is gone, or replaced by another of its name, is no error.
// The result is the object as stored, or obj where nothing was.
func WriteStatus[T StatusObject[T], S any](ctx context.Context, client StatusClient[T], obj T, status func(T) *S, want S) (T, error) {
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
