// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/limits"
	"keelson/api/quota"
)

// lets is what admission bounds in a namespace: a question must not plan pods that the server would refuse.
type lets struct {
	ranges []corev1.LimitRange
	quotas []corev1.ResourceQuota // Status.Used grows with the pods and claims that the question adds
}

// learn reads a namespace's limit ranges and quotas. For a user who may not read them none are applied, and a note says so.
func (t *trial) learn(ctx context.Context, namespace string) error {
	if t.lets[namespace] != nil {
		return nil
	}
	l := &lets{}
	t.lets[namespace] = l
	core := t.s.client.CoreV1()
	ranges, err := core.LimitRanges(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		l.ranges = ranges.Items
	} else if err := t.unread("limit ranges", err); err != nil {
		return err
	}
	quotas, err := core.ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		l.quotas = quotas.Items
		return nil
	}
	return t.unread("quotas", err)
}

func (t *trial) unread(what string, err error) error {
	if apierrors.IsForbidden(err) {
		t.note(what + " are not regarded: " + err.Error())
		return nil
	}
	return fmt.Errorf("list %s: %w", what, err)
}

// notMade is what people read of an object that admission would refuse.
func notMade(err error) string { return "is not made: " + err.Error() }

// limit gives a pod the defaults of its namespace's limit ranges, and says what of it, or of a claim, is out of their bounds.
func (t *trial) limit(obj metav1.Object) string {
	l, o := t.lets[obj.GetNamespace()], obj.(runtime.Object) //nolint:forcetypeassert // pods and claims are
	if l == nil {
		return ""
	}
	if pod, ok := o.(*corev1.Pod); ok {
		for i := range l.ranges {
			limits.Fill(pod, &l.ranges[i])
		}
	}
	var errs []error
	for i := range l.ranges {
		errs = append(errs, limits.Violations(o, &l.ranges[i])...)
	}
	if err := errors.Join(errs...); err != nil {
		return notMade(err)
	}
	return ""
}

// charge takes a new object from the quotas of its namespace, or says which has not enough left; then nothing is taken.
func (t *trial) charge(obj metav1.Object, resource string) string {
	l, o := t.lets[obj.GetNamespace()], obj.(runtime.Object) //nolint:forcetypeassert // pods and claims are
	if l == nil {
		return ""
	}
	meter, now := quota.MeterFor(schema.GroupResource{Resource: resource}), time.Now()
	deltas := make([]corev1.ResourceList, len(l.quotas))
	for i := range l.quotas {
		q := &l.quotas[i]
		var err error
		if deltas[i], err = meter.Delta(q, o, nil, now); err == nil {
			err = quota.Exceeded(q, q.Status.Used, deltas[i])
		}
		if err != nil {
			return notMade(err)
		}
	}
	for i := range l.quotas {
		q := &l.quotas[i]
		q.Status.Used = quota.Sum(q.Status.Used, deltas[i])
	}
	return ""
}
