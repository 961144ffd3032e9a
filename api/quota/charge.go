// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Applies reports whether q limits obj at all: it tracks a name that m measures, and obj is in its scopes.
func (m *Meter) Applies(q *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	if !slices.ContainsFunc(Names(q.Status.Hard), m.Tracks) {
		return false, nil
	}
	return m.In(Scopes(q), obj)
}

// Delta is what storing obj adds to quota's usage, in quota's own names; old is nil for a new object. It is empty where
// quota does not limit obj or nothing grows. The error says what obj lacks, or that quota's usage is not known yet.
func (m *Meter) Delta(
	quota *corev1.ResourceQuota, obj, old runtime.Object, now time.Time,
) (corev1.ResourceList, error) {
	applies, err := m.Applies(quota, obj)
	if err != nil || !applies {
		return nil, err
	}
	tracked := m.Tracked(quota.Status.Hard)
	if m.Missing != nil {
		if err := m.Missing(tracked, obj); err != nil {
			return nil, fmt.Errorf("failed quota: %s: %w", quota.Name, err)
		}
	}
	for _, n := range tracked {
		if _, known := quota.Status.Used[n]; !known {
			return nil, fmt.Errorf("status unknown for quota: %s, resources: %s", quota.Name, Joined(tracked))
		}
	}
	usage := m.Usage(obj, now)
	if bad := Negative(usage); len(bad) > 0 {
		return nil, errors.New("quota usage is negative for resource(s): " + Joined(bad))
	}
	if old != nil {
		had, err := m.In(Scopes(quota), old)
		if err != nil {
			return nil, err
		}
		if had {
			usage = Floor(Minus(usage, m.Usage(old, now)))
		}
	}
	return NonZero(Only(usage, tracked)), nil
}

// Exceeded says by how much used and delta together pass q's limits; nil: they do not.
func Exceeded(q *corev1.ResourceQuota, used, delta corev1.ResourceList) error {
	over := Over(Only(Sum(used, delta), Names(delta)), q.Status.Hard)
	if len(over) == 0 {
		return nil
	}
	return fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
		q.Name, Text(Only(delta, over)), Text(Only(used, over)), Text(Only(q.Status.Hard, over)))
}
