// SPDX-License-Identifier: Apache-2.0

// Package resourcequota keeps the status of every ResourceQuota true: its limits
// as the spec has them, and its usage as the namespace's objects add up to it.
// The table of controllers starts it. Admission charges what is created; this
// loop lowers the usage when objects go or finish, and mends what got out of
// step. It follows a resource only once a quota counts it, and never scans.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/api/quota"
	"keelson/controllers/framework"
	"keelson/lib/mark"
)

const (
	// settling is how long a quota must have been left alone before its usage may be lowered: what admission charged a moment
	// ago may not be visible as an object yet. After patience the recount goes ahead anyway.
	settling = 500 * time.Millisecond
	patience = 10 * time.Second
	// gather is how long changes that free something are gathered; additions, which admission has charged, are only checked.
	gather      = 20 * time.Millisecond
	gatherAdded = time.Second
	// lookAgain is when a resource that is not served is looked for again, as long as a quota counts it.
	lookAgain = 30 * time.Second
)

// Controller recounts.
type Controller struct {
	env      *framework.Env
	loop     *framework.Loop[framework.Key]
	quotas   corelisters.ResourceQuotaLister
	pods     corelisters.PodLister
	services corelisters.ServiceLister
	claims   *lateInformer[*corev1.PersistentVolumeClaim]
	devices  *lateInformer[*resourcev1.ResourceClaim]
	others   *counters
	stop     <-chan struct{} // closed when Run ends

	mu sync.Mutex
	// spaces are the quotas of each namespace, with the time of the last change heard of.
	spaces map[string]map[string]time.Time
	// waiting is since when a recount has been put off.
	waiting map[framework.Key]time.Time
	// freed are the quotas whose usage may go down: something went. What was only added is never a reason to.
	freed map[framework.Key]bool
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	c := &Controller{
		env: env, quotas: core.ResourceQuotas().Lister(), pods: core.Pods().Lister(), services: core.Services().Lister(),
		spaces: map[string]map[string]time.Time{}, waiting: map[framework.Key]time.Time{}, freed: map[framework.Key]bool{},
	}
	c.claims = &lateInformer[*corev1.PersistentVolumeClaim]{
		c: c, gr: schema.GroupResource{Resource: "persistentvolumeclaims"}, informer: core.PersistentVolumeClaims().Informer,
	}
	c.devices = &lateInformer[*resourcev1.ResourceClaim]{c: c, gr: deviceClaims, informer: func() cache.SharedIndexInformer {
		return resourceinformers.New(env.Shared.Scoped()).ResourceClaims().Informer()
	}}
	c.others = newCounters(env.Client, c.changed)
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	err := errors.Join(
		framework.On(c.loop, core.ResourceQuotas().Informer(), framework.Handlers[*corev1.ResourceQuota]{
			Add: func(q *corev1.ResourceQuota) { c.quotaChanged(nil, q) }, Update: c.quotaChanged, Delete: c.quotaGone,
		}),
		framework.On(c.loop, core.Pods().Informer(), framework.Handlers[*corev1.Pod]{
			Add: func(p *corev1.Pod) { c.added(p) }, Update: c.podChanged, Delete: func(p *corev1.Pod) { c.changed(p.Namespace, gather) },
		}),
		framework.On(c.loop, core.Services().Informer(), measured[*corev1.Service](c, schema.GroupResource{Resource: "services"})),
	)
	if err != nil {
		return nil, fmt.Errorf("resource quota: %w", err)
	}
	return c, nil
}

// object is one whose usage is measured.
type object interface {
	metav1.Object
	runtime.Object
}

// measured hears of objects whose usage may change while they live.
func measured[T object](c *Controller, gr schema.GroupResource) framework.Handlers[T] {
	m := quota.MeterFor(gr)
	return framework.Handlers[T]{
		Add: func(o T) { c.added(o) },
		Update: func(old, cur T) {
			if now := time.Now(); !quota.Equal(m.Usage(old, now), m.Usage(cur, now)) {
				c.changed(cur.GetNamespace(), gather)
			}
		},
		Delete: func(o T) { c.changed(o.GetNamespace(), gather) },
	}
}

