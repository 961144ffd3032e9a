// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/scheduler/config"
	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// with adds plugins to the default profile, or to those of the configuration that is given in YAML.
func with(add framework.Registry, profiles ...string) func(*loop.Config) {
	return func(c *loop.Config) {
		c.Plugins = add
		body := strings.Join(profiles, "\n")
		if len(profiles) == 0 {
			body = "profiles:\n- plugins: {multiPoint: {enabled: ["
			for name := range add {
				body += "{name: " + name + "},"
			}
			body += "]}}\n"
		}
		var err error
		c.Configuration, err = config.Read("test",
			[]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+body),
			slices.Collect(maps.Keys(add)))
		if err != nil {
			panic(err)
		}
	}
}

func made(p *framework.Plugin) framework.Factory {
	return func(any, *framework.Handle) (*framework.Plugin, error) { return p, nil }
}

// everywhereFirst has the plugin called first where only one plugin's answer counts.
const everywhereFirst = "profiles: [{plugins: {multiPoint: {enabled: [{name: Everywhere}]}, postFilter: {enabled: " +
	"[{name: Everywhere}]}, bind: {enabled: [{name: Everywhere}]}}}]"

// everywhere is a plugin at each extension point. It notes in the attempt's state where it has been, and records it
// once the pod is bound.
type everywhere struct {
	mu    sync.Mutex
	paths []string
}

var been = framework.NewKey[[]string]("been")

func visit(c *framework.CycleState, point string) {
	path, _ := been.Read(c)
	been.Write(c, append(slices.Clone(path), point))
}

func (e *everywhere) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:             "Everywhere",
		PreEnqueue:       e.PreEnqueue,
		PreFilter:        e.PreFilter,
		PostFilter:       e.PostFilter,
		PreScore:         e.PreScore,
		Reserve:          e.Reserve,
		Unreserve:        e.Unreserve,
		Permit:           e.Permit,
		PreBind:          e.PreBind,
		PreBindPreFlight: e.PreBindPreFlight,
		Bind:             e.Bind,
		PostBind:         e.PostBind,
	}
}

func (*everywhere) PreEnqueue(*state.PodInfo) *framework.Status { return nil }

func (*everywhere) PreFilter(
	c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	visit(c, "PreFilter")
	return framework.NodeFilter{Filter: everywhereNode{c}.Filter}, nil
}

func (*everywhere) PreScore(
	c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	visit(c, "PreScore")
	return framework.NodeScorer{Score: everywhereNode{c}.Score, Normalize: everywhereNode{c}.Normalize}
}

type everywhereNode struct{ c *framework.CycleState }

func (n everywhereNode) Filter(on *state.NodeInfo) *framework.Status {
	visit(n.c, "Filter")
	if on.Name == "node-1" {
		return nil
	}
	return framework.NewStatus("Everywhere", framework.Unschedulable, "not this one")
}

func (n everywhereNode) Score(*state.NodeInfo) int64 {
	visit(n.c, "Score")
	return 1
}
func (n everywhereNode) Normalize([]int64) { visit(n.c, "Normalize") }

func (*everywhere) Reserve(_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ *state.NodeInfo) error {
	visit(c, "Reserve")
	return nil
}

func (e *everywhere) Unreserve(_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ string) {
	visit(c, "Unreserve")
	e.record(c)
}

func (*everywhere) Permit(
	_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ string,
) (*framework.Status, time.Duration) {
	visit(c, "Permit")
	return nil, 0
}

func (*everywhere) PreBindPreFlight(*framework.CycleState, *state.PodInfo, string) bool { return false }

func (*everywhere) PreBind(_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ string) error {
	visit(c, "PreBind")
	return nil
}

func (*everywhere) Bind(_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ string) error {
	visit(c, "Bind")
	return framework.ErrSkip
}

func (e *everywhere) PostBind(_ context.Context, c *framework.CycleState, _ *state.PodInfo, _ string) {
	visit(c, "PostBind")
	e.record(c)
}

