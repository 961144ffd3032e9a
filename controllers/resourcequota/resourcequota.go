// SPDX-License-Identifier: Apache-2.0

// Package resourcequota maintains the status of every ResourceQuota: its limits from the spec, and the usage of the
// namespace's objects. The table of controllers starts it. Admission charges what is created; this controller subtracts
// the usage of deleted and finished objects, and corrects differences. It never subtracts usage of a deletion that it
// did not observe while a write may be in progress (decisions/0138). It watches a resource only when a quota counts it,
// and never polls.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	podkind "keelson/api/core/pod"
	"keelson/api/quota"
	"keelson/controllers/framework"
	"keelson/event"
)

const (
	// maxWriteDelay is the maximum time between the charge for an object and the write of the object: the server's
	// request time-out is a minute. If usage has not increased for this long, the part of it without objects is wrong.
	maxWriteDelay = 75 * time.Second
	// recalcDelay is the time during which changes that free usage are collected for one recalculation.
	// addedRecalcDelay is the same for new objects: admission has charged them already, so they are only verified.
	recalcDelay      = 20 * time.Millisecond
	addedRecalcDelay = time.Second
	// unknownResourceRetry is the interval at which the controller retries a resource that a quota counts but the
	// server does not serve.
	unknownResourceRetry = 30 * time.Second
)

// Controller recalculates usage.
type Controller struct {
	env      *framework.Env
	loop     *framework.Loop[framework.Key]
	quotas   corelisters.ResourceQuotaLister
	pods     corelisters.PodLister
	services corelisters.ServiceLister
	claims   *lazyInformer[*corev1.PersistentVolumeClaim]
	devices  *lazyInformer[*resourcev1.ResourceClaim]
	counters *counters
	stop     <-chan struct{} // closed when Run ends

	credits *creditTracker
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:      env,
		quotas:   core.ResourceQuotas().Lister(),
		pods:     core.Pods().Lister(),
		services: core.Services().Lister(),
		credits:  newCreditTracker(),
	}
	controller.claims = &lazyInformer[*corev1.PersistentVolumeClaim]{
		c:        controller,
		meter:    quota.MeterFor(schema.GroupResource{Resource: "persistentvolumeclaims"}),
		informer: core.PersistentVolumeClaims().Informer,
	}
	controller.watchDevices()
	controller.counters = newCounters(env.Client, controller.changed, controller.objectDeleted)
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, core.ResourceQuotas().Informer(), framework.Handlers[*corev1.ResourceQuota]{
			Add:    func(q *corev1.ResourceQuota) { controller.quotaChanged(nil, q) },
			Update: controller.quotaChanged,
			Delete: controller.quotaDeleted,
		}),
		framework.On(controller.loop, core.Pods().Informer(), framework.Handlers[*corev1.Pod]{
			Add: func(p *corev1.Pod) {
				controller.scheduleExpiry(p, true)
				controller.added(p)
			},
			Update: controller.podChanged,
			Delete: controller.podDeleted,
		}),
		framework.On(controller.loop, core.Services().Informer(),
			usageHandlers[*corev1.Service](controller, services)),
	)
	if err != nil {
		return nil, fmt.Errorf("resource quota: %w", err)
	}
	return controller, nil
}

// object is an object whose usage is measured.
type object interface {
	metav1.Object
	runtime.Object
}

// usageHandlers returns the handlers for objects whose usage may change.
func usageHandlers[T object](controller *Controller, meter *quota.Meter) framework.Handlers[T] {
	return framework.Handlers[T]{
		Add: func(o T) { controller.added(o) },
		Update: func(old, cur T) {
			namespace := old.GetNamespace()
			at := controller.credits.measureTime(old)
			// An object may also leave a quota's scope, and use as much as before.
			if controller.credits.creditDecrease(controller.quotasOf(namespace), meter, old, cur) ||
				!quota.Equal(meter.Usage(old, at), meter.Usage(cur, at)) {
				controller.changed(namespace, recalcDelay)
			}
		},
		Delete: func(o T) { controller.creditDecrease(meter, o, nil) },
	}
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.counters.wait()
	defer cancel()
	c.stop = ctx.Done()
	return c.loop.Run(ctx, ready)
}

func (c *Controller) quotaChanged(old, q *corev1.ResourceQuota) {
	c.credits.setQuota(old, q)
	if old == nil || !apiequality.Semantic.DeepEqual(q.Spec, old.Spec) || !apiequality.Semantic.DeepEqual(q.Spec.Hard,
		q.Status.Hard) ||
		len(old.Status.Used) > 0 && len(q.Status.Used) < len(old.Status.Used) { // a client has removed counted usage
		c.loop.Add(framework.KeyOf(q))
	}
}

