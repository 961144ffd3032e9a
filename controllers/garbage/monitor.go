// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
)

// ignored resources are numerous and have no relevant owners or dependents.
var ignored = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

// monitor adds one resource's objects to the graph.
type monitor struct {
	res    *catalog.Resource
	cancel context.CancelFunc
	// synced is closed when the initial state has been delivered.
	synced chan struct{}
}

func (c *Controller) monitorList() []*monitor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.monitors))
}

// syncMonitors runs discovery, starts monitors for new resources and stops those of removed ones.
func (c *Controller) syncMonitors(ctx context.Context, wg *sync.WaitGroup) error {
	all, err := catalog.Load(ctx, c.env.Client.Discovery())
	var partial *catalog.PartialError
	if err != nil && !errors.As(err, &partial) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if partial == nil {
		clear(c.kinds)
	}
	served := map[schema.GroupVersionResource]bool{}
	for _, res := range all {
		c.kinds[res.GroupKind()] = res
		if !res.Supports("delete", "list", "watch") || slices.Contains(ignored, res.GVR.GroupResource()) {
			continue
		}
		served[res.GVR] = true
		if c.monitors[res.GVR] == nil {
			c.monitors[res.GVR] = c.startMonitor(ctx, wg, res)
		}
	}
	for gvr, m := range c.monitors {
		if served[gvr] || partial != nil && partial.Groups[gvr.GroupVersion()] != nil {
			continue
		}
		m.cancel()
		delete(c.monitors, gvr)
		// The resource was removed, and its objects with it.
		for _, uid := range c.graph.nodesOf(m.res) {
			c.enqueue(uid, c.graph.remove(uid))
		}
	}
	if partial != nil {
		return partial
	}
	return nil
}

func (c *Controller) startMonitor(ctx context.Context, wg *sync.WaitGroup, res *catalog.Resource) *monitor {
	ctx, cancel := context.WithCancel(ctx)
	m := &monitor{res: res, cancel: cancel, synced: make(chan struct{})}
	if inf := c.shared[res.GVR]; inf != nil {
		wg.Go(func() { c.watchShared(ctx, m, inf) })
		return m
	}
	lw := cache.ToListWatcherWithWatchListSemantics(c.env.Client.MetadataOf(res.GVR), c.env.Client.Metadata)
	r := cache.NewReflectorWithOptions(lw, nil, &reflectorStore{c: c, m: m}, cache.ReflectorOptions{
		Name:            "garbage " + res.GVR.String(),
		TypeDescription: res.GVR.String(),
	})
	wg.Go(func() { r.RunWithContext(ctx) })
	return m
}

// watchShared reads from a shared informer.
func (c *Controller) watchShared(ctx context.Context, m *monitor, inf cache.SharedIndexInformer) {
	synced, err := framework.Watch(inf, framework.Handlers[metav1.Object]{
		Add: func(o metav1.Object) { c.observe(m.res, o) },
		Update: func(old, cur metav1.Object) {
			if old.GetUID() != cur.GetUID() {
				c.objectDeleted(m.res, old.GetUID())
			}
			c.observe(m.res, cur)
		},
		Delete: func(o metav1.Object) { c.objectDeleted(m.res, o.GetUID()) },
	})
	if err == nil && cache.WaitFor(ctx, "", synced) {
		close(m.synced)
	}
}

// reflectorStore is the store of a monitor's reflector: the graph is the only copy.
type reflectorStore struct {
	c     *Controller
	m     *monitor
	first sync.Once
}

func (f *reflectorStore) Add(obj any) error {
	if o, ok := obj.(metav1.Object); ok {
		f.c.observe(f.m.res, o)
	}
	return nil
}

func (f *reflectorStore) Update(obj any) error { return f.Add(obj) }

func (f *reflectorStore) Delete(obj any) error {
	if o, ok := obj.(metav1.Object); ok {
		f.c.objectDeleted(f.m.res, o.GetUID())
	}
	return nil
}

// Replace sets the graph's objects of the resource.
func (f *reflectorStore) Replace(objs []any, _ string) error {
	there := make(map[types.UID]bool, len(objs))
	for _, obj := range objs {
		if o, ok := obj.(metav1.Object); ok {
			there[o.GetUID()] = true
			f.c.observe(f.m.res, o)
		}
	}
	for _, uid := range f.c.graph.nodesOf(f.m.res) {
		if !there[uid] {
			f.c.objectDeleted(f.m.res, uid)
		}
	}
	f.first.Do(func() { close(f.m.synced) })
	return nil
}

// Resync does nothing.
func (f *reflectorStore) Resync() error { return nil }
