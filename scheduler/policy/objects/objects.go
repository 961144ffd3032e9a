// SPDX-License-Identifier: Apache-2.0

// Package objects follows SchedulingPolicy objects for the scheduler: it compiles them, keeps the policies that are in effect in a policy.Set,
// and writes what it found into their status. It waits for the objects' definition, which need not be there, by a watch and not by asking.
//
// A version that cannot be compiled changes nothing: what was in effect stays so. That is kept in the object's status, so that it holds after a
// restart too.
package objects

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"keelson/client"
	"keelson/scheduler/policy"
)

// Config says what to follow and whom to tell. Client, Set and Changed are needed.
type Config struct {
	Client dynamic.Interface
	Set    *policy.Set
	// Changed hears of what came into effect (now) in place of old, after Set has it; nil: nothing. It must not block.
	Changed func(old, now *policy.Policy)
	// Wrong hears of an object that cannot be compiled.
	Wrong func(obj *unstructured.Unstructured, message string)
	Log   *slog.Logger
}

// Follower is made by New.
type Follower struct {
	cfg     Config
	pending workqueue.TypedRateLimitingInterface[string] // names of objects whose status may be out of date

	mu      sync.Mutex
	known   map[string]*entry
	objects *source // nil: they are not defined
}

// entry is an object.
type entry struct {
	obj        *unstructured.Unstructured
	wrong      field.ErrorList // of its newest generation
	trouble    string          // of the policy that is in effect, while it ran
	effect     *policy.Policy  // nil: none is
	generation int64           // of which effect is
	spec       any             // the same, as it was written
	noRoom     bool            // too many others are in effect
}

// source is an informer and its end.
type source struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     sync.WaitGroup
	known    cache.DoneChecker
	refused  chan struct{} // closed when the server does not let us read
}

// New starts nothing.
func New(cfg Config) *Follower {
	limits := workqueue.DefaultTypedControllerRateLimiter[string]()
	return &Follower{cfg: cfg, known: map[string]*entry{}, pending: workqueue.NewTypedRateLimitingQueue(limits)}
}

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// Start follows the objects until ctx is done, and returns once those that are there are known. wait blocks until all has ended.
func (f *Follower) Start(ctx context.Context) (wait func(), err error) {
	def, err := f.follow(ctx, definitions, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, policy.CRD).String()
	}, cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { f.define(ctx, o) }, UpdateFunc: func(_, o any) { f.define(ctx, o) }, DeleteFunc: func(any) { f.undefine() },
	})
	if err != nil {
		return nil, err
	}
	wait = func() {
		def.done.Wait()
		f.halt()
	}
	if !def.await(ctx) && ctx.Err() == nil {
		def.stop()
		f.cfg.Log.Info("scheduling policies of the API are not followed: their definition cannot be read")
		return wait, nil
	}
	f.mu.Lock()
	objects := f.objects
	f.mu.Unlock()
	if objects != nil && !objects.await(ctx) && ctx.Err() == nil {
		f.cfg.Log.Warn("scheduling policies cannot be read: those of the API are not in effect until they can")
	}
	return wait, nil
}

// follow starts an informer.
func (f *Follower) follow(ctx context.Context, of schemaResource, tweak dynamicinformer.TweakListOptionsFunc, h cache.ResourceEventHandler) (*source, error) {
	s := &source{informer: dynamicinformer.NewFilteredDynamicInformer(f.cfg.Client, of, metav1.NamespaceAll, 0, cache.Indexers{}, tweak).Informer(), refused: make(chan struct{})}
	refuse := sync.OnceFunc(func() { close(s.refused) })
	if err := s.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			refuse()
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return nil, fmt.Errorf("follow %s: %w", of.Resource, err)
	}
	reg, err := s.informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", of.Resource, err)
	}
	s.known = reg.HasSyncedChecker()
	ctx, s.stop = context.WithCancel(ctx)
	s.done.Go(func() { s.informer.RunWithContext(ctx) })
	return s, nil
}

// await reports whether the informer has told of all there is; false: it may not, or ctx is done.
func (s *source) await(ctx context.Context) bool {
	select {
	case <-s.known.Done():
		return true
	case <-s.refused:
		return false
	case <-ctx.Done():
		return false
	}
}

// define follows the objects once they are served.
func (f *Follower) define(ctx context.Context, o any) {
	def, ok := o.(*unstructured.Unstructured)
	if !ok || !established(def) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects != nil || ctx.Err() != nil {
		return
	}
	s, err := f.follow(ctx, policy.Resource, nil, cache.ResourceEventHandlerFuncs{
		AddFunc: f.set, UpdateFunc: func(_, o any) { f.set(o) }, DeleteFunc: f.drop,
	})
	if err != nil {
		f.cfg.Log.Error("cannot follow scheduling policies", "err", err)
		return
	}
	f.objects = s
}

func established(def *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(def.Object, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == string(apiextensionsv1.Established) && m["status"] == string(apiextensionsv1.ConditionTrue)
	}) && def.GetDeletionTimestamp() == nil
}

