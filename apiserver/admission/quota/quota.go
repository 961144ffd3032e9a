// SPDX-License-Identifier: Apache-2.0

// Package quota is the ResourceQuota admission plugin: it charges the additional usage of a write to the namespace's
// quotas before the write is stored, and rejects a write that exceeds a quota. The charge is written to the quota's
// status by compare-and-swap, so that concurrent servers and clients never exceed the limit. The resourcequota
// controller recalculates the usage; the plugin never does.
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
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/quota"
	"keelson/apiserver/admission"
)

// Writer updates a stored object by compare-and-swap: f gets the current state, which is shared, and returns the new
// one, or the same one for no write. A missing object is a 404 *apierrors.StatusError.
type Writer interface {
	GuaranteedUpdate(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, f func(
		runtime.Object,
	) (runtime.Object, error)) error
}

// Resource is the resource that the plugin follows.
var Resource = corev1.SchemeGroupVersion.WithResource("resourcequotas")

// chargeTimeout limits the duration of a charge.
const chargeTimeout = 10 * time.Second

// Plugin is the admission plugin. Set and Remove update it.
type Plugin struct {
	reader     admission.Reader
	writer     Writer
	limited    []Limited
	quotaCount atomic.Int64 // number of quotas

	mu         sync.RWMutex
	namespaces map[string]*namespaceQuotas
}

// namespaceQuotas is a namespace with quotas.
type namespaceQuotas struct {
	quotas  map[string]*corev1.ResourceQuota // guarded by Plugin.mu
	batcher batcher
}

// New returns a plugin without quotas. limited resources may be used only if a quota covers them.
func New(reader admission.Reader, writer Writer, limited []Limited) *Plugin {
	return &Plugin{
		reader:     reader,
		writer:     writer,
		limited:    limited,
		namespaces: map[string]*namespaceQuotas{},
	}
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
	s := p.namespaces[q.Namespace]
	if s == nil {
		s = &namespaceQuotas{quotas: map[string]*corev1.ResourceQuota{}}
		p.namespaces[q.Namespace] = s
	}
	if _, had := s.quotas[q.Name]; !had {
		p.quotaCount.Add(1)
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
	s := p.namespaces[q.Namespace]
	if s == nil || s.quotas[q.Name] == nil {
		return
	}
	p.quotaCount.Add(-1)
	if delete(s.quotas, q.Name); len(s.quotas) == 0 {
		delete(p.namespaces, q.Namespace)
	}
}

// quotasOf returns a namespace's quotas by name; nil if there are none.
func (p *Plugin) quotasOf(namespace string) (*namespaceQuotas, []*corev1.ResourceQuota) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	quotas := p.namespaces[namespace]
	if quotas == nil {
		return nil, nil
	}
	list := make([]*corev1.ResourceQuota, 0, len(quotas.quotas))
	for _, q := range quotas.quotas {
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *corev1.ResourceQuota) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return quotas, list
}

// notLimited resources are never limited: they are not stored, or not stored separately.
var notLimited = []schema.GroupResource{
	{Resource: "bindings"},
	{Resource: "componentstatuses"},
	{Resource: "events"},
	{
		Group:    "events.k8s.io",
		Resource: "events",
	},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{
		Group:    "authorization.k8s.io",
		Resource: "localsubjectaccessreviews",
	},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	{
		Group:    "authorization.k8s.io",
		Resource: "selfsubjectaccessreviews",
	},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
}

// handles reports whether a request can change the usage.
func handles(req *admission.Request, m *quota.Meter) bool {
	switch {
	case req.Operation == admission.Create:
		return req.Subresource == ""
	case req.Operation != admission.Update || !m.OnUpdate:
		return false
	}
	switch req.Resource.Resource {
	case "pods":
		return req.Subresource == "resize" || req.Subresource == "" && setsActiveDeadline(req.OldObject, req.Object)
	case "persistentvolumeclaims":
		return req.Subresource == "" || req.Subresource == "status"
	}
	return req.Subresource == ""
}

// setsActiveDeadline reports whether an update sets a pod's activeDeadlineSeconds, the only change that moves a pod to
// the scope of other quotas.
func setsActiveDeadline(before, after runtime.Object) bool {
	was, ok1 := before.(*corev1.Pod)
	is, ok2 := after.(*corev1.Pod)
	return ok1 && ok2 && was.Spec.ActiveDeadlineSeconds == nil && is.Spec.ActiveDeadlineSeconds != nil
}

// Validate charges the request to the quotas that apply, or rejects it.
func (p *Plugin) Validate(ctx context.Context, req *admission.Request) error {
	if p.quotaCount.Load() == 0 && len(p.limited) == 0 || req.Namespace == "" || req.Object == nil ||
		req.Kind.Kind == "Namespace" && req.Kind.Group == "" {
		return nil
	}
	gr := req.Resource.GroupResource()
	s, quotas := p.quotasOf(req.Namespace)
	if len(quotas) == 0 && len(p.limited) == 0 || slices.Contains(notLimited, gr) {
		return nil
	}
	m := p.meter(ctx, gr)
	if !handles(req, m) {
		return nil
	}
	a := &chargeRequest{
		r:      req,
		meter:  m,
		now:    time.Now(),
		signal: make(chan bool, 1),
	}
	if req.Operation == admission.Update {
		if a.old = req.OldObject; a.old == nil {
			return admission.Forbidden(req, "unable to get previous usage since prior version of object was not found")
		}
		if o, ok := a.old.(metav1.Object); ok && o.GetResourceVersion() == "" {
			a.old = nil // created by this update: all of it is new
		}
	}
	if err := p.checkLimited(a, quotas); err != nil {
		return err
	}
	if !slices.ContainsFunc(quotas, a.mayApply) {
		return nil
	}
	s.batcher.do(a, func(batch []*chargeRequest) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chargeTimeout)
		defer cancel()
		p.chargeBatch(ctx, req.Namespace, batch)
	})
	if a.err == nil && len(a.charges) > 0 {
		req.Reserved(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chargeTimeout)
			defer cancel()
			p.refund(ctx, req.Namespace, []*chargeRequest{a})
		})
	}
	return a.err
}