// Run is a run.Func.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.others.wait()
	defer cancel()
	c.stop = ctx.Done()
	return c.loop.Run(ctx, ready)
}

func (c *Controller) quotaChanged(old, q *corev1.ResourceQuota) {
	c.mu.Lock()
	if c.spaces[q.Namespace] == nil {
		c.spaces[q.Namespace] = map[string]time.Time{}
	}
	c.spaces[q.Namespace][q.Name] = time.Now()
	c.mu.Unlock()
	if old == nil || !apiequality.Semantic.DeepEqual(q.Spec, old.Spec) || !apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) ||
		len(old.Status.Used) > 0 && len(q.Status.Used) < len(old.Status.Used) { // somebody erased what was counted
		c.loop.Add(framework.KeyOf(q))
	}
}

func (c *Controller) quotaGone(q *corev1.ResourceQuota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, framework.KeyOf(q))
	delete(c.freed, framework.KeyOf(q))
	if delete(c.spaces[q.Namespace], q.Name); len(c.spaces[q.Namespace]) == 0 {
		delete(c.spaces, q.Namespace)
	}
}

// changed calls for a recount of a namespace's quotas.
func (c *Controller) changed(namespace string, after time.Duration) {
	c.mu.Lock()
	var keys []framework.Key
	for name := range c.spaces[namespace] {
		key := framework.Key{Namespace: namespace, Name: name}
		keys = append(keys, key)
		if after != gatherAdded {
			c.freed[key] = true
		}
	}
	c.mu.Unlock()
	for _, key := range keys {
		c.loop.AddAfter(key, after)
	}
}

func (c *Controller) added(o metav1.Object) { c.changed(o.GetNamespace(), gatherAdded) }

func (c *Controller) podChanged(old, p *corev1.Pod) {
	if end := quota.Expires(p); !end.IsZero() && old.DeletionTimestamp == nil {
		c.changed(p.Namespace, time.Until(end)+time.Second)
	}
	if podkind.Terminal(p) != podkind.Terminal(old) || p.Generation != old.Generation && p.DeletionTimestamp == nil {
		c.changed(p.Namespace, gather)
	}
}

// lateInformer follows claims, of volumes or of devices, from the first question on: few quotas limit them.
type lateInformer[T object] struct {
	c  *Controller
	gr schema.GroupResource
	// informer is the shared one.
	informer func() cache.SharedIndexInformer
	mu       sync.Mutex
	synced   cache.DoneChecker
}

// add adds what the namespace's claims use of q, if it limits any; it waits for the first list.
func (l *lateInformer[T]) add(ctx context.Context, used corev1.ResourceList, q *corev1.ResourceQuota) error {
	if len(quota.MeterFor(l.gr).Tracked(q.Spec.Hard)) == 0 {
		return nil
	}
	claims, err := l.list(ctx, q.Namespace)
	if err != nil {
		return err
	}
	return tally(used, q, l.gr, claims)
}