func (*everywhere) PostFilter(_ context.Context, a *framework.Attempt) (node, message string) {
	visit(a.Cycle, "PostFilter")
	path, _ := been.Read(a.Cycle)
	return "", strings.Join(path, " ")
}

func (e *everywhere) record(c *framework.CycleState) {
	path, _ := been.Read(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paths = append(e.paths, strings.Join(path, " "))
}

// TestExtensionPoints: a plugin is called at each extension point, in order, and has its state of the attempt at all of
// them.
func TestExtensionPoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &everywhere{}
		cluster := startWith(t, with(framework.Registry{"Everywhere": made(p.plugin())}, everywhereFirst),
			schedtest.Node("node-1"),
			schedtest.Node("node-2"), schedtest.Pod("a", schedtest.Requests("1", "")))
		synctest.Wait()
		cluster.refuse.Store(true)
		for _, pod := range []*corev1.Pod{
			schedtest.Pod("unlucky", schedtest.Requests("3", "")), schedtest.Pod("big", schedtest.Requests("4", "")),
		} {
			if err := cluster.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		filters := strings.Repeat(" Filter", 2)
		way := "PreFilter" + filters + " PreScore Score Normalize Reserve Permit PreBind Bind "
		p.mu.Lock()
		defer p.mu.Unlock()
		if want := []string{way + "PostBind", way + "Unreserve"}; !slices.Equal(p.paths[:2], want) {
			t.Errorf("got  %q\nwant %q", p.paths, want)
		}
		big := cluster.eventually("big", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
		if got := scheduledCondition(big).Message; !strings.Contains(got, "PreFilter Filter PostFilter") {
			t.Errorf("message %q, want what PostFilter says", got)
		}
	})
}

// holds has pods with a label wait in Permit.
type holds struct {
	*framework.Handle
	refuse string // why pods are refused at once
}

func (h *holds) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:   "Holds",
		Permit: h.Permit,
		Events: []framework.ClusterEventWithHint{{Kinds: framework.AssignedPodDelete | framework.NodeLabels}},
	}
}

func (h *holds) Permit(
	_ context.Context, _ *framework.CycleState, p *state.PodInfo, _ string,
) (*framework.Status, time.Duration) {
	switch {
	case p.Pod.Labels["hold"] == "":
		return nil, 0
	case h.refuse != "":
		return framework.NewStatus("Holds", framework.Unschedulable, h.refuse), 0
	}
	return nil, time.Minute
}

// TestWaitingPodsBlockNoOther: many pods wait in Permit; the next is bound at once, those that are allowed are too.
func TestWaitingPodsBlockNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holds{}
		objs := []runtime.Object{}
		for i := range 3 {
			objs = append(objs, schedtest.Node(fmt.Sprint("node-", i)))
		}
		for i := range 120 {
			objs = append(objs, schedtest.Pod(fmt.Sprint("waits-", i), schedtest.Requests("10m", ""),
				schedtest.Labelled("hold", "yes")))
		}
		cluster := startWith(t,
			with(framework.Registry{"Holds": func(_ any, handle *framework.Handle) (*framework.Plugin, error) {
				h.Handle = handle
				return h.plugin(), nil
			}}), objs...)
		synctest.Wait()
		if got := len(h.Waiting.All()); got != 120 {
			t.Fatalf("%d pods wait, want 120", got)
		}
		if err := cluster.Tracker().Add(schedtest.Pod("next")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p, err := cluster.CoreV1().Pods("default").Get(t.Context(), "next", metav1.GetOptions{}); err != nil ||
			!bound(p) {
			t.Errorf("the next pod was held up, too: %v", err)
		}
		for _, w := range h.Waiting.All() {
			if w.Pod.Pod.Name != "waits-7" {
				w.Allow("Holds")
			}
		}
		synctest.Wait()
		for i := range 120 {
			p, err := cluster.CoreV1().Pods("default").Get(t.Context(), fmt.Sprint("waits-", i), metav1.GetOptions{})
			if err != nil || bound(p) != (i != 7) {
				t.Errorf("%s: bound %v, err %v", p.Name, bound(p), err)
			}
		}
	})
}

