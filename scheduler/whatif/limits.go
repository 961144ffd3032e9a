// SPDX-License-Identifier: Apache-2.0

package whatif

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

// namespaceLimits are the limit ranges and quotas of a namespace. A simulation must not place pods that admission would
// refuse.
type namespaceLimits struct {
	ranges []corev1.LimitRange
	quotas []corev1.ResourceQuota // Status.Used grows with the pods and claims that the simulation adds
}

// readLimits reads a namespace's limit ranges and quotas. If the user may not read them, none apply, and a note says
// so.
func (t *simulation) readLimits(ctx context.Context, namespace string) error {
	if t.limits[namespace] != nil {
		return nil
	}
	l := &namespaceLimits{}
	t.limits[namespace] = l
	core := t.client.CoreV1()
	ranges, err := core.LimitRanges(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		l.ranges = ranges.Items
	} else if err := t.noteForbidden("limit ranges", err); err != nil {
		return err
	}
	quotas, err := core.ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		l.quotas = quotas.Items
		return nil
	}
	return t.noteForbidden("quotas", err)
}

func (t *simulation) noteForbidden(resource string, err error) error {
	if apierrors.IsForbidden(err) {
		t.note(resource + " do not count: " + err.Error())
		return nil
	}
	return fmt.Errorf("list %s: %w", resource, err)
}

// notCreated returns the reason of an object that admission would refuse.
func notCreated(err error) string { return "is not created: " + err.Error() }

// applyRanges sets the defaults of the limit ranges in a pod. It returns why they refuse the pod or claim; empty: they
// do not. A namespace without limits is nil.
func (l *namespaceLimits) applyRanges(o runtime.Object) string {
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
		return notCreated(err)
	}
	return ""
}

// useQuota counts a new object in the quotas. It returns which quota is exceeded, and then counts nothing; empty: none.
func (l *namespaceLimits) useQuota(o runtime.Object, resource string) string {
	if l == nil {
		return ""
	}
	meter := quota.MeterFor(schema.GroupResource{Resource: resource})
	now := time.Now()
	deltas := make([]corev1.ResourceList, len(l.quotas))
	for i := range l.quotas {
		q := &l.quotas[i]
		var err error
		if deltas[i], err = meter.Delta(q, o, nil, now); err == nil {
			err = quota.Exceeded(q, q.Status.Used, deltas[i])
		}
		if err != nil {
			return notCreated(err)
		}
	}
	for i := range l.quotas {
		q := &l.quotas[i]
		q.Status.Used = quota.Sum(q.Status.Used, deltas[i])
	}
	return ""
}
