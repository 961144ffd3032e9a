// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/access"
)

// components serves componentstatuses, computed at each request. A component in this process is healthy as long as the
// server runs. For another one it checks the leader's lease, because its address is unknown.
type components struct {
	// inProcess has the lease names of components in this process.
	inProcess map[string]bool
	store     func(context.Context) error
	lease     func(ctx context.Context, name string) (runtime.Object, error)
	now       func() time.Time
}

// agents are the components except the store, with their leader election leases in kube-system.
var agents = []struct {
	name, lease string
}{{"controller-manager", "kube-controller-manager"}, {"scheduler", "kube-scheduler"}}

var leases = coordinationv1.SchemeGroupVersion.WithResource("leases")

func newComponents(
	inProcess map[string]bool, store func(context.Context) error, reader *access.Reader,
) components {
	return components{
		inProcess: inProcess,
		store:     store,
		now:       time.Now,
		lease: func(ctx context.Context, name string) (runtime.Object, error) {
			return reader.Get(ctx, leases, metav1.NamespaceSystem, name)
		},
	}
}

// Get returns 404 for unknown names.
func (c components) Get(ctx context.Context, _, name string) (kind.Object, error) {
	all, err := c.List(ctx, "", nil, nil)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.GetName() == name {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "componentstatuses"}, name)
}

// List computes all of them.
func (c components) List(ctx context.Context, _ string, l labels.Selector, _ fields.Selector) ([]kind.Object, error) {
	out := []kind.Object{}
	add := func(name string, cond corev1.ComponentCondition) {
		cond.Type = corev1.ComponentHealthy
		if l == nil || l.Matches(labels.Set{}) {
			out = append(out, &corev1.ComponentStatus{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ComponentStatus"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Conditions: []corev1.ComponentCondition{cond},
			})
		}
	}
	for _, a := range agents {
		add(a.name, c.agent(ctx, a.lease))
	}
	cond := corev1.ComponentCondition{Status: corev1.ConditionTrue, Message: "ok"}
	if err := c.store(ctx); err != nil {
		cond = corev1.ComponentCondition{Status: corev1.ConditionFalse, Error: err.Error()}
	}
	add("etcd-0", cond)
	return out, nil
}

func (c components) agent(ctx context.Context, name string) corev1.ComponentCondition {
	if c.inProcess[name] {
		return corev1.ComponentCondition{Status: corev1.ConditionTrue, Message: "ok"}
	}
	obj, err := c.lease(ctx, name)
	lease, _ := obj.(*coordinationv1.Lease)
	switch {
	case apierrors.IsNotFound(err),
		err == nil && (lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil):
		return corev1.ComponentCondition{
			Status: corev1.ConditionUnknown,
			Message: fmt.Sprintf(
				"no process holds the lease kube-system/%s: it does not run, or runs without leader election", name),
		}
	case err != nil:
		return corev1.ComponentCondition{Status: corev1.ConditionUnknown, Error: err.Error()}
	}
	who := ""
	if lease.Spec.HolderIdentity != nil {
		who = *lease.Spec.HolderIdentity
	}
	ago := c.now().Sub(lease.Spec.RenewTime.Time).Round(time.Second)
	switch {
	case who == "":
		return corev1.ComponentCondition{
			Status:  corev1.ConditionFalse,
			Message: fmt.Sprintf("its leader gave the lease kube-system/%s back %v ago", name, ago),
		}
	case ago > time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second:
		return corev1.ComponentCondition{
			Status:  corev1.ConditionFalse,
			Message: fmt.Sprintf("%s last renewed the lease kube-system/%s %v ago", who, name, ago),
		}
	}
	return corev1.ComponentCondition{Status: corev1.ConditionTrue, Message: "ok"}
}
