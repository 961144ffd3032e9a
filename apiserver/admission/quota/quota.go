// SPDX-License-Identifier: Apache-2.0

// Package quota is the ResourceQuota admission plugin: it charges the additional usage of a write to the namespace's quotas before the
// write is stored, and rejects a write that exceeds a quota. The charge is written to the quota's status by compare-and-swap, so that
// concurrent servers and clients never exceed the limit. The resourcequota controller recalculates the usage; the plugin never does.
//
// Invariants:
//  1. A request is charged to all quotas that apply, or to none.
//  2. A charge for a write that is not stored is refunded. While the outcome is unknown it stays charged.
//  3. Writes of one namespace that arrive together are charged by one write to each quota.
//  4. Where no quota exists and nothing is limited by default, a write costs one atomic load.
package quota

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/quota"
	"keelson/apiserver/admission"
)

// Store updates a stored object by compare-and-swap: f gets the current state, which is shared, and returns the new one, or the same one
// for no write. A missing object is a 404 *apierrors.StatusError.
type Store interface {
	Amend(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, f func(runtime.Object) (runtime.Object, error)) error
}

// Resource is the resource that the plugin follows.
var Resource = corev1.SchemeGroupVersion.WithResource("resourcequotas")

// patience limits the duration of a charge.
const patience = 10 * time.Second

// Plugin is the admission plugin. Set and Remove update it.
type Plugin struct {
	store   Store
	limited []Limited
	known   atomic.Int64 // number of quotas

	mu     sync.RWMutex
	spaces map[string]*space
}

// space is a namespace with quotas.
type space struct {
	quotas map[string]*corev1.ResourceQuota // guarded by Plugin.mu
	line   line
}

// New returns a plugin without quotas. limited resources may be used only if a quota covers them.
func New(store Store, limited []Limited) *Plugin {
	return &Plugin{store: store, limited: limited, spaces: map[string]*space{}}
}

// Name is the plugin's name.
func (*Plugin) Name() string { return "ResourceQuota" }

// Set adds or updates a quota.
func (p *Plugin) Set(obj runtime.Object) {
	q, ok := obj.(*corev1.ResourceQuota)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spaces[q.Namespace]
	if s == nil {
		s = &space{quotas: map[string]*corev1.ResourceQuota{}}
		p.spaces[q.Namespace] = s
	}
	if _, had := s.quotas[q.Name]; !had {
		p.known.Add(1)
	}
	s.quotas[q.Name] = q
}

// Remove removes a deleted quota.
func (p *Plugin) Remove(obj runtime.Object) {
	q, ok := obj.(*corev1.ResourceQuota)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spaces[q.Namespace]
	if s == nil || s.quotas[q.Name] == nil {
		return
	}
	p.known.Add(-1)
	if delete(s.quotas, q.Name); len(s.quotas) == 0 {
		delete(p.spaces, q.Namespace)
	}
}

// of returns a namespace's quotas by name; nil if there are none.
func (p *Plugin) of(namespace string) (*space, []*corev1.ResourceQuota) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := p.spaces[namespace]
	if s == nil {
		return nil, nil
	}
	list := make([]*corev1.ResourceQuota, 0, len(s.quotas))
	for _, q := range s.quotas {
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *corev1.ResourceQuota) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return s, list
}

// uncounted resources are never limited: they are not stored, or not stored separately.
var uncounted = []schema.GroupResource{
	{Resource: "bindings"}, {Resource: "componentstatuses"}, {Resource: "events"}, {Group: "events.k8s.io", Resource: "events"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"}, {Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}, {Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
}

// handles reports whether a request can change the usage.
func handles(r *admission.Request, m *quota.Meter) bool {
	switch {
	case r.Operation == admission.Create:
		return r.Subresource == ""
	case r.Operation != admission.Update || !m.OnUpdate:
		return false
	}
	switch r.Resource.Resource {
	case "pods":
		return r.Subresource == "resize" || r.Subresource == "" && deadlineComes(r.OldObject, r.Object)
	case "persistentvolumeclaims":
		return r.Subresource == "" || r.Subresource == "status"
	}
	return r.Subresource == ""
}

// deadlineComes reports whether an update sets a pod's activeDeadlineSeconds, the only change that moves a pod to the scope of other
// quotas.
func deadlineComes(before, after runtime.Object) bool {
	was, ok1 := before.(*corev1.Pod)
	is, ok2 := after.(*corev1.Pod)
	return ok1 && ok2 && was.Spec.ActiveDeadlineSeconds == nil && is.Spec.ActiveDeadlineSeconds != nil
}

// Validate charges the request to the quotas that apply, or rejects it.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.known.Load() == 0 && len(p.limited) == 0 || r.Namespace == "" || r.Object == nil || r.Kind.Kind == "Namespace" && r.Kind.Group == "" {
		return nil
	}
	gr := r.Resource.GroupResource()
	s, quotas := p.of(r.Namespace)
	if len(quotas) == 0 && len(p.limited) == 0 || slices.Contains(uncounted, gr) {
		return nil
	}
	m := quota.MeterFor(gr)
	if !handles(r, m) {
		return nil
	}
	a := &ask{r: r, meter: m, now: time.Now(), signal: make(chan bool, 1)}
	if r.Operation == admission.Update {
		if a.old = r.OldObject; a.old == nil {
			return admission.Forbidden(r, "unable to get previous usage since prior version of object was not found")
		}
		if o, ok := a.old.(metav1.Object); ok && o.GetResourceVersion() == "" {
			a.old = nil // created by this update: all of it is new
		}
	}
	if err := p.uncovered(a, quotas); err != nil {
		return err
	}
	if !slices.ContainsFunc(quotas, a.concerns) {
		return nil
	}
	s.line.join(a, func(batch []*ask) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		p.serve(ctx, r.Namespace, batch)
	})
	if a.err == nil && len(a.charges) > 0 {
		r.OnSettle(func(o admission.Outcome) {
			if o == admission.NotStored {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
				defer cancel()
				p.refund(ctx, r.Namespace, []*ask{a})
			}
		})
	}
	return a.err
}

