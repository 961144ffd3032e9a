// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/api/decisions"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
)

const gpu8 = "x.io/gpu"

// withGroupExtender configures the gate GenericWorkload and an extender that is interested in pods with GPUs.
func withGroupExtender(t *testing.T, verbs map[string]func(context.Context, *json.Decoder) any, more string) func(
	*loop.Config,
) {
	t.Helper()
	url := schedtest.ExtenderAt(t, verbs)
	asked := with(nil, fmt.Sprintf("extenders: [{urlPrefix: '%s', managedResources: [{name: %s, ignoredByScheduler: "+
		"true}], httpTimeout: 1m, %s}]", url, gpu8, more))
	return func(c *loop.Config) {
		asked(c)
		groups(c)
	}
}

// waitForGroupCondition waits for a group's condition.
func (c *cluster) waitForGroupCondition(group, want string) {
	c.t.Helper()
	w, err := c.SchedulingV1beta1().PodGroups("default").Watch(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	for !strings.HasPrefix(c.groupCondition(group), want) {
		<-w.ResultChan() // the test's own time-out ends it
	}
}

// waitForEventOnPod waits for an event of a pod with a text in it.
func (c *cluster) waitForEventOnPod(pod, reason, text string) {
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
			if e.Regarding.Name == pod && e.Reason == reason && strings.Contains(e.Note, text) {
				return
			}
		}
		<-watcher.ResultChan() // the test's own time-out ends it
	}
}

// decodeFilterArgs decodes the request of a filter verb. answer accepts all nodes.
func decodeFilterArgs(
	t *testing.T, d *json.Decoder,
) (pod string, nodes []string, answer extenderv1.ExtenderFilterResult) {
	t.Helper()
	var args extenderv1.ExtenderArgs
	if err := d.Decode(&args); err != nil {
		t.Error(err)
	}
	for _, n := range args.Nodes.Items {
		nodes = append(nodes, n.Name)
	}
	slices.Sort(nodes)
	return args.Pod.Name, nodes, extenderv1.ExtenderFilterResult{
		Nodes:       args.Nodes,
		FailedNodes: extenderv1.FailedNodesMap{},
	}
}

// TestExtenderOfGroup: an extender is called for each pod of a group, as if the previous pods had their nodes, and
// binds them.
func TestExtenderOfGroup(t *testing.T) {
	var c *cluster
	var mu sync.Mutex
	var asked []string
	ready := make(chan struct{})
	c = startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			pod, nodes, answer := decodeFilterArgs(t, d)
			mu.Lock()
			asked = append(asked, pod+": "+strings.Join(nodes, " "))
			mu.Unlock()
			if i := slices.IndexFunc(answer.Nodes.Items, func(n corev1.Node) bool { return n.Name == "n1" }); i >= 0 {
				answer.Nodes.Items = slices.Delete(answer.Nodes.Items, i, i+1)
				answer.FailedNodes["n1"] = "too hot"
			}
			return answer
		},
		"score": func(context.Context, *json.Decoder) any {
			return extenderv1.HostPriorityList{{Host: "n3", Score: 10}}
		},
		"bind": func(ctx context.Context, d *json.Decoder) any {
			<-ready
			var args extenderv1.ExtenderBindingArgs
			if err := d.Decode(&args); err != nil {
				t.Error(err)
			}
			b := &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID},
				Target:     corev1.ObjectReference{Kind: "Node", Name: args.Node},
			}
			if err := c.CoreV1().Pods(args.PodNamespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
				return extenderv1.ExtenderBindingResult{Error: err.Error()}
			}
			return extenderv1.ExtenderBindingResult{}
		},
	}, "filterVerb: filter, prioritizeVerb: score, weight: 9, bindVerb: bind"), append(schedtest.Members("g", 2, "3",
		requestsResource(gpu8)), schedtest.Gang("g", 2), schedtest.Node("n1"), schedtest.Node("n2"), schedtest.Node("n3"))...)
	close(ready)
	on := map[string]string{} // pods, by node
	for _, name := range []string{"g-0", "g-1"} {
		on[c.eventually(name, bound).Spec.NodeName] = name
	}
	c.waitForGroupCondition("g", "True Scheduled")
	mu.Lock()
	defer mu.Unlock()
	// The first has the best node, the second the one that is left.
	if want := []string{on["n3"] + ": n1 n2 n3", on["n2"] + ": n1 n2"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if d := c.decisions(on["n2"]); len(d) != 1 || d[0].Detail.(*decisions.Attempt).Reasons["too hot"] != 1 {
		t.Errorf("decisions of the second: %+v", d)
	}
}

