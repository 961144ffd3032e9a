// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func requestsResource(resource corev1.ResourceName) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Limits = corev1.ResourceList{resource: schedtest.Quantity("1")}
		s.Containers[0].Resources.Requests[resource] = schedtest.Quantity("1")
	})
}

// decisions are the attempts of a pod.
func (c *cluster) decisions(pod string) (out []event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks {
		if m.Step == event.StepDecision && m.Subject.Name == pod {
			out = append(out, m)
		}
	}
	return out
}

// TestExtenderFiltersAndScores: an extender's refusals and scores count like those of plugins, and are part of the
// Decision.
func TestExtenderFiltersAndScores(t *testing.T) {
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": schedtest.RefuseNodes(map[string]string{"node-1": "too hot", "node-4": "not asked about"}),
		"score": func(context.Context, *json.Decoder) any {
			return extenderv1.HostPriorityList{{Host: "node-3", Score: 10}, {Host: "node-2", Score: 1}}
		},
	})
	cluster := startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter, prioritizeVerb: score, weight: 5}]",
			url)),
		schedtest.Node("node-1"), schedtest.Node("node-2"), schedtest.Node("node-3",
			schedtest.Allocatable(corev1.ResourceCPU, "2")), schedtest.Node("node-4", schedtest.Cordoned()),
		schedtest.Pod("a", schedtest.Requests("1", "")))
	if got := cluster.eventually("a", bound).Spec.NodeName; got != "node-3" {
		t.Errorf("node = %q, want the one that the extender scores best", got)
	}
	d := cluster.decisions("a")[0].Detail.(*decisions.Attempt)
	if d.Nodes != 4 || d.Feasible != 2 || d.Reasons["too hot"] != 1 || d.Reasons["node(s) were unschedulable"] != 1 {
		t.Errorf("the decision: %+v", d)
	}
	if v := d.Refusals[0]; v.Node != "node-1" || v.Plugin != "extender "+url || v.Reason != "too hot" {
		t.Errorf("the refusal: %+v", v)
	}
	best := d.Scores[0].Plugins
	if p := best[len(best)-1]; p.Plugin != "extender "+url || p.Raw != 10 || p.Normalized != 100 || p.Weight != 5 {
		t.Errorf("the score: %+v", p)
	}
	if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), schedtest.Pod("big", schedtest.Requests("3", "")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.eventually("big", bound) // node-2
	if _, err := cluster.CoreV1().Pods("default").Create(t.Context(),
		schedtest.Pod("more", schedtest.Requests("3", "")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := cluster.eventually("more", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	want := "0/4 nodes are available: 1 node(s) were unschedulable, 1 too hot, 2 Insufficient cpu."
	if got := scheduledCondition(p); got.Reason != corev1.PodReasonUnschedulable ||
		!strings.HasPrefix(got.Message, want) {
		t.Errorf("condition %+v, want %s", got, want)
	}
}

// TestExtenderDelaysOnlyItsPods: during the call of an extender other pods are bound, and nodes are not overcommitted.
func TestExtenderDelaysOnlyItsPods(t *testing.T) {
	asked := make(chan struct{})
	release := make(chan struct{})
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(ctx context.Context, d *json.Decoder) any {
			answer := schedtest.RefuseNodes(nil)(ctx, d)
			asked <- struct{}{}
			<-release
			return answer
		},
	})
	cluster := startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter, httpTimeout: 1m, managedResources: "+
			"[{name: x.io/gpu, ignoredByScheduler: true}]}]", url)),
		schedtest.Node("node-1"), schedtest.Pod("thought-about", schedtest.Requests("2", ""),
			requestsResource("x.io/gpu")))
	<-asked
	if _, err := cluster.CoreV1().Pods("default").Create(t.Context(),
		schedtest.Pod("plain", schedtest.Requests("3", "")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.eventually("plain", bound)
	close(release)
	p := cluster.eventually("thought-about", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	if got := scheduledCondition(p).Message; !strings.HasPrefix(got, "0/1 nodes are available: 1 Insufficient cpu.") {
		t.Errorf("condition %q, want that the room is gone", got)
	}
	if err := cluster.CoreV1().Pods("default").Delete(t.Context(), "plain", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-asked
	cluster.eventually("thought-about", bound)
}

// TestExtenderIsCalledAgain: the only node that the extender accepts is full when it responds; it is called again with
// the other nodes.
func TestExtenderIsCalledAgain(t *testing.T) {
	var c *cluster
	var asked []string
	begun := make(chan struct{})
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			<-begun
			var args extenderv1.ExtenderArgs
			if err := d.Decode(&args); err != nil {
				t.Error(err)
			}
			names := slices.Sorted(slices.Values(*args.NodeNames))
			asked = append(asked, strings.Join(names, " "))
			if len(asked) > 1 {
				return extenderv1.ExtenderFilterResult{NodeNames: &names}
			}
			plain := schedtest.Pod("plain", schedtest.Requests("3", ""), schedtest.With(func(s *corev1.PodSpec) {
				s.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
			}))
			if _, err := c.CoreV1().Pods("default").Create(t.Context(), plain, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			c.eventually("plain", bound)
			return extenderv1.ExtenderFilterResult{NodeNames: &[]string{"node-1"}}
		},
	})
	c = startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter, httpTimeout: 2m, nodeCacheCapable: "+
			"true, managedResources: [{name: x.io/gpu, ignoredByScheduler: true}]}]", url)),
		schedtest.Node("node-1"), schedtest.Node("node-2"), schedtest.Pod("a", schedtest.Requests("2", ""),
			requestsResource("x.io/gpu")))
	close(begun)
	if got := c.eventually("a", bound).Spec.NodeName; got != "node-2" {
		t.Errorf("node = %q, want node-2", got)
	}
	if want := []string{"node-1 node-2", "node-2"}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	if d := c.decisions("a"); len(d) != 1 {
		t.Errorf("%d attempts, want one", len(d))
	}
}

