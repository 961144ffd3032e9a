// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"keelson/api/quota"
	"keelson/client"
	"keelson/controllers/internal/catalog"
)

func intQuantity(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// addUsage adds the usage of objs to used, for those of q's limits that meter measures.
func addUsage[T object](
	l *creditTracker, used corev1.ResourceList, q *corev1.ResourceQuota, meter *quota.Meter, objs []T,
) error {
	tracked := meter.Tracked(q.Spec.Hard)
	if len(tracked) == 0 {
		return nil
	}
	sum := corev1.ResourceList{}
	scopes := quota.Scopes(q)
	for _, n := range tracked {
		sum[n] = resource.Quantity{Format: resource.DecimalSI}
	}
	for _, obj := range objs {
		in, err := meter.In(scopes, obj)
		if err != nil {
			return err
		}
		if !in {
			continue
		}
		for n, v := range meter.Usage(obj, l.measureTime(obj)) {
			if total, ok := sum[n]; ok {
				if total.IsZero() {
					total = v.DeepCopy()
				} else {
					total.Add(v)
				}
				sum[n] = total
			}
		}
	}
	for n, v := range sum {
		if had, ok := used[n]; ok { // extended resources are used by pods and by claims of devices
			v.Add(had)
		}
		used[n] = v
	}
	return nil
}

// counters count objects of resources without a typed informer. A resource is watched from its first count on.
type counters struct {
	client  *client.Client
	changed func(namespace string, after time.Duration)
	deleted func(gr schema.GroupResource, namespace, name string)
	wg      sync.WaitGroup

	mu  sync.Mutex
	all map[schema.GroupResource]*counter
}

func newCounters(c *client.Client, changed func(string, time.Duration), deleted func(
	schema.GroupResource, string, string,
),
) *counters {
	return &counters{
		client:  c,
		changed: changed,
		deleted: deleted,
		all:     map[schema.GroupResource]*counter{},
	}
}

func (c *counters) wait() { c.wg.Wait() }

// errUnknown: the server does not serve the resource; it may later.
var errUnknown = errors.New("no such resource")

// firstListTimeout limits the wait for the first list of a resource, so that one that cannot be listed does not delay
// other quotas.
const firstListTimeout = time.Second

// count returns the number of objects of gr in the namespace. It waits at most firstListTimeout for the first list.
func (c *counters) count(ctx context.Context, gr schema.GroupResource, namespace string) (int, error) {
	n, err := c.counter(ctx, gr)
	if err != nil {
		return 0, err
	}
	t := time.NewTimer(firstListTimeout)
	defer t.Stop()
	select {
	case <-n.synced:
		return n.countIn(namespace), nil
	case <-t.C:
		return 0, errors.New("the server has not listed them yet")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// counter returns the counter of gr and starts it if needed.
func (c *counters) counter(ctx context.Context, gr schema.GroupResource) (*counter, error) {
	c.mu.Lock()
	n := c.all[gr]
	c.mu.Unlock()
	if n != nil {
		return n, nil
	}
	gvr, err := c.resolve(ctx, gr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.all[gr]; n != nil {
		return n, nil
	}
	n = &counter{
		names:   map[string]map[string]struct{}{},
		synced:  make(chan struct{}),
		changed: c.changed,
		deleted: func(ns, name string) { c.deleted(gr, ns, name) },
	}
	c.all[gr] = n
	c.watch(ctx, gvr, n)
	return n, nil
}

// stop stops the counter of a resource that is no longer served; the next count looks for it again.
func (c *counters) stop(gr schema.GroupResource, n *counter) {
	c.mu.Lock()
	if c.all[gr] == n {
		delete(c.all, gr)
	}
	c.mu.Unlock()
	_ = n.Replace(nil, "") // Replace always returns nil
}

func (c *counters) resolve(ctx context.Context, gr schema.GroupResource) (schema.GroupVersionResource, error) {
	all, err := catalog.Load(ctx, c.client.Discovery())
	for _, r := range all {
		if r.GVR.GroupResource() == gr && r.Namespaced && r.Supports("list", "watch") {
			return r.GVR, nil
		}
	}
	if err == nil {
		err = errUnknown
	}
	return schema.GroupVersionResource{}, fmt.Errorf("find %s: %w", gr, err)
}

func (c *counters) watch(ctx context.Context, gvr schema.GroupVersionResource, n *counter) {
	objs := c.client.MetadataOf(gvr)
	ctx, cancel := context.WithCancel(ctx)
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := objs.ListWithContext(ctx, o)
			if apierrors.IsNotFound(err) { // the definition was deleted
				c.stop(gvr.GroupResource(), n)
				cancel()
			}
			return l, err
		},
		WatchFuncWithContext: objs.WatchWithContext,
	}, c.client.Metadata)
	r := cache.NewReflectorWithOptions(lw, nil, n, cache.ReflectorOptions{
		Name:            "quota " + gvr.String(),
		TypeDescription: gvr.String(),
	})
	c.wg.Go(func() {
		defer cancel()
		r.RunWithContext(ctx)
	})
}

// counter is the store of a reflector: it keeps only the names of a resource's objects.
type counter struct {
	synced  chan struct{}
	first   sync.Once
	changed func(namespace string, after time.Duration)
	deleted func(namespace, name string)

	mu    sync.Mutex
	names map[string]map[string]struct{}
}

func (n *counter) countIn(namespace string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.names[namespace])
}

// Add adds an object.
func (n *counter) Add(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil
	}
	n.mu.Lock()
	set := n.names[o.GetNamespace()]
	if set == nil {
		set = map[string]struct{}{}
		n.names[o.GetNamespace()] = set
	}
	_, had := set[o.GetName()]
	set[o.GetName()] = struct{}{}
	n.mu.Unlock()
	if !had {
		n.changed(o.GetNamespace(), addedRecalcDelay)
	}
	return nil
}

// Update does not change the number.
func (n *counter) Update(obj any) error { return n.Add(obj) }

// Delete removes an object.
func (n *counter) Delete(obj any) error {
	o, ok := client.Delivered[metav1.Object](obj)
	if !ok {
		return nil
	}
	n.mu.Lock()
	_, had := n.names[o.GetNamespace()][o.GetName()]
	if delete(n.names[o.GetNamespace()], o.GetName()); len(n.names[o.GetNamespace()]) == 0 {
		delete(n.names, o.GetNamespace())
	}
	n.mu.Unlock()
	if had {
		n.deleted(o.GetNamespace(), o.GetName())
	}
	return nil
}

// Replace sets the objects.
func (n *counter) Replace(objs []any, _ string) error {
	names := map[string]map[string]struct{}{}
	for _, obj := range objs {
		if o, ok := obj.(metav1.Object); ok {
			if names[o.GetNamespace()] == nil {
				names[o.GetNamespace()] = map[string]struct{}{}
			}
			names[o.GetNamespace()][o.GetName()] = struct{}{}
		}
	}
	n.mu.Lock()
	before := n.names
	n.names = names
	n.mu.Unlock()
	n.first.Do(func() { close(n.synced) })
	for ns, set := range before {
		for name := range set {
			if _, stays := names[ns][name]; !stays {
				n.deleted(ns, name)
			}
		}
		n.changed(ns, recalcDelay)
	}
	for ns := range names {
		if before[ns] == nil {
			n.changed(ns, recalcDelay)
		}
	}
	return nil
}

// Resync does nothing.
func (n *counter) Resync() error { return nil }
