// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
)

var verbs = metav1.Verbs{"create", "delete", "get", "list", "patch", "watch"}

// world is a fake metadata API with two namespaced kinds and a cluster-scoped one. It implements finalizers,
// propagation policies and preconditions.
type world struct {
	t      *testing.T
	meta   *metafake.FakeMetadataClient
	api    kubernetes.Interface
	calls  *clienttesting.Fake // of api
	events *record.FakeRecorder
	rv     int
	asked  []schema.GroupVersionResource // live reads
}

func newWorld(t *testing.T) *world {
	api := clienttest.New()
	w := &world{
		t:      t,
		meta:   clienttest.NewMetadata(),
		api:    api,
		calls:  &api.Fake,
		events: record.NewFakeRecorder(100),
	}
	w.calls.Resources = []*metav1.APIResourceList{
		{
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{
				{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs},
				{Name: "nodes", Kind: "Node", Verbs: verbs},
				{Name: "events", Kind: "Event", Namespaced: true, Verbs: verbs},
				{Name: "pods/status", Kind: "Pod", Namespaced: true, Verbs: verbs},
			},
		},
		{
			GroupVersion: "apps/v1",
			APIResources: []metav1.APIResource{
				{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true, Verbs: verbs},
				{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: verbs},
			},
		},
	}
	w.meta.PrependReactor("delete", "*", w.onDelete)
	w.meta.PrependReactor("patch", "*", w.onPatch)
	w.meta.PrependReactor("get", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		w.asked = append(w.asked, a.GetResource())
		return false, nil, nil
	})
	return w
}

var kinds = map[string]schema.GroupVersionKind{
	"pods":        {Version: "v1", Kind: "Pod"},
	"nodes":       {Version: "v1", Kind: "Node"},
	"replicasets": {Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	"deployments": {Group: "apps", Version: "v1", Kind: "Deployment"},
}

func gvrOf(resource string) schema.GroupVersionResource {
	return kinds[resource].GroupVersion().WithResource(resource)
}

// add stores an object whose UID is "<resource>/<name>".
func (w *world) add(resource, ns, name string, f ...func(*metav1.PartialObjectMetadata)) {
	w.t.Helper()
	o := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(resource + "/" + name)},
	}
	o.SetGroupVersionKind(kinds[resource])
	for _, g := range f {
		g(o)
	}
	w.rv++
	o.ResourceVersion = fmt.Sprint(w.rv)
	if err := w.meta.Tracker().Create(gvrOf(resource), o, ns); err != nil {
		w.t.Fatal(err)
	}
}

func ownedBy(resource, name string, block bool) func(*metav1.PartialObjectMetadata) {
	k := kinds[resource]
	return func(o *metav1.PartialObjectMetadata) {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{
			APIVersion:         k.GroupVersion().String(),
			Kind:               k.Kind,
			Name:               name,
			UID:                types.UID(resource + "/" + name),
			BlockOwnerDeletion: &block,
		})
	}
}

func (w *world) get(gvr schema.GroupVersionResource, ns, name string) *metav1.PartialObjectMetadata {
	o, err := w.meta.Tracker().Get(gvr, ns, name)
	if err != nil {
		return nil
	}
	return o.(*metav1.PartialObjectMetadata).DeepCopy()
}

// put stores o, or removes it if it is being deleted and has no finalizers.
func (w *world) put(gvr schema.GroupVersionResource, o *metav1.PartialObjectMetadata) error {
	if o.DeletionTimestamp != nil && len(o.Finalizers) == 0 {
		return w.meta.Tracker().Delete(gvr, o.Namespace, o.Name)
	}
	w.rv++
	o.ResourceVersion = fmt.Sprint(w.rv)
	return w.meta.Tracker().Update(gvr, o, o.Namespace)
}

