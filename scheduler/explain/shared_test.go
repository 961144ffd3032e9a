// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/api/decisions"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func ofJob(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "x", Controller: new(true)}}
}

// TestSharedRefusals: pods that fit nowhere get the same decision whether it is shared with the pods before them,
// while nodes and pods change, or made for each.
func TestSharedRefusals(t *testing.T) {
	engine := func() *core.Engine {
		return core.NewEngine(schedtest.Default(&plugins.Shared{}), 1, 1)
	}
	shapes := []schedtest.PodOption{schedtest.Requests("9", "500Mi"), schedtest.Requests("3500m",
		"40Gi"), schedtest.HostPort("", corev1.ProtocolTCP, 80)}
	rapid.Check(t, func(t *rapid.T) {
		harness := schedtest.New(1, 1)
		nodes := rapid.SampledFrom([]int{3, 90, 101, 300}).Draw(t, "nodes")
		node := func(i int, o ...schedtest.NodeOption) {
			harness.Add(schedtest.Node(fmt.Sprintf("n%03d", i), o...))
		}
		for i := range nodes {
			node(i)
		}
		kept := engine()
		for step := range rapid.IntRange(1, 25).Draw(t, "steps") {
			i := rapid.IntRange(0, nodes).Draw(t, "node")
			name := fmt.Sprintf("n%03d", i)
			switch rapid.IntRange(0, 15).Draw(t, "what") {
			case 0:
				node(i, schedtest.Allocatable(corev1.ResourceCPU, "5"))
			case 1:
				harness.Cache.RemoveNode(name)
			case 2:
				node(i, schedtest.Cordoned())
			case 3:
				node(i, schedtest.Taint("a", "b", corev1.TaintEffectNoSchedule))
			case 4, 5:
				harness.Add(schedtest.Pod(fmt.Sprint("x", step), schedtest.On(name), schedtest.Requests("1", "1Gi"),
					ofJob))
			case 6, 7:
				harness.Add(schedtest.Pod(fmt.Sprint("y", step), schedtest.On(name), schedtest.Requests("2", "3Gi")))
			case 8:
				harness.Cache.Nominate(state.NewPodInfo(schedtest.Pod("coming", schedtest.Priority(9))), name)
			case 9:
				harness.Cache.Unnominate("pod-default-coming")
			}
			info := state.NewPodInfo(schedtest.Pod(fmt.Sprint("p", step), rapid.SampledFrom(shapes).Draw(t, "shape")))
			a := kept.Decide(info, harness.Cache.Refresh(), nil)
			got := decisionOf(a)
			if diff := cmp.Diff(decisionOf(engine().Decide(info, harness.Cache.Refresh(), nil)), got); diff != "" {
				t.Fatalf("step %d: (-found out +shared):\n%s", step, diff)
			}
		}
	})
}

// decisionOf is an attempt's decision, without times.
func decisionOf(a *framework.Attempt) *decisions.Attempt {
	d := explain.Decision(a, 1, 0)
	d.ExtensionPoints = nil
	if a.Chosen != nil { // the order among equal nodes is random
		d.Node = ""
		d.Scores = nil
	}
	return d
}

// TestAlikeShareRefusals: pods alike share one explanation until a node changes that it looks at.
func TestAlikeShareRefusals(t *testing.T) {
	harness := schedtest.New(1, 1)
	for i := range 400 {
		harness.Add(schedtest.Node(fmt.Sprintf("n%03d", i)))
	}
	try := func() *framework.Attempt {
		a := harness.Try(schedtest.Pod("big", schedtest.Requests("9", "")))
		explain.Decision(a, 1, 0)
		return a
	}
	of := func() *decisions.Refusal { return &try().Refusals.Explained.Refusals[0] }
	first := of()
	if of() != first {
		t.Error("nothing has changed, and it was explained again")
	}
	harness.Add(schedtest.Pod("far", schedtest.On("n399")))
	if of() != first {
		t.Error("a node has changed that no explanation looks at, and it was explained again")
	}
	harness.Add(schedtest.Pod("near", schedtest.On("n003")))
	if of() == first {
		t.Error("a node has changed that the explanation looks at")
	}
}

// TestSharedRefusalsFollowJobs: the Job whose end helps is looked for again after every change, on nodes far back too.
func TestSharedRefusalsFollowJobs(t *testing.T) {
	harness := schedtest.New(1, 1)
	for i := range 400 {
		name := fmt.Sprintf("n%03d", i)
		if i < 300 {
			harness.Add(schedtest.Node(name, schedtest.Taint("a", "b", corev1.TaintEffectNoSchedule)))
		} else {
			harness.Add(schedtest.Node(name),
				schedtest.Pod("on-"+name, schedtest.On(name), schedtest.Requests("2", "")))
		}
	}
	job := func() string {
		a := harness.Try(schedtest.Pod("big", schedtest.Requests("3", "")))
		explain.Decision(a, 1, 0)
		return a.Refusals.Explained.Leaves
	}
	if got, want := job(), "fits on n300 when pod default/on-n300 is gone"; got != want {
		t.Errorf("without Jobs: got %q, want %q", got, want)
	}
	harness.Cache.RemovePod("pod-default-on-n310")
	harness.Add(schedtest.Pod("worker", schedtest.On("n310"), schedtest.Requests("2", ""), ofJob))
	if got, want := job(), "n310 frees up when job default/x ends"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