// ask is one request to be charged.
type ask struct {
	r     *admission.Request
	meter *quota.Meter
	old   runtime.Object
	now   time.Time
	// charges are the charged amounts by quota.
	charges map[string]corev1.ResourceList
	err     error
	// signal receives true when the ask must serve the line, false when it has been served.
	signal chan bool
}

// concerns reports whether q may apply to the ask.
func (a *ask) concerns(q *corev1.ResourceQuota) bool {
	delta, err := a.meter.Delta(q, a.r.Object, a.old, a.now)
	return err != nil || len(delta) > 0
}

// serve charges a batch of asks to each quota in turn.
func (p *Plugin) serve(ctx context.Context, namespace string, batch []*ask) {
	_, quotas := p.of(namespace)
	for _, q := range quotas {
		var asks []*ask
		for _, a := range batch {
			if a.err == nil && a.concerns(q) {
				asks = append(asks, a)
			}
		}
		if len(asks) == 0 {
			continue
		}
		t := &tally{asks: asks}
		if err := p.store.Amend(ctx, Resource, namespace, q.Name, t.charge); err != nil {
			if apierrors.IsNotFound(err) {
				continue // it was just deleted
			}
			for _, a := range asks {
				a.err = apierrors.NewInternalError(err)
			}
			continue
		}
		t.settle(q.Name)
	}
	var failed []*ask
	for _, a := range batch {
		if a.err != nil && len(a.charges) > 0 {
			failed = append(failed, a)
		}
	}
	p.refund(ctx, namespace, failed)
}

// tally is one attempt to charge asks to a quota.
type tally struct {
	asks   []*ask
	deltas []corev1.ResourceList
	errs   []error
}

// charge is the update function of a compare-and-swap: it checks every ask after the charges of the ones before.
func (t *tally) charge(current runtime.Object) (runtime.Object, error) {
	q, ok := current.(*corev1.ResourceQuota)
	if !ok {
		return current, nil
	}
	t.deltas, t.errs = make([]corev1.ResourceList, len(t.asks)), make([]error, len(t.asks))
	used, changed := q.Status.Used, false
	for i, a := range t.asks {
		delta, err := a.meter.Delta(q, a.r.Object, a.old, a.now)
		if err == nil && a.r.Subresource != "status" { // a status update reports existing usage: it is counted, never rejected
			err = quota.Exceeded(q, used, delta)
		}
		switch {
		case err != nil:
			t.errs[i] = err
		case len(delta) > 0 && !a.r.DryRun:
			t.deltas[i], used, changed = delta, quota.Sum(used, delta), true
		}
	}
	if !changed {
		return current, nil
	}
	next := q.DeepCopy()
	next.Status.Used = used
	return next, nil
}

// settle records the result of the successful attempt in the asks.
func (t *tally) settle(name string) {
	for i, a := range t.asks {
		if err := t.errs[i]; err != nil {
			a.err = admission.Forbidden(a.r, "%w", err)
		}
		if t.deltas[i] != nil {
			if a.charges == nil {
				a.charges = map[string]corev1.ResourceList{}
			}
			a.charges[name] = t.deltas[i]
		}
	}
}

// refund takes back the charges of asks that were not stored. After a failure the controller's recalculation corrects the usage.
func (p *Plugin) refund(ctx context.Context, namespace string, asks []*ask) {
	back := map[string]corev1.ResourceList{}
	for _, a := range asks {
		for name, delta := range a.charges {
			back[name] = quota.Sum(back[name], delta)
		}
		a.charges = nil
	}
	for name, delta := range back {
		_ = p.store.Amend(ctx, Resource, namespace, name, func(current runtime.Object) (runtime.Object, error) {
			q, ok := current.(*corev1.ResourceQuota)
			if !ok {
				return current, nil
			}
			next := q.DeepCopy()
			next.Status.Used = quota.Floor(quota.Minus(q.Status.Used, quota.Only(delta, quota.Names(q.Status.Used))))
			return next, nil
		})
	}
}
