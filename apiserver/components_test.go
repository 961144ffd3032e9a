// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestComponentsAreAsked: a component that is dead or unknown is never reported as healthy.
func TestComponentsAreAsked(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	lease := func(who string, ago time.Duration) *coordinationv1.Lease {
		at := metav1.NewMicroTime(now.Add(-ago))
		seconds := int32(15)
		return &coordinationv1.Lease{
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, RenewTime: &at, LeaseDurationSeconds: &seconds},
		}
	}
	for name, tt := range map[string]struct {
		here   bool
		lease  *coordinationv1.Lease
		store  error
		want   corev1.ConditionStatus
		stored corev1.ConditionStatus
		words  string
	}{
		"part of this process": {
			here:   true,
			want:   corev1.ConditionTrue,
			stored: corev1.ConditionTrue,
			words:  "ok",
		},
		"another's": {
			lease:  lease("a", 3*time.Second),
			want:   corev1.ConditionTrue,
			stored: corev1.ConditionTrue,
			words:  "ok",
		},
		"dead": {
			lease:  lease("a", time.Minute),
			want:   corev1.ConditionFalse,
			stored: corev1.ConditionTrue,
			words:  "a last renewed the lease kube-system/kube-scheduler 1m0s ago",
		},
		"stopped": {
			lease:  lease("", time.Second),
			want:   corev1.ConditionFalse,
			stored: corev1.ConditionTrue,
			words:  "its leader gave the lease kube-system/kube-scheduler back 1s ago",
		},
		"unknown": {
			store:  errors.New("disk full"),
			want:   corev1.ConditionUnknown,
			stored: corev1.ConditionFalse,
			words: "no process holds the lease kube-system/kube-scheduler: it does not run, or runs without leader " +
				"election",
		},
	} {
		c := components{
			inProcess: map[string]bool{"kube-scheduler": tt.here},
			now:       func() time.Time { return now },
			store:     func(context.Context) error { return tt.store },
			lease: func(_ context.Context, name string) (runtime.Object, error) {
				if tt.lease == nil {
					return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, name)
				}
				return tt.lease, nil
			},
		}
		for component, want := range map[string]corev1.ConditionStatus{"scheduler": tt.want, "etcd-0": tt.stored} {
			o, err := c.Get(t.Context(), "", component)
			if err != nil {
				t.Fatal(err)
			}
			cond := o.(*corev1.ComponentStatus).Conditions[0]
			if cond.Status != want || component == "scheduler" && cond.Message != tt.words {
				t.Errorf("%s: %s: got %+v, want %s, %q", name, component, cond, want, tt.words)
			}
		}
	}
}