// TestExtenderRefuses: a pod that an extender refused waits for any change: the scheduler cannot know what its extender
// looks at.
func TestExtenderRefuses(t *testing.T) {
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": schedtest.RefuseNodes(map[string]string{"node-1": "no license"}),
	})
	c := startWith(t, with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter}]", url)),
		schedtest.Node("node-1"), schedtest.Pod("a"))
	c.eventually("a", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	if got, want := c.decisions("a")[0].Detail.(*decisions.Attempt).WaitsFor, "anything in the cluster changes"; got != want {
		t.Errorf("it waits until %s, want %s", got, want)
	}
}

// TestExtenderFails: a pod whose extender lies has the failure in its condition and is tried again; one that may be
// ignored leaves an event.
func TestExtenderFails(t *testing.T) {
	const took = 20 * time.Millisecond
	var lies atomic.Bool
	lies.Store(true)
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(ctx context.Context, d *json.Decoder) any {
			if lies.CompareAndSwap(true, false) {
				for begin := time.Now(); time.Since(begin) < took; {
					runtime.Gosched()
				}
				return map[string]any{"Nodes": map[string]any{
					"items": []any{map[string]any{"metadata": map[string]any{"name": "node-x"}}},
				}}
			}
			return schedtest.RefuseNodes(nil)(ctx, d)
		},
	})
	cluster := startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter}, {urlPrefix: '%s', filterVerb: "+
			"absent, ignorable: true}]", url, url)),
		schedtest.Node("node-1"), schedtest.Pod("a"))
	p := cluster.eventually("a", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	want := `extender ` + url + `: filter: the answer has node "node-x", which was not sent`
	if got := scheduledCondition(p); got.Reason != corev1.PodReasonSchedulerError || got.Message != want {
		t.Errorf("condition %+v, want SchedulerError: %s", got, want)
	}
	if m := cluster.decisions("a")[0]; m.Err != want || m.Detail.(*decisions.Attempt).WaitsFor != "its backoff is over" {
		t.Errorf("mark %+v", m)
	} else if got := m.Detail.(*decisions.Attempt).Filtering(); got < took {
		t.Errorf("filtering took %s, the extender's call alone %s", got, took)
	}
	cluster.eventually("a", bound)
	cluster.sayingOf("a", "ExtenderIgnored", "extender "+url+": absent: answered 404 Not Found: 404 page not found")
}

// sayingOf waits for an event.
func (c *cluster) sayingOf(pod, reason, note string) {
	c.t.Helper()
	watcher, err := c.EventsV1().Events("").Watch(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer watcher.Stop()
	for {
		events, err := c.EventsV1().Events("").List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Regarding.Name == pod && e.Reason == reason && e.Note == note {
				return
			}
		}
		<-watcher.ResultChan() // the test's own time-out ends it
	}
}