func (c *Controller) quotaDeleted(q *corev1.ResourceQuota) { c.credits.removeQuota(framework.KeyOf(q)) }

// quotasOf returns a namespace's quotas.
func (c *Controller) quotasOf(namespace string) []*corev1.ResourceQuota {
	all, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache returns no error
	}
	return all
}

// changed queues a namespace's quotas for recalculation.
func (c *Controller) changed(namespace string, after time.Duration) {
	for _, q := range c.quotasOf(namespace) {
		c.loop.AddAfter(framework.KeyOf(q), after)
	}
}

func (c *Controller) added(o metav1.Object) { c.changed(o.GetNamespace(), addedRecalcDelay) }

// creditDecrease credits the quotas with the decrease of usage from old to cur, which is nil after a deletion.
func (c *Controller) creditDecrease(m *quota.Meter, old, cur object) {
	c.credits.creditDecrease(c.quotasOf(old.GetNamespace()), m, old, cur)
	c.changed(old.GetNamespace(), recalcDelay)
}

// objectDeleted credits the quotas with a deleted object of a resource that is only counted.
func (c *Controller) objectDeleted(gr schema.GroupResource, namespace, name string) {
	c.creditDecrease(quota.MeterFor(gr), &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
	}}, nil)
}

var (
	pods     = quota.MeterFor(schema.GroupResource{Resource: "pods"})
	services = quota.MeterFor(schema.GroupResource{Resource: "services"})
)

func (c *Controller) podChanged(old, p *corev1.Pod) {
	c.scheduleExpiry(p, false)
	if podkind.Terminal(p) != podkind.Terminal(old) || p.Generation != old.Generation && p.DeletionTimestamp == nil {
		c.creditDecrease(pods, old, p)
	}
}

// scheduleExpiry schedules a recalculation for when a terminating pod stops being charged.
func (c *Controller) scheduleExpiry(p *corev1.Pod, found bool) {
	if in, ends := c.credits.setPod(p, found); ends {
		c.changed(p.Namespace, in)
	}
}

func (c *Controller) podDeleted(p *corev1.Pod) {
	c.creditDecrease(pods, p, nil)
	c.credits.removePod(p)
}

// lazyInformer watches claims (of volumes or devices) from their first count on, because few quotas limit them.
type lazyInformer[T object] struct {
	c     *Controller
	meter *quota.Meter
	// informer returns the shared informer.
	informer func() cache.SharedIndexInformer
	// others watches what else the meter depends on; nil: nothing.
	others func() (cache.DoneChecker, error)
	mu     sync.Mutex
	synced []cache.DoneChecker
}

// add adds the usage of the namespace's claims for q, if it limits any; it waits for the first list.
func (l *lazyInformer[T]) add(ctx context.Context, used corev1.ResourceList, q *corev1.ResourceQuota) error {
	if len(l.meter.Tracked(q.Spec.Hard)) == 0 {
		return nil
	}
	claims, err := l.list(ctx, q.Namespace)
	if err != nil {
		return err
	}
	return addUsage(l.c.credits, used, q, l.meter, claims)
}

// started reports whether the claims are watched already.
func (l *lazyInformer[T]) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced != nil
}

// start watches the claims if they are not watched yet.
func (l *lazyInformer[T]) start() ([]cache.DoneChecker, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.synced != nil {
		return l.synced, nil
	}
	var all []cache.DoneChecker
	if l.others != nil {
		synced, err := l.others()
		if err != nil {
			return nil, err
		}
		all = append(all, synced)
	}
	synced, err := framework.Watch(l.informer(), usageHandlers[T](l.c, l.meter))
	if err != nil {
		return nil, err
	}
	l.synced = append(all, synced)
	l.c.env.Shared.Start(l.c.stop)
	return l.synced, nil
}

func (l *lazyInformer[T]) list(ctx context.Context, namespace string) ([]T, error) {
	synced, err := l.start()
	if err != nil {
		return nil, err
	}
	if !cache.WaitFor(ctx, "", synced...) {
		return nil, ctx.Err()
	}
	return l.cached(namespace), nil
}