// TestPermitRefuses: a pod that Permit refuses has the plugin's reason in its condition, or the time-out if it waited
// too long. An event that the plugin waits for brings the pod back, also one that came while it waited.
func TestPermitRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holds{}
		pod := schedtest.Pod("a", schedtest.Labelled("hold", "yes"))
		cluster := startWith(t,
			with(framework.Registry{"Holds": func(_ any, handle *framework.Handle) (*framework.Plugin, error) {
				h.Handle = handle
				return h.plugin(), nil
			}}), schedtest.Node("node-1"), pod)
		said := func(want string) {
			t.Helper()
			synctest.Wait()
			p, err := cluster.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cond := scheduledCondition(p)
			if cond == nil || cond.Reason != corev1.PodReasonUnschedulable || cond.Message != want {
				t.Errorf("condition %+v, want Unschedulable: %s", cond, want)
			}
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		said("rejected due to timeout after waiting 1m0s at plugin Holds")
		time.Sleep(time.Minute)
		if n := len(h.Waiting.All()); n != 0 {
			t.Errorf("%d pods wait though nothing happened", n)
		}
		relabel := func(value string) {
			n := schedtest.Node("node-1", schedtest.Labels("is", value))
			if err := cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		relabel("new")
		w := h.Waiting.Get(pod.UID)
		if w == nil {
			t.Fatal("the pod was not tried again")
		}
		relabel("newer")
		w.Reject("Holds", "no seat")
		said("no seat")
		time.Sleep(10 * time.Second)
		if h.Waiting.Get(pod.UID) == nil {
			t.Error("the event that came while the pod waited was forgotten")
		}
		h.refuse = "closed"
		h.Waiting.Get(pod.UID).Reject("Holds", "no seat")
		synctest.Wait()
		relabel("newest")
		time.Sleep(10 * time.Second)
		said("closed")
	})
}

// wants lets pods have a node once a config map exists.
type wants struct{ exists func() bool }

func (w wants) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "Wants",
		PreFilter: w.PreFilter,
		Events:    w.events(),
	}
}

func (w wants) PreFilter(
	*framework.CycleState, *state.PodInfo, *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if w.exists() {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{}, framework.NewStatus("Wants", framework.Unresolvable, "no licence")
}

func (wants) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds:    framework.Objects,
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
			m, ok := e.NewObject.(*corev1.ConfigMap)
			return ok && m.Name == "licence"
		},
	}}
}

// TestEventsOfAnyKind: a plugin sees objects of a kind that the scheduler knows nothing of, and their changes bring
// pods back.
func TestEventsOfAnyKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := startWith(t,
			with(framework.Registry{"Wants": func(_ any, h *framework.Handle) (*framework.Plugin, error) {
				cms := h.Informers.Core().V1().ConfigMaps()
				_ = cms.Informer()
				return wants{func() bool {
					_, err := cms.Lister().ConfigMaps("default").Get("licence")
					return err == nil
				}}.plugin(), nil
			}}), schedtest.Node("node-1"), schedtest.Pod("a"))
		decisions := func() (n int) {
			synctest.Wait()
			cluster.mu.Lock()
			defer cluster.mu.Unlock()
			for _, m := range cluster.marks {
				if m.Step == "decision" {
					n++
				}
			}
			return n
		}
		if n := decisions(); n != 1 {
			t.Fatalf("%d attempts, want 1", n)
		}
		time.Sleep(10 * time.Second)
		for i, name := range []string{"other", "licence"} {
			if err := cluster.Tracker().Add(
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
				t.Fatal(err)
			}
			if n := decisions(); n != 1+i {
				t.Errorf("after %s: %d attempts, want %d", name, n, 1+i)
			}
		}
		cluster.eventually("a", bound)
	})
}