// TestOtherPodsAreScheduledDuringGroupCall: during the calls for a group other pods are scheduled, as if no pod of the
// group had a node. Nodes are not overcommitted.
func TestOtherPodsAreScheduledDuringGroupCall(t *testing.T) {
	thinks := make(chan string, 100)
	goOn := make(chan struct{})
	cluster := startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			pod, _, answer := decodeFilterArgs(t, d)
			thinks <- pod
			<-goOn
			return answer
		},
	}, "filterVerb: filter"), append(schedtest.Members("g", 2, "3", requestsResource(gpu8)), schedtest.Gang("g", 2), schedtest.Node("n1"),
		schedtest.Node("n2"))...)
	first := <-thinks
	goOn <- struct{}{}
	if second := <-thinks; first == second { // the first has a node of its own by now, but no call sees that
		t.Errorf("asked about %s twice", first)
	}
	for i := range 2 {
		on := schedtest.With(func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprint("n", i+1)}
		})
		cluster.add(schedtest.Pod(fmt.Sprint("plain-", i), schedtest.Requests("3", ""), on))
		cluster.eventually(fmt.Sprint("plain-", i), bound)
	}
	close(goOn)
	cluster.waitForGroupCondition("g", "False Unschedulable")
	if n := cluster.countBound("g-"); n != 0 {
		t.Errorf("%d pods of the group are bound to nodes that are full", n)
	}
	cluster.remove("plain-0")
	cluster.remove("plain-1")
	cluster.eventually("g-0", bound)
	cluster.eventually("g-1", bound)
}

// TestExtenderRefusesGroup: no pod is evicted for a group that an extender refuses; if it accepts the group, only as
// many pods as needed are evicted.
func TestExtenderRefusesGroup(t *testing.T) {
	for refuses, want := range map[bool]string{true: "high low", false: "high"} {
		cluster := startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
			"filter": func(_ context.Context, d *json.Decoder) any {
				_, _, answer := decodeFilterArgs(t, d)
				if i := slices.IndexFunc(answer.Nodes.Items, func(n corev1.Node) bool {
					return n.Name == "n1"
				}); refuses && i >= 0 {
					answer.Nodes.Items = slices.Delete(answer.Nodes.Items, i, i+1)
					answer.FailedNodes["n1"] = "too hot"
				}
				return answer
			},
		}, "filterVerb: filter"), append(schedtest.Members("g", 2, "3", requestsResource(gpu8), schedtest.Priority(100)),
			schedtest.Important(schedtest.Gang("g", 2), 100), schedtest.Node("n1"), schedtest.Node("n2"),
			low("low", "n1", "3"), low("high", "n2", "1", schedtest.Priority(200)))...)
		if refuses {
			cluster.waitForGroupCondition("g", "False Unschedulable")
			if s := cluster.groupCondition("g"); strings.Contains(s, "preempting") {
				t.Errorf("the group says %s", s)
			}
		} else {
			cluster.waitForGroupCondition("g", "True Scheduled")
			cluster.eventually("g-0", bound)
			cluster.eventually("g-1", bound)
		}
		if got := cluster.remainingPods(); got != want {
			t.Errorf("refuses %v: %q are left, want %q", refuses, got, want)
		}
	}
}