// TestExtenderPreemptsAndBinds: the extender chooses where room is made, and binds.
func TestExtenderPreemptsAndBinds(t *testing.T) {
	var c *cluster
	ready := make(chan struct{})
	var binds atomic.Int32
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"preempt": func(_ context.Context, d *json.Decoder) any {
			var args extenderv1.ExtenderPreemptionArgs
			if err := d.Decode(&args); err != nil || len(args.NodeNameToMetaVictims) != 2 {
				t.Errorf("asked for %v: %v", args, err)
			}
			return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
				"node-2": args.NodeNameToMetaVictims["node-2"],
			}}
		},
		"bind": func(ctx context.Context, d *json.Decoder) any {
			<-ready
			var args extenderv1.ExtenderBindingArgs
			if err := d.Decode(&args); err != nil {
				t.Error(err)
			}
			binds.Add(1)
			b := &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID},
				Target:     corev1.ObjectReference{Kind: "Node", Name: args.Node},
			}
			if err := c.CoreV1().Pods(args.PodNamespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
				return extenderv1.ExtenderBindingResult{Error: err.Error()}
			}
			return extenderv1.ExtenderBindingResult{}
		},
	})
	c = startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', preemptVerb: preempt, bindVerb: bind, nodeCacheCapable: "+
			"true}]", url)),
		schedtest.Node("node-1"), schedtest.Node("node-2"), schedtest.Pod("cheap", schedtest.On("node-1"),
			schedtest.Requests("4", "")),
		schedtest.Pod("dear", schedtest.On("node-2"), schedtest.Requests("4", ""), schedtest.Priority(10)),
		schedtest.Pod("high", schedtest.Requests("2", ""), schedtest.Priority(1000)))
	close(ready)
	if got := c.eventually("high", bound).Spec.NodeName; got != "node-2" {
		t.Errorf("node = %q, want the extender's choice", got)
	}
	if binds.Load() != 1 {
		t.Errorf("the extender bound %d pods, want 1", binds.Load())
	}
	if _, err := c.CoreV1().Pods("default").Get(t.Context(), "cheap", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod that the extender spares: %v", err)
	}
}

// TestDeletedWhileVictimsAreChosen: a pod that is deleted while an extender chooses its victims preempts no pod,
// and keeps no room.
func TestDeletedWhileVictimsAreChosen(t *testing.T) {
	var c *cluster
	ready := make(chan struct{})
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"preempt": func(_ context.Context, d *json.Decoder) any {
			<-ready
			var args extenderv1.ExtenderPreemptionArgs
			if err := d.Decode(&args); err != nil {
				t.Error(err)
			}
			c.remove("high")
			c.add(schedtest.Pod("probe", schedtest.Requests("1", "")))
			c.eventually("probe", bound) // so the scheduler has seen both
			return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: args.NodeNameToMetaVictims}
		},
	})
	c = startWith(t,
		with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', preemptVerb: preempt, nodeCacheCapable: true, "+
			"httpTimeout: 1m, managedResources: [{name: x.io/gpu, ignoredByScheduler: true}]}]", url)),
		schedtest.Node("node-1"), schedtest.Pod("low", schedtest.On("node-1"), schedtest.Requests("3", "")),
		schedtest.Pod("high", schedtest.Requests("2", ""), requestsResource("x.io/gpu"), schedtest.Priority(1000)))
	close(ready)
	c.eventually("probe", bound)
	// its turn comes after the attempt for the other
	c.add(schedtest.Pod("later", schedtest.Requests("", ""), requestsResource("x.io/gpu")))
	c.eventually("later", bound)
	c.remove("probe")
	c.add(schedtest.Pod("plain", schedtest.Requests("1", "")))
	c.eventually("plain", bound)
	if p := c.pod("low"); p.DeletionTimestamp != nil || len(p.Status.Conditions) > 0 {
		t.Errorf("the victim: %+v", p)
	}
}

// undecidedPlugin cannot decide about nodes the first time.
type undecidedPlugin struct{ times atomic.Int32 }

func (u *undecidedPlugin) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "Unsure",
		PreFilter: u.PreFilter,
	}
}

func (u *undecidedPlugin) PreFilter(
	*framework.CycleState, *state.PodInfo, *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if u.times.Add(1) == 1 {
		return framework.NodeFilter{}, framework.NewStatus("Unsure", framework.Failed, "no answer at first")
	}
	return framework.NodeFilter{Filter: u.Filter}, nil
}

func (u *undecidedPlugin) Filter(*state.NodeInfo) *framework.Status {
	if u.times.Load() == 2 {
		return framework.NewStatus("Unsure", framework.Failed, "no answer again")
	}
	return nil
}

// TestUndecided: where a plugin could not decide, the attempt ends, is reported as an error, and is retried.
func TestUndecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &undecidedPlugin{}
		cluster := startWith(t, with(framework.Registry{"Unsure": made(u.plugin())}), schedtest.Node("node-1"),
			schedtest.Node("node-2"), schedtest.Pod("a"))
		for i, want := range []string{"Unsure: no answer at first", "Unsure: no answer again"} {
			p := cluster.eventually("a", func(p *corev1.Pod) bool {
				cond := scheduledCondition(p)
				return cond != nil && cond.Message == want
			})
			if got := scheduledCondition(p).Reason; got != corev1.PodReasonSchedulerError {
				t.Errorf("reason %s", got)
			}
			if d := cluster.decisions("a"); len(d) != i+1 || d[i].Err != want ||
				len(d[i].Detail.(*decisions.Attempt).Refusals) > 0 {
				t.Errorf("marks %+v", d)
			}
		}
		cluster.eventually("a", bound)
	})
}