// TestProfiles: each profile schedules the pods that name it, with its own plugins; the others' are left alone.
func TestProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := func(s *corev1.PodSpec) { s.SchedulerName = "second" }
		third := func(s *corev1.PodSpec) { s.SchedulerName = "third" }
		c := startWith(t, with(framework.Registry{"Everywhere": made((&everywhere{}).plugin())},
			"profiles: [{schedulerName: default-scheduler}, {schedulerName: second, plugins: {multiPoint: {enabled: "+
				"[{name: Everywhere}]}}}]"), schedtest.Node("node-2"), schedtest.Pod("a"), schedtest.Pod("b",
			schedtest.With(second)), schedtest.Pod("c", schedtest.With(third)))
		synctest.Wait()
		c.eventually("a", bound)
		b := c.eventually("b", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
		if got := scheduledCondition(b).Message; !strings.HasPrefix(got, "0/1 nodes are available: 1 not this one.") {
			t.Errorf("b: %q, want what its profile's plugin says", got)
		}
		p, err := c.CoreV1().Pods("default").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || bound(p) || scheduledCondition(p) != nil {
			t.Errorf("c was touched: %v, %v", p.Status, err)
		}
	})
}

// byName tries pods in the order of their names.
var byName = &framework.Plugin{
	Name:      "ByName",
	QueueSort: func(a, b *framework.QueuedPod) bool { return a.Pod.Pod.Name < b.Pod.Pod.Name },
}

// TestQueueSort: a plugin says in which order pods are tried.
func TestQueueSort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := startWith(t, with(framework.Registry{"ByName": made(byName)},
			"podMaxBackoffSeconds: 10\nprofiles: [{plugins: {queueSort: {enabled: [{name: ByName}], disabled: "+
				"[{name: '*'}]}}}]"))
		for _, name := range []string{"c", "a", "b"} {
			if err := cluster.Tracker().Add(schedtest.Pod(name)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		cluster.mu.Lock()
		cluster.marks = nil
		cluster.mu.Unlock()
		time.Sleep(time.Minute)
		if err := cluster.Tracker().Add(schedtest.Node("node-1")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		var order []string
		for _, m := range cluster.marks {
			if m.Step == "decision" {
				order = append(order, m.Subject.Name)
			}
		}
		if !slices.Equal(order, []string{"a", "b", "c"}) {
			t.Errorf("tried in the order %q", order)
		}
	})
}

// TestPreemptedWhileItWaits: a pod that waits in Permit, and is not bound, goes back to the queue when another pod
// needs its place. It is not deleted, and is bound when there is room again.
func TestPreemptedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holds{}
		low := schedtest.Pod("low", schedtest.Requests("3", ""), schedtest.Labelled("hold", "yes"))
		cluster := startWith(t,
			with(framework.Registry{"Holds": func(_ any, handle *framework.Handle) (*framework.Plugin, error) {
				h.Handle = handle
				return h.plugin(), nil
			}}), schedtest.Node("node-1", schedtest.Allocatable(corev1.ResourceCPU, "4")), low)
		synctest.Wait()
		if h.Waiting.Get(low.UID) == nil {
			t.Fatal("the pod does not wait")
		}
		if err := cluster.Tracker().Add(schedtest.Pod("high", schedtest.Requests("3", ""),
			schedtest.Priority(10))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // backoff
		get := func(name string) *corev1.Pod {
			p, err := cluster.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if !bound(get("high")) {
			t.Errorf("the pod of higher priority: %+v", get("high").Status)
		}
		waits := get("low")
		if bound(waits) || waits.DeletionTimestamp != nil || scheduledCondition(waits) == nil ||
			scheduledCondition(waits).Reason != corev1.PodReasonUnschedulable {
			t.Errorf("the pod that waited: %+v", waits)
		}
		if err := cluster.Tracker().Add(schedtest.Node("node-2",
			schedtest.Allocatable(corev1.ResourceCPU, "4"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		again := h.Waiting.Get(low.UID)
		if again == nil {
			t.Fatal("the pod was not tried again")
		}
		again.Allow("Holds")
		synctest.Wait()
		if got := get("low").Spec.NodeName; got != "node-2" {
			t.Errorf("the pod that was preempted is on %q, want node-2", got)
		}
	})
}