var (
	deviceClaims  = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	deviceClasses = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")
	podResource   = corev1.SchemeGroupVersion.WithResource("pods")
)

// meter returns the meter of a resource. That of ResourceClaims reads what it needs for each claim.
func (p *Plugin) meter(ctx context.Context, gr schema.GroupResource) *quota.Meter {
	if gr != deviceClaims.GroupResource() {
		return quota.MeterFor(gr)
	}
	return quota.DeviceClaimMeter(quota.View{
		Extended: func(name string) corev1.ResourceName {
			obj, err := p.reader.Get(ctx, deviceClasses, "", name)
			if class, ok := obj.(*resourcev1.DeviceClass); ok && err == nil && class.Spec.ExtendedResourceName != nil {
				return corev1.ResourceName(*class.Spec.ExtendedResourceName)
			}
			return ""
		},
		Pod: func(namespace, name string) *corev1.Pod {
			obj, err := p.reader.Get(ctx, podResource, namespace, name)
			if pod, ok := obj.(*corev1.Pod); ok && err == nil {
				return pod
			}
			return nil
		},
		Claims: func(namespace string) (claims []*resourcev1.ResourceClaim) {
			objs, err := p.reader.List(ctx, deviceClaims, namespace)
			if err != nil {
				return nil
			}
			for _, obj := range objs {
				if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
					claims = append(claims, claim)
				}
			}
			return claims
		},
	})
}

// chargeRequest is one request to be charged.
type chargeRequest struct {
	r     *admission.Request
	meter *quota.Meter
	old   runtime.Object
	now   time.Time
	// charges are the charged amounts by quota.
	charges map[string]corev1.ResourceList
	err     error
	// signal receives true when the request must charge the batch, false when it has been charged.
	signal chan bool
}

// mayApply reports whether q may apply to the request.
func (a *chargeRequest) mayApply(q *corev1.ResourceQuota) bool {
	delta, err := a.meter.Delta(q, a.r.Object, a.old, a.now)
	return err != nil || len(delta) > 0
}

// chargeBatch charges a batch of requests to each quota in turn.
func (p *Plugin) chargeBatch(ctx context.Context, namespace string, requests []*chargeRequest) {
	_, quotas := p.quotasOf(namespace)
	for _, q := range quotas {
		var affected []*chargeRequest
		for _, a := range requests {
			if a.err == nil && a.mayApply(q) {
				affected = append(affected, a)
			}
		}
		if len(affected) == 0 {
			continue
		}
		t := &chargeAttempt{requests: affected}
		if err := p.writer.GuaranteedUpdate(ctx, Resource, namespace, q.Name, t.charge); err != nil {
			if apierrors.IsNotFound(err) {
				continue // it was just deleted
			}
			for _, a := range affected {
				a.err = apierrors.NewInternalError(err)
			}
			continue
		}
		t.settle(q.Name)
	}
	var failed []*chargeRequest
	for _, a := range requests {
		if a.err != nil && len(a.charges) > 0 {
			failed = append(failed, a)
		}
	}
	p.refund(ctx, namespace, failed)
}

// chargeAttempt is one attempt to charge requests to a quota.
type chargeAttempt struct {
	requests []*chargeRequest
	deltas   []corev1.ResourceList
	errs     []error
}

// charge is the update function of a compare-and-swap: it checks every request after the charges of the ones before.
func (t *chargeAttempt) charge(current runtime.Object) (runtime.Object, error) {
	q, ok := current.(*corev1.ResourceQuota)
	if !ok {
		return current, nil
	}
	t.deltas = make([]corev1.ResourceList, len(t.requests))
	t.errs = make([]error, len(t.requests))
	used := q.Status.Used
	changed := false
	for i, a := range t.requests {
		delta, err := a.meter.Delta(q, a.r.Object, a.old, a.now)
		// a status update reports existing usage: it is counted, never rejected
		if err == nil && a.r.Subresource != "status" {
			err = quota.Exceeded(q, used, delta)
		}
		switch {
		case err != nil:
			t.errs[i] = err
		case len(delta) > 0 && !a.r.DryRun:
			t.deltas[i] = delta
			used = quota.Sum(used, delta)
			changed = true
		}
	}
	if !changed {
		return current, nil
	}
	next := q.DeepCopy()
	next.Status.Used = used
	return next, nil
}

// settle records the result of the successful attempt in the requests.
func (t *chargeAttempt) settle(name string) {
	for i, a := range t.requests {
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

// refund takes back the charges of requests that were not stored. After a failure the controller's recalculation
// corrects the usage.
func (p *Plugin) refund(ctx context.Context, namespace string, requests []*chargeRequest) {
	back := map[string]corev1.ResourceList{}
	for _, a := range requests {
		for name, delta := range a.charges {
			back[name] = quota.Sum(back[name], delta)
		}
		a.charges = nil
	}
	for name, delta := range back {
		_ = p.writer.GuaranteedUpdate(ctx, Resource, namespace, name, func(
			current runtime.Object,
		) (runtime.Object, error) {
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