// halt ends the following of objects; what is in effect stays so.
func (f *Follower) halt() {
	f.mu.Lock()
	s := f.objects
	f.objects = nil
	f.mu.Unlock()
	if s != nil {
		s.stop()
		s.done.Wait()
	}
}

// undefine forgets all objects: with their definition they are gone.
func (f *Follower) undefine() {
	f.halt()
	f.mu.Lock()
	names := slices.Collect(maps.Keys(f.known))
	f.mu.Unlock()
	for _, name := range names {
		f.replace(name, nil)
	}
}

func (f *Follower) drop(o any) {
	u, ok := client.Delivered[*unstructured.Unstructured](o)
	if !ok {
		return
	}
	f.replace(u.GetName(), nil)
	f.mu.Lock()
	var waits []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		if e := f.known[name]; e.noRoom {
			waits = append(waits, e.obj)
		}
	}
	f.mu.Unlock()
	for _, u := range waits {
		f.take(u)
	}
}

// set takes a version of an object.
func (f *Follower) set(o any) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	name := u.GetName()
	f.mu.Lock()
	old := f.known[name]
	same := old != nil && old.obj.GetUID() == u.GetUID() && old.obj.GetGeneration() == u.GetGeneration()
	if same {
		old.obj = u // only its status or metadata is another
	}
	f.mu.Unlock()
	switch {
	case !same:
		f.take(u)
	case !said(u):
		f.pending.Add(name) // what was written is there no more
	}
}

// take compiles an object and has it come into effect, if it can.
func (f *Follower) take(u *unstructured.Unstructured) {
	name := u.GetName()
	f.mu.Lock()
	var old *entry
	if e := f.known[name]; e != nil {
		copied := *e
		old = &copied
	}
	room := f.inEffectLocked(name) < policy.MaxPolicies
	f.mu.Unlock()
	f.replace(name, f.compile(u, old, room))
}

// compile makes the entry of an object. old is what was known of its name, nil: nothing.
func (f *Follower) compile(u *unstructured.Unstructured, old *entry, room bool) *entry {
	e := &entry{obj: u, generation: u.GetGeneration(), spec: u.Object["spec"], noRoom: !room}
	at := field.NewPath("spec")
	if !room {
		e.wrong = field.ErrorList{field.Forbidden(at, fmt.Sprintf("%d policies are in effect, which is the limit", policy.MaxPolicies))}
	} else {
		e.effect, e.wrong = read(u.GetName(), e.spec, at)
	}
	if e.effect == nil {
		e.generation, e.spec = 0, nil
		if old != nil && old.obj.GetUID() == u.GetUID() {
			e.effect, e.generation, e.spec, e.trouble = old.effect, old.generation, old.spec, old.trouble
		} else if spec, generation, ok := before(u); ok && room {
			if e.effect, _ = read(u.GetName(), spec, at); e.effect != nil {
				e.generation, e.spec = generation, spec
			}
		}
	}
	if e.effect != nil && e.effect.Trouble == nil {
		uid, name, p := u.GetUID(), u.GetName(), e.effect
		p.Trouble = func(message string) { f.trouble(name, uid, p, message) }
	}
	if len(e.wrong) > 0 && f.cfg.Wrong != nil && !said(u) {
		f.cfg.Wrong(u, e.message())
	}
	return e
}

// before is what was in effect when the status was written.
func before(u *unstructured.Unstructured) (spec any, generation int64, ok bool) {
	effective, ok, _ := unstructured.NestedMap(u.Object, "status", "effective")
	if !ok {
		return nil, 0, false
	}
	generation, _ = effective["generation"].(int64)
	spec, ok = effective["spec"]
	return spec, generation, ok
}

func (f *Follower) inEffectLocked(but string) (n int) {
	for name, e := range f.known {
		if name != but && e.effect != nil {
			n++
		}
	}
	return n
}

// replace puts an entry (nil: none) in place of what was known of a name, and tells.
func (f *Follower) replace(name string, e *entry) {
	f.mu.Lock()
	var old, now *policy.Policy
	if was := f.known[name]; was != nil {
		old = was.effect
	}
	if e == nil {
		delete(f.known, name)
	} else {
		f.known[name], now = e, e.effect
	}
	var list []*policy.Policy
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		if p := f.known[name].effect; p != nil {
			list = append(list, p)
		}
	}
	f.cfg.Set.Use(list)
	f.mu.Unlock()
	if old != now {
		f.cfg.Changed(old, now)
	}
	f.pending.Add(name)
}

// trouble notes what went wrong while a policy ran.
func (f *Follower) trouble(name string, uid types.UID, p *policy.Policy, message string) {
	f.mu.Lock()
	e := f.known[name]
	ok := e != nil && e.obj.GetUID() == uid && e.effect == p
	if ok {
		e.trouble = message
	}
	f.mu.Unlock()
	if ok {
		f.pending.Add(name)
	}
}