func (l *lateInformer[T]) list(ctx context.Context, namespace string) ([]T, error) {
	inf := l.informer()
	l.mu.Lock()
	if l.synced == nil {
		synced, err := framework.Watch(inf, measured[T](l.c, l.gr))
		if err != nil {
			l.mu.Unlock()
			return nil, err
		}
		l.synced = synced
		l.c.env.Shared.Start(l.c.stop)
	}
	synced := l.synced
	l.mu.Unlock()
	if !cache.WaitFor(ctx, "", synced) {
		return nil, ctx.Err()
	}
	var out []T
	err := cache.ListAllByNamespace(inf.GetIndexer(), namespace, labels.Everything(), func(o any) {
		if claim, ok := o.(T); ok {
			out = append(out, claim)
		}
	})
	return out, err
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	begin := c.loop.Seen(key)
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	fresh := !apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard)
	if !fresh && c.unsettled(key) {
		c.loop.AddAfter(key, settling)
		return nil
	}
	lower := c.mayLower(key, fresh)
	used, failure := c.count(ctx, q)
	if failure != nil && lower {
		c.owe(key)
	}
	if used == nil {
		return failure
	}
	if !lower {
		raise(used, q.Status.Used)
	}
	if !fresh && quota.Equal(used, q.Status.Used) {
		return failure
	}
	next := q.DeepCopy()
	next.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: used}
	if next.Status.Hard == nil {
		next.Status.Hard = corev1.ResourceList{}
	}
	_, err = c.env.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil && lower {
		c.owe(key)
	}
	subject := mark.Subject{Resource: "resourcequotas", Namespace: q.Namespace, Name: q.Name, UID: string(q.UID)}
	c.env.Reconciled(subject, begin, &mark.Reconcile{}, err)
	return errors.Join(failure, err)
}

// owe lets the retry of a failed pass lower the usage, too: what went is still to be told.
func (c *Controller) owe(key framework.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed[key] = true
}

// mayLower tells whether something went since the last time. New limits take effect at once, at no less than the usage there was,
// and are counted again a little later.
func (c *Controller) mayLower(key framework.Key, fresh bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fresh {
		c.freed[key] = true
		c.loop.AddAfter(key, settling)
		return false
	}
	lower := c.freed[key]
	delete(c.freed, key)
	return lower
}

// raise makes used at least what it was.
func raise(used, was corev1.ResourceList) {
	for name, n := range used {
		if old, ok := was[name]; ok && old.Cmp(n) > 0 {
			used[name] = old
		}
	}
}

// unsettled tells whether a recount has to wait for charges of a moment ago to show.
func (c *Controller) unsettled(key framework.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	since, waits := c.waiting[key]
	if now.Sub(c.spaces[key.Namespace][key.Name]) >= settling || waits && now.Sub(since) >= patience {
		delete(c.waiting, key)
		return false
	}
	if !waits {
		c.waiting[key] = now
	}
	return true
}

var deviceClaims = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}

// countDevices adds what claims of devices use, where the server has such claims.
func (c *Controller) countDevices(ctx context.Context, used corev1.ResourceList, q *corev1.ResourceQuota) error {
	if len(quota.MeterFor(deviceClaims).Tracked(q.Spec.Hard)) == 0 {
		return nil
	}
	_, err := c.others.find(ctx, deviceClaims)
	if errors.Is(err, errUnknown) {
		c.loop.AddAfter(framework.KeyOf(q), lookAgain)
		return nil
	}
	if err != nil {
		return err
	}
	return c.devices.add(ctx, used, q)
}

// count adds up what the namespace's objects use of q. A name that nothing measures stays out. What could not be counted keeps
// the usage it had, and the error tells why; the others are right nevertheless.
func (c *Controller) count(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	pods, err := c.pods.Pods(q.Namespace).List(labels.Everything())
	if err == nil {
		err = tally(used, q, schema.GroupResource{Resource: "pods"}, pods)
	}
	if err != nil {
		return nil, err
	}
	services, err := c.services.Services(q.Namespace).List(labels.Everything())
	if err == nil {
		err = tally(used, q, schema.GroupResource{Resource: "services"}, services)
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
			used[name] = number(0) // scopes hold pods and claims only
			continue
		}
		n, err := c.others.count(ctx, gr, q.Namespace)
		if errors.Is(err, errUnknown) { // a custom resource to come, perhaps
			c.loop.AddAfter(framework.KeyOf(q), lookAgain)
			continue
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("count %s: %w", gr, err))
			if was, ok := q.Status.Used[name]; ok {
				used[name] = was
			}
			continue
		}
		used[name] = number(n)
	}
	return used, failed
}