// cached returns the claims of a namespace that the informer has.
func (l *lazyInformer[T]) cached(namespace string) (out []T) {
	err := cache.ListAllByNamespace(l.informer().GetIndexer(), namespace, labels.Everything(), func(o any) {
		if claim, ok := o.(T); ok {
			out = append(out, claim)
		}
	})
	if err != nil {
		return nil // an index over a cache returns no error
	}
	return out
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	begin := c.loop.QueuedAt(key)
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	some, next := c.credits.expirePods(key.Namespace, c.quotasOf(key.Namespace), pods)
	if some {
		c.changed(key.Namespace, recalcDelay) // the other quotas too
	}
	if next > 0 {
		c.loop.AddAfter(key, next)
	}
	credit := c.credits.takeCredit(key) // taken before the count, so that the count does not include deleted objects
	counted, failure := c.count(ctx, q)
	if counted == nil {
		c.credits.restoreCredit(key, credit)
		return failure
	}
	wrote := false
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := q
		if len(credit) > 0 { // the cached quota may be older than the charges of the deleted objects
			live, err := c.live(ctx, q)
			if err != nil || live == nil {
				return err
			}
			now = live
		}
		wrote, err = c.write(ctx, now, counted, credit)
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return failure
	case err != nil && notWritten(err):
		c.credits.restoreCredit(key, credit)
	}
	if err != nil || wrote {
		subject := event.Subject{
			Resource:  "resourcequotas",
			Namespace: q.Namespace,
			Name:      q.Name,
			UID:       string(q.UID),
		}
		c.env.Reconciled(subject, begin, &event.Reconcile{}, err)
	}
	return errors.Join(failure, err)
}

// live reads q from the server, nil if it was deleted. It lists, because the controller's role does not include get.
func (c *Controller) live(ctx context.Context, q *corev1.ResourceQuota) (*corev1.ResourceQuota, error) {
	l, err := c.env.Client.CoreV1().ResourceQuotas(q.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, q.Name).String(),
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		if l.Items[i].Name == q.Name && l.Items[i].UID == q.UID {
			return &l.Items[i], nil
		}
	}
	return nil, nil
}

// notWritten reports whether the error means that nothing was written. After other errors the credit counts as used,
// because it must not be used twice; the usage is correct again after maxWriteDelay.
func notWritten(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// write updates q's limits and usage: the previous usage minus the credit, but not less than counted.
func (c *Controller) write(
	ctx context.Context, q *corev1.ResourceQuota, counted, credit corev1.ResourceList,
) (bool, error) {
	key := framework.KeyOf(q)
	used, surplus := newUsage(q.Status.Used, counted, credit)
	if surplus {
		wait := maxWriteDelay - c.credits.sinceIncrease(key)
		if wait > 0 {
			c.loop.AddAfter(key, wait)
		} else {
			used = counted
		}
	}
	if quota.Equal(used, q.Status.Used) && apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
		return false, nil
	}
	next := q.DeepCopy()
	next.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: used}
	if next.Status.Hard == nil {
		next.Status.Hard = corev1.ResourceList{}
	}
	_, err := c.env.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return true, err
}

// newUsage subtracts the credit from the previous usage, down to the counted one. surplus reports that the result
// exceeds the counted usage.
func newUsage(was, counted, credit corev1.ResourceList) (used corev1.ResourceList, surplus bool) {
	used = make(corev1.ResourceList, len(counted))
	left := quota.Minus(was, credit)
	for name, n := range counted {
		used[name] = n
		if _, known := was[name]; !known {
			continue
		}
		if l := left[name]; l.Cmp(n) > 0 {
			used[name] = l
			surplus = true
		}
	}
	return used, surplus
}

// count sums up the usage of the namespace's objects for q. Unmeasured names are left out. What could not be counted
// keeps its usage, and is part of the error; the others are correct.
func (c *Controller) count(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	list, err := c.pods.Pods(q.Namespace).List(labels.Everything())
	if err == nil {
		err = addUsage(c.credits, used, q, pods, list)
	}
	if err != nil {
		return nil, err
	}
	svcs, err := c.services.Services(q.Namespace).List(labels.Everything())
	if err == nil {
		err = addUsage(c.credits, used, q, services, svcs)
	}
	if err != nil {
		return nil, err
	}
	if err := c.claims.add(ctx, used, q); err != nil {
		return nil, err
	}
	if err := c.countDevices(ctx, used, q); err != nil {
		return nil, err
	}
	var failed error
	scoped := len(quota.Scopes(q)) > 0
	for name := range q.Spec.Hard {
		gr, ok := quota.Counted(name)
		if _, done := used[name]; !ok || done {
			continue
		}
		if scoped {
			used[name] = intQuantity(0) // scopes apply to pods and claims only
			continue
		}
		n, err := c.counters.count(ctx, gr, q.Namespace)
		if errors.Is(err, errUnknown) { // perhaps a future custom resource
			c.loop.AddAfter(framework.KeyOf(q), unknownResourceRetry)
			continue
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("count %s: %w", gr, err))
			if was, ok := q.Status.Used[name]; ok {
				used[name] = was
			}
			continue
		}
		used[name] = intQuantity(n)
	}
	return used, failed
}
