// SPDX-License-Identifier: Apache-2.0

// Package objects watches SchedulingPolicy objects for the scheduler, which starts one Follower. It compiles the
// objects, keeps the policies in effect in a policy.Set, and writes the result into their status. It also watches their
// CustomResourceDefinition, which may be missing, and watches the objects once it is established. The API server uses
// Check to validate writes. This package evaluates no policy.
//
// A generation that does not compile changes nothing: the last valid one stays in effect. It is stored in
// status.effective, so that it is in effect after a restart too.
package objects

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

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

	"keelson/client"
	"keelson/lib/keyed"
	"keelson/scheduler/policy"
)

// Config has the dependencies of a Follower. Client, Set and OnChange are required.
type Config struct {
	Client dynamic.Interface
	Set    *policy.Set
	// OnChange is called when now has replaced old in Set; nil: no policy. It must not block.
	OnChange func(old, now *policy.Policy)
	// OnInvalid is called for an object that does not compile.
	OnInvalid func(obj *unstructured.Unstructured, message string)
	Log       *slog.Logger
}

// Follower watches the objects; see New.
type Follower struct {
	cfg     Config
	pending *keyed.Loop[string] // names of objects whose status may be out of date

	mu      sync.Mutex
	known   map[string]*entry
	objects *source // nil: the definition does not exist
}

// entry is the state of one object.
type entry struct {
	obj        *unstructured.Unstructured
	errs       field.ErrorList // of the newest generation
	evalError  string          // the first evaluation error of inEffect
	inEffect   *policy.Policy  // nil: none
	generation int64           // the generation of inEffect
	spec       any             // the spec of inEffect
	overLimit  bool            // MaxPolicies others are in effect
}

// source is a running informer.
type source struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     sync.WaitGroup
	synced   cache.DoneChecker
	refused  chan struct{} // closed when the API server forbids reading, or does not serve the resource
}

// New starts nothing.
func New(cfg Config) *Follower {
	f := &Follower{cfg: cfg, known: map[string]*entry{}}
	f.pending = keyed.New(keyed.Config[string]{
		Do:        func(ctx context.Context, name string) (time.Duration, error) { return 0, f.report(ctx, name) },
		Pause:     50 * time.Millisecond,
		PauseMost: 15 * time.Minute,
		Failed: func(name string, err error) {
			cfg.Log.Warn("cannot write the status of a scheduling policy", "policy", name, "err", err)
		},
	})
	return f
}

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// Start watches the objects until ctx is done. It returns when the existing objects are compiled. wait blocks until all
// goroutines have ended.
func (f *Follower) Start(ctx context.Context) (wait func(), err error) {
	def, err := f.follow(ctx, definitions, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, policy.CRD).String()
	}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.onDefinition(ctx, o) },
		UpdateFunc: func(_, o any) { f.onDefinition(ctx, o) },
		DeleteFunc: func(any) { f.onDefinitionDeleted() },
	})
	if err != nil {
		return nil, err
	}
	wait = func() {
		def.done.Wait()
		f.stopObjects()
	}
	if !def.waitSynced(ctx) && ctx.Err() == nil { // the rights come with the definition: the informer goes on trying
		f.cfg.Log.Info("scheduling policies of the API are not followed until their definition can be read")
		return wait, nil
	}
	f.mu.Lock()
	objects := f.objects
	f.mu.Unlock()
	if objects != nil && !objects.waitSynced(ctx) && ctx.Err() == nil {
		f.cfg.Log.Warn("scheduling policies cannot be read: those of the API are not in effect until they can")
	}
	return wait, nil
}

// follow starts an informer.
func (f *Follower) follow(
	ctx context.Context, of schemaResource, tweak dynamicinformer.TweakListOptionsFunc,
	handler cache.ResourceEventHandler,
) (*source, error) {
	s := &source{
		informer: dynamicinformer.NewFilteredDynamicInformer(f.cfg.Client, of, metav1.NamespaceAll, 0,
			cache.Indexers{}, tweak).Informer(),
		refused: make(chan struct{}),
	}
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
	reg, err := s.informer.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", of.Resource, err)
	}
	s.synced = reg.HasSyncedChecker()
	ctx, s.stop = context.WithCancel(ctx)
	s.done.Go(func() { s.informer.RunWithContext(ctx) })
	return s, nil
}

// waitSynced waits for the initial list; false: reading is refused, or ctx is done.
func (s *source) waitSynced(ctx context.Context) bool {
	select {
	case <-s.synced.Done():
		return true
	case <-s.refused:
		return false
	case <-ctx.Done():
		return false
	}
}

// onDefinition starts the watch of the objects when their definition is established.
func (f *Follower) onDefinition(ctx context.Context, o any) {
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
		AddFunc:    f.onUpdate,
		UpdateFunc: func(_, o any) { f.onUpdate(o) },
		DeleteFunc: f.onDelete,
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
		return ok && m["type"] == string(apiextensionsv1.Established) &&
			m["status"] == string(apiextensionsv1.ConditionTrue)
	}) && def.GetDeletionTimestamp() == nil
}