func (w *world) onDelete(a clienttesting.Action) (bool, runtime.Object, error) {
	impl := a.(clienttesting.DeleteActionImpl)
	metadata := w.get(impl.GetResource(), impl.GetNamespace(), impl.GetName())
	if metadata == nil {
		return false, nil, nil
	}
	if p := impl.DeleteOptions.Preconditions; p != nil &&
		(p.UID != nil && *p.UID != metadata.UID ||
			p.ResourceVersion != nil && *p.ResourceVersion != metadata.ResourceVersion) {
		return true, nil, conflict(a, metadata.Name)
	}
	now := metav1.Now()
	metadata.DeletionTimestamp = &now
	if p := impl.DeleteOptions.PropagationPolicy; p != nil {
		switch *p {
		case metav1.DeletePropagationForeground:
			metadata.Finalizers = append(metadata.Finalizers, metav1.FinalizerDeleteDependents)
		case metav1.DeletePropagationOrphan:
			metadata.Finalizers = append(metadata.Finalizers, metav1.FinalizerOrphanDependents)
		}
	}
	return true, nil, w.put(impl.GetResource(), metadata)
}

func conflict(a clienttesting.Action, name string) error {
	return apierrors.NewConflict(a.GetResource().GroupResource(), name, errors.New("the object has been modified"))
}

func (w *world) onPatch(action clienttesting.Action) (bool, runtime.Object, error) {
	gvr := action.GetResource()
	ns := action.GetNamespace()
	name := action.(clienttesting.PatchAction).GetName()
	var patch metav1.PartialObjectMetadata
	if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &patch); err != nil {
		return true, nil, err
	}
	if old := w.get(gvr, ns, name); old != nil && patch.ResourceVersion != "" &&
		patch.ResourceVersion != old.ResourceVersion {
		return true, nil, conflict(action, name)
	}
	_, _, err := clienttesting.ObjectReaction(w.meta.Tracker())(action)
	if err != nil {
		return true, nil, err
	}
	o := w.get(gvr, ns, name)
	return true, o, w.put(gvr, o)
}

func (w *world) controller() *Controller {
	return build(&framework.Env{
		Name:   "generic-garbage-collector",
		Client: &client.Client{Interface: client.Plain(w.api), Metadata: w.meta},
		Events: w.events,
		Log:    slog.New(slog.DiscardHandler),
	}, nil)
}

func (w *world) start() {
	c := w.controller()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func() {}) }() // ends with the test
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
	w.settle()
}

// settle advances the fake clock until the controller is idle.
func (w *world) settle() { time.Sleep(10 * time.Second) }

func (w *world) delete(resource, ns, name string, p metav1.DeletionPropagation) {
	w.t.Helper()
	err := w.meta.Resource(gvrOf(resource)).Namespace(ns).Delete(w.t.Context(), name, metav1.DeleteOptions{
		PropagationPolicy: &p,
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// left returns the UIDs of the remaining objects.
func (w *world) left() []string {
	var all []string
	for _, r := range slices.Sorted(maps.Keys(kinds)) {
		l, err := w.meta.Resource(gvrOf(r)).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range l.Items {
			all = append(all, string(o.UID))
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) want(want ...string) {
	w.t.Helper()
	w.settle()
	if got := w.left(); !slices.Equal(got, want) {
		w.t.Errorf("left: got %v, want %v", got, want)
	}
}

// tree adds a Deployment with a ReplicaSet with two pods. With held, the second pod has a finalizer.
func (w *world) tree(held bool) {
	w.add("deployments", "ns", "d")
	w.add("replicasets", "ns", "rs", ownedBy("deployments", "d", true))
	w.add("pods", "ns", "p1", ownedBy("replicasets", "rs", true))
	w.add("pods", "ns", "p2", ownedBy("replicasets", "rs", true), func(o *metav1.PartialObjectMetadata) {
		if held {
			o.Finalizers = []string{"test/hold"}
		}
	})
}

func TestBackgroundCascades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.tree(false)
		w.add("pods", "ns", "other")
		w.start()
		w.want("deployments/d", "pods/other", "pods/p1", "pods/p2", "replicasets/rs")
		w.delete("deployments", "ns", "d", metav1.DeletePropagationBackground)
		w.want("pods/other")
	})
}

func TestForegroundWaitsForDependents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.tree(true)
		w.start()
		w.delete("deployments", "ns", "d", metav1.DeletePropagationForeground)
		w.want("deployments/d", "pods/p2", "replicasets/rs")
		p := w.get(gvrOf("pods"), "ns", "p2")
		p.Finalizers = nil
		if err := w.put(gvrOf("pods"), p); err != nil {
			t.Fatal(err)
		}
		w.want()
	})
}