// TestExtenderFailsForGroup: the error is in the condition of the group, which is tried again. Groups in which no
// extender is interested do not wait.
func TestExtenderFailsForGroup(t *testing.T) {
	var fails atomic.Bool
	fails.Store(true)
	thinks := make(chan struct{}, 100)
	goOn := make(chan struct{})
	cluster := startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			_, _, answer := decodeFilterArgs(t, d)
			thinks <- struct{}{}
			<-goOn
			if fails.CompareAndSwap(true, false) {
				return extenderv1.ExtenderFilterResult{Error: "out of order"}
			}
			return answer
		},
	}, "filterVerb: filter"), append(schedtest.Members("g", 2, "1", requestsResource(gpu8)), schedtest.Gang("g", 2), schedtest.Node("n1"),
		schedtest.Gang("h", 2))...)
	<-thinks
	cluster.add(schedtest.Members("h", 2, "1")...)
	cluster.eventually("h-0", bound)
	cluster.eventually("h-1", bound)
	close(goOn)
	cluster.waitForEventOnPod("g-0", "FailedScheduling", "filter: the extender returned an error: out of order")
	cluster.eventually("g-0", bound)
	cluster.eventually("g-1", bound)
}

// removeAndWait deletes a pod, and returns when the scheduler knows it: events about pods arrive in their order, so it
// learns of a pod that was created later only after that.
func (c *cluster) removeAndWait(name string) {
	c.remove(name)
	c.add(schedtest.Pod("later", schedtest.Requests("", "")))
	c.eventually("later", bound)
}

// TestPodOfGroupDeletedDuringCall: a pod of a group is deleted while an extender is called about another one. The
// others are placed in the same attempt, and the deleted pod takes no room.
func TestPodOfGroupDeletedDuringCall(t *testing.T) {
	var c *cluster
	var once sync.Once
	var deleted string
	ready := make(chan struct{})
	c = startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			<-ready
			pod, _, answer := decodeFilterArgs(t, d)
			once.Do(func() {
				deleted = "g-1"
				if pod == deleted {
					deleted = "g-0"
				}
				c.removeAndWait(deleted)
			})
			return answer
		},
	}, "filterVerb: filter"), append(schedtest.Members("g", 3, "3", requestsResource(gpu8)), schedtest.Gang("g", 2), schedtest.Node("n1"),
		schedtest.Node("n2"))...)
	close(ready)
	c.eventually("g-2", bound)
	c.waitForGroupCondition("g", "True Scheduled")
	for _, name := range []string{"g-0", "g-1", "g-2"} {
		if name == deleted {
			continue
		}
		c.eventually(name, bound)
		if d := c.decisions(name); len(d) != 1 || d[0].Detail.(*decisions.Attempt).Attempt != 1 {
			t.Errorf("%s: %d decisions, want one attempt: %+v", name, len(d), d)
		}
	}
}

// TestNoPreemptionForDeletedPods: a pod of a group is deleted while an extender is called for the preemption by the
// group. No pod is evicted.
func TestNoPreemptionForDeletedPods(t *testing.T) {
	var c *cluster
	var once sync.Once
	ready := make(chan struct{})
	c = startWith(t, withGroupExtender(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": func(_ context.Context, d *json.Decoder) any {
			<-ready
			pod, nodes, answer := decodeFilterArgs(t, d)
			if len(nodes) == 2 { // n1 is feasible only without the pod that may be evicted
				once.Do(func() {
					deleted := "g-0"
					if pod == deleted {
						deleted = "g-1"
					}
					c.removeAndWait(deleted)
				})
			}
			return answer
		},
	}, "filterVerb: filter"), append(schedtest.Members("g", 2, "3", requestsResource(gpu8), schedtest.Priority(100)),
		schedtest.Important(schedtest.Gang("g", 2), 100), schedtest.Node("n1"), schedtest.Node("n2"),
		low("low", "n1", "3"))...)
	close(ready)
	c.waitForGroupCondition("g", "False Unschedulable")
	if s := c.groupCondition("g"); !strings.Contains(s, "deleted during the calls of extenders") ||
		strings.Contains(s, "preempting") {
		t.Errorf("the group's condition is %q", s)
	}
	if got := c.remainingPods(); got != "later low" {
		t.Errorf("%q are left, want later low", got)
	}
}