// stopObjects ends the watch of the objects. The policies stay in effect.
func (f *Follower) stopObjects() {
	f.mu.Lock()
	s := f.objects
	f.objects = nil
	f.mu.Unlock()
	if s != nil {
		s.stop()
		s.done.Wait()
	}
}

// onDefinitionDeleted removes all policies, since their objects are deleted with the definition.
func (f *Follower) onDefinitionDeleted() {
	f.stopObjects()
	f.mu.Lock()
	names := slices.Collect(maps.Keys(f.known))
	f.mu.Unlock()
	for _, name := range names {
		f.replace(name, nil)
	}
}

func (f *Follower) onDelete(o any) {
	u, ok := client.Delivered[*unstructured.Unstructured](o)
	if !ok {
		return
	}
	f.replace(u.GetName(), nil)
	f.mu.Lock()
	var waits []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		if e := f.known[name]; e.overLimit {
			waits = append(waits, e.obj)
		}
	}
	f.mu.Unlock()
	for _, u := range waits {
		f.apply(u)
	}
}

// onUpdate handles an added or updated object.
func (f *Follower) onUpdate(o any) {
	obj, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	name := obj.GetName()
	f.mu.Lock()
	old := f.known[name]
	same := old != nil && old.obj.GetUID() == obj.GetUID() && old.obj.GetGeneration() == obj.GetGeneration()
	if same {
		old.obj = obj // only status or metadata changed
	}
	f.mu.Unlock()
	switch {
	case !same:
		f.apply(obj)
	case !statusCurrent(obj):
		f.pending.Add(name) // someone has overwritten the status
	}
}

// apply compiles an object and puts it in effect if it is valid.
func (f *Follower) apply(u *unstructured.Unstructured) {
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

// compile returns the entry of an object. old is the previous entry of its name; nil: none.
func (f *Follower) compile(obj *unstructured.Unstructured, old *entry, room bool) *entry {
	e := &entry{
		obj:        obj,
		generation: obj.GetGeneration(),
		spec:       obj.Object["spec"],
		overLimit:  !room,
	}
	at := field.NewPath("spec")
	if !room {
		e.errs = field.ErrorList{
			field.Forbidden(at, fmt.Sprintf("%d policies are in effect, which is the limit", policy.MaxPolicies)),
		}
	} else {
		e.inEffect, e.errs = read(obj.GetName(), e.spec, at)
	}
	if e.inEffect == nil {
		e.generation = 0
		e.spec = nil
		if old != nil && old.obj.GetUID() == obj.GetUID() {
			e.inEffect = old.inEffect
			e.generation = old.generation
			e.spec = old.spec
			e.evalError = old.evalError
		} else if spec, generation, ok := lastEffective(obj); ok && room {
			if e.inEffect, _ = read(obj.GetName(), spec, at); e.inEffect != nil {
				e.generation = generation
				e.spec = spec
			}
		}
	}
	if e.inEffect != nil && e.inEffect.OnError == nil {
		uid := obj.GetUID()
		name := obj.GetName()
		p := e.inEffect
		p.OnError = func(message string) { f.recordError(name, uid, p, message) }
	}
	if len(e.errs) > 0 && f.cfg.OnInvalid != nil && !statusCurrent(obj) {
		f.cfg.OnInvalid(obj, e.message())
	}
	return e
}

// lastEffective returns status.effective.
func lastEffective(u *unstructured.Unstructured) (spec any, generation int64, ok bool) {
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
		if name != but && e.inEffect != nil {
			n++
		}
	}
	return n
}

// replace replaces the entry of a name (nil: removes it), updates Set and calls OnChange.
func (f *Follower) replace(name string, e *entry) {
	f.mu.Lock()
	var old, now *policy.Policy
	if was := f.known[name]; was != nil {
		old = was.inEffect
	}
	if e == nil {
		delete(f.known, name)
	} else {
		f.known[name] = e
		now = e.inEffect
	}
	var list []*policy.Policy
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		if p := f.known[name].inEffect; p != nil {
			list = append(list, p)
		}
	}
	f.cfg.Set.Use(list)
	f.mu.Unlock()
	if old != now {
		f.cfg.OnChange(old, now)
	}
	f.pending.Add(name)
}

// recordError stores an evaluation error for the condition Degraded.
func (f *Follower) recordError(name string, uid types.UID, p *policy.Policy, message string) {
	f.mu.Lock()
	e := f.known[name]
	ok := e != nil && e.obj.GetUID() == uid && e.inEffect == p
	if ok {
		e.evalError = message
	}
	f.mu.Unlock()
	if ok {
		f.pending.Add(name)
	}
}