func TestForegroundDoesNotWaitForTheUnblocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("replicasets", "ns", "rs")
		w.add("pods", "ns", "p", ownedBy("replicasets", "rs", false), func(o *metav1.PartialObjectMetadata) {
			o.Finalizers = []string{"test/hold"}
		})
		w.start()
		w.delete("replicasets", "ns", "rs", metav1.DeletePropagationForeground)
		w.want("pods/p")
	})
}

func TestOrphanKeepsDependents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.tree(false)
		w.start()
		w.delete("deployments", "ns", "d", metav1.DeletePropagationOrphan)
		w.want("pods/p1", "pods/p2", "replicasets/rs")
		if refs := w.get(gvrOf("replicasets"), "ns", "rs").OwnerReferences; len(refs) != 0 {
			t.Errorf("owner references: got %v, want none", refs)
		}
	})
}

// TestStaleNode: the graph has an owner reference that the server has removed since, and the owner is gone. The
// dependent stays.
func TestStaleNode(t *testing.T) {
	world := newWorld(t)
	world.add("replicasets", "ns", "rs")
	stale := world.get(gvrOf("replicasets"), "ns", "rs")
	stale.ResourceVersion = "0"
	ownedBy("deployments", "d", true)(stale)
	c := world.controller()
	for _, r := range []string{"deployments", "replicasets"} {
		res := &catalog.Resource{GVR: gvrOf(r), Kind: kinds[r].Kind, Namespaced: true}
		c.kinds[res.GroupKind()] = res
	}
	c.graph.addOrUpdate(newNode(c.kinds[kinds["replicasets"].GroupKind()], stale))
	if err := c.attemptDelete(t.Context(), stale.UID); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict, after which it looks again", err)
	}
	if got := world.left(); !slices.Equal(got, []string{"replicasets/rs"}) {
		t.Errorf("left: %v, want the ReplicaSet", got)
	}
}

func TestSecondOwnerKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("replicasets", "ns", "a")
		w.add("replicasets", "ns", "b")
		w.add("pods", "ns", "p", ownedBy("replicasets", "a", true), ownedBy("replicasets", "b", true))
		w.start()
		w.delete("replicasets", "ns", "a", metav1.DeletePropagationForeground)
		w.want("pods/p", "replicasets/b")
		if refs := w.get(gvrOf("pods"), "ns", "p").OwnerReferences; len(refs) != 1 || refs[0].Name != "b" {
			t.Errorf("owner references: got %v, want b's", refs)
		}
	})
}

func TestCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("pods", "ns", "p1", ownedBy("pods", "p2", true))
		w.add("pods", "ns", "p2", ownedBy("pods", "p1", true))
		w.start()
		w.want("pods/p1", "pods/p2")
		w.delete("pods", "ns", "p1", metav1.DeletePropagationForeground)
		w.want()
	})
}

func TestAbsentOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := newWorld(t)
		world.add("replicasets", "ns", "rs")
		world.add("nodes", "", "n")
		renew := func(o *metav1.PartialObjectMetadata) { o.OwnerReferences[0].UID = "an-earlier-one" }
		// the owner's name exists with another UID
		world.add("pods", "ns", "successor", ownedBy("replicasets", "rs", true), renew)
		world.add("pods", "ns", "of-node", ownedBy("nodes", "n", false))
		world.add("pods", "elsewhere", "crossing", ownedBy("replicasets", "rs", true))
		// cluster-scoped with a namespaced owner: counts as existing
		world.add("nodes", "", "of-set", ownedBy("replicasets", "rs", true))
		world.add("pods", "ns", "unknown", ownedBy("replicasets", "rs", true), func(o *metav1.PartialObjectMetadata) {
			o.OwnerReferences[0].Kind = "Unknown"
		})
		world.start()
		world.want("nodes/n", "nodes/of-set", "pods/of-node", "pods/unknown", "replicasets/rs")
		want := []string{
			`Warning OwnerRefInvalidNamespace ownerRef [apps/v1/ReplicaSet, namespace: , name: rs, uid: replicasets/rs] does not exist in namespace ""`,
			`Warning OwnerRefInvalidNamespace ownerRef [apps/v1/ReplicaSet, namespace: elsewhere, name: rs, uid: replicasets/rs] does not exist in namespace "elsewhere"`,
		}
		var got []string
		for len(world.events.Events) > 0 {
			got = append(got, <-world.events.Events)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("events of the references across namespaces: got %q, want %q", got, want)
		}
	})
}

func TestAsksOncePerAbsentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		for i := range 50 {
			w.add("pods", "ns", fmt.Sprint("p", i), ownedBy("replicasets", "gone", true))
			if i == 0 {
				w.settle()
			}
		}
		w.want()
		if n := len(w.asked); n != 1 {
			t.Errorf("asked the server %d times, want 1", n)
		}
	})
}

func TestIdleAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.tree(false)
		w.start()
		w.meta.ClearActions()
		w.calls.ClearActions()
		time.Sleep(time.Hour)
		if n := len(w.meta.Actions()) + len(w.calls.Actions()); n != 0 {
			t.Errorf("%d requests in an idle hour: %v", n, w.meta.Actions())
		}
	})
}

func TestJudge(t *testing.T) {
	yes := true
	ref := func(name string) metav1.OwnerReference {
		return metav1.OwnerReference{
			APIVersion:         "v1",
			Kind:               "Pod",
			Name:               name,
			UID:                types.UID(name),
			BlockOwnerDeletion: &yes,
		}
	}
	ownerReference := ref("a")
	b := ref("b")
	n := func(f func(*node), refs ...metav1.OwnerReference) *node {
		n := &node{uid: "x", res: &catalog.Resource{Kind: "Pod"}, owners: refs}
		if f != nil {
			f(n)
		}
		return n
	}
	type refs = []metav1.OwnerReference
	tests := []struct {
		name   string
		v      *view
		absent refs
		want   actionKind
		policy metav1.DeletionPropagation
	}{
		{"no owners", &view{node: n(nil)}, nil, actionNone, ""},
		{"solid", &view{node: n(nil, ownerReference), solid: refs{ownerReference}}, nil, actionNone, ""},
		{
			"unknown but not absent", &view{node: n(nil, ownerReference), unknown: refs{ownerReference}}, nil,
			actionNone, "",
		},
		{
			"absent", &view{node: n(nil, ownerReference), unknown: refs{ownerReference}},
			refs{ownerReference},
			actionDelete, metav1.DeletePropagationBackground,
		},
		{
			"absent, to be orphaning", &view{
				node: n(func(n *node) { n.orphan = true }, ownerReference),
				unknown: refs{
					ownerReference,
				},
			},
			refs{ownerReference},
			actionDelete, metav1.DeletePropagationOrphan,
		},
		{
			"one absent, one solid", &view{
				node:    n(nil, ownerReference, b),
				unknown: refs{ownerReference},
				solid: refs{
					b,
				},
			},
			refs{ownerReference},
			actionPatchOwners, "",
		},
		{
			"waiting owner", &view{node: n(nil, ownerReference), waiting: refs{ownerReference}}, nil, actionDelete,
			metav1.DeletePropagationBackground,
		},
		{
			"waiting owner and dependents", &view{
				node:       n(nil, ownerReference),
				waiting:    refs{ownerReference},
				dependents: 1,
			}, nil, actionDelete,
			metav1.DeletePropagationForeground,
		},
		{
			"already going", &view{
				node: n(func(n *node) { n.deleting = true }, ownerReference),
				unknown: refs{
					ownerReference,
				},
			},
			refs{ownerReference},
			actionNone, "",
		},
		{"foreground, nothing left", &view{node: n(func(n *node) {
			n.deleting = true
			n.foreground = true
		})}, nil, actionRemoveFinalizer, ""},
		{"foreground, blocked", &view{
			node: n(func(n *node) {
				n.deleting = true
				n.foreground = true
			}),
			blocking: []*node{n(nil)},
		}, nil, actionWait, ""},
	}
	for _, tt := range tests {
		if d := decide(tt.v, tt.absent); d.kind != tt.want || d.policy != tt.policy {
			t.Errorf("%s: got %d %q, want %d %q", tt.name, d.kind, d.policy, tt.want, tt.policy)
		}
	}
}
