// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/policy"
	"keelson/scheduler/preempt"
	"keelson/scheduler/schedtest"
)

var update = flag.Bool("update", false, "write the golden files")

// judging is the plugin with a policy of the configuration, and one of an object.
func judging(t *testing.T) *plugins.CELPolicy {
	t.Helper()
	args := policy.Args{
		Policies: []policy.Named{
			{
				Name: "ssd",
				Spec: policy.Spec{Scores: []policy.Score{{Expression: "node.labels[?'disk'].orValue('') == 'ssd'"}}},
			},
		},
	}
	own, errs := args.CompileAll(nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	object, errs := policy.Compile("rank", &policy.Spec{Scores: []policy.Score{
		{Expression: "int(node.labels['rank'])", Weight: new(int32(3))}, {Expression: "250.5\n  - double(node.pods)"},
	}}, nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	set := &policy.Set{}
	set.Use([]*policy.Policy{object})
	return &plugins.CELPolicy{Own: own, Objects: set}
}

// TestScoreFacts: what the scores of balance and images are computed from leads to the scores: 50:50 gets 75, 20:60
// gets 65, and an image of 7 MB nothing.
func TestScoreFacts(t *testing.T) {
	h := schedtest.New(1, 1)
	half := schedtest.Node("half", schedtest.Allocatable(corev1.ResourceCPU, "4"),
		schedtest.Allocatable(corev1.ResourceMemory, "6Gi"))
	half.Status.Images = []corev1.ContainerImage{{Names: []string{"app:1"}, SizeBytes: 7 << 20}}
	uneven := schedtest.Node("uneven", schedtest.Allocatable(corev1.ResourceCPU, "10"),
		schedtest.Allocatable(corev1.ResourceMemory, "5Gi"))
	h.Add(half, uneven)
	pod := schedtest.Pod("web", schedtest.Requests("2", "3Gi"))
	pod.Spec.Containers[0].Image = "app:1"
	found := map[string]*decisions.ScoreFacts{}
	raw := map[string]int64{}
	for _, node := range explain.Decision(h.Try(pod), 1, 0).Scores {
		for _, score := range node.Plugins {
			if score.Facts != nil {
				found[node.Node+" "+score.Plugin] = score.Facts
				raw[node.Node+" "+score.Plugin] = score.Raw
			}
		}
	}
	use := func(cpu, memory float64, with int64) *decisions.ScoreFacts {
		return &decisions.ScoreFacts{Balance: &decisions.Balance{
			Resources: []decisions.Utilization{{Resource: "cpu", With: cpu}, {Resource: "memory", With: memory}},
			Without:   100,
			With:      with,
		}}
	}
	image := func(bytes int64) *decisions.ScoreFacts {
		return &decisions.ScoreFacts{
			Images:        []decisions.NodeImage{{Image: "app:1", Bytes: bytes, Nodes: 1, Of: 2}},
			MinImageBytes: 23 << 20,
		}
	}
	want := map[string]*decisions.ScoreFacts{
		"half NodeResourcesBalancedAllocation":   use(50, 50, 100),
		"uneven NodeResourcesBalancedAllocation": use(20, 60, 80),
		"half ImageLocality":                     image(7 << 20),
		"uneven ImageLocality":                   image(0),
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	for name, score := range map[string]int64{
		"half NodeResourcesBalancedAllocation":   75,
		"uneven NodeResourcesBalancedAllocation": 65,
		"half ImageLocality":                     0,
	} {
		if raw[name] != score {
			t.Errorf("%s: raw score %d, want %d", name, raw[name], score)
		}
	}
}

// TestDecisions compares what people read, messages included, with golden files.
func TestDecisions(t *testing.T) {
	small := []any{
		schedtest.Node("node-1", schedtest.Allocatable(corev1.ResourceMemory, "4Gi")),
		schedtest.Node("node-2", schedtest.Allocatable(corev1.ResourceMemory, "4Gi")),
		schedtest.Node("node-3", schedtest.Taint("gpu", "true", corev1.TaintEffectNoSchedule)),
		schedtest.Pod("p", schedtest.On("node-1"), schedtest.Requests("", "2.8Gi")),
		schedtest.Pod("q", schedtest.On("node-2"), schedtest.Requests("1", "1Gi")),
	}
	ofJob := func(job string) schedtest.PodOption {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: job, Controller: new(true)}}
		}
	}
	busy := []any{schedtest.Node("node-1"), schedtest.Node("node-2"), schedtest.Node("node-3", schedtest.Cordoned())}
	for i, node := range []string{"node-1", "node-2"} {
		busy = append(busy, schedtest.Pod("x-"+node, schedtest.On(node), schedtest.Requests("3", ""), ofJob("x"),
			schedtest.Priority(int32(i))), schedtest.Pod("y-"+node, schedtest.On(node), schedtest.Requests("1", ""),
			ofJob("y")))
	}
	tests := []struct {
		name    string
		cluster []any
		pod     *corev1.Pod
		more    []framework.Weighted
	}{
		{"job-ends", busy, schedtest.Pod("waits", schedtest.Requests("2", ""), schedtest.Priority(-1)), nil},
		{"preempts", busy, schedtest.Pod("important", schedtest.Requests("2", ""), schedtest.Priority(1000)), nil},
		{
			"two-reasons",
			[]any{schedtest.Node("node-1", schedtest.Taint("gpu", "true", corev1.TaintEffectNoSchedule),
				schedtest.Allocatable(corev1.ResourceCPU, "1"))},
			schedtest.Pod("large", schedtest.Requests("2", "")), nil,
		},
		{"bound", small, schedtest.Pod("small"), nil},
		{"pending", small, schedtest.Pod("big", schedtest.Requests("1", "4Gi")), nil},
		{"too-large-for-any", small, schedtest.Pod("huge", schedtest.Requests("64", "64Gi")), nil},
		{
			"policies",
			[]any{schedtest.Node("node-1", schedtest.Labels("disk", "ssd")), schedtest.Node("node-2",
				schedtest.Labels("rank", "7"))},
			schedtest.Pod("judged"),
			[]framework.Weighted{{Plugin: judging(t).Plugin(), Weight: 2}},
		},
		{"no-nodes", nil, schedtest.Pod("lonely"), nil},
		{
			"port",
			append(small, schedtest.Pod("r", schedtest.On("node-1"), schedtest.HostPort("", corev1.ProtocolTCP, 80)),
				schedtest.Pod("s", schedtest.On("node-2"), schedtest.HostPort("", corev1.ProtocolTCP, 80))),
			schedtest.Pod("port", schedtest.HostPort("", corev1.ProtocolTCP, 80)), nil,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			h := schedtest.New(1, 1, tc.more...)
			h.Add(tc.cluster...)
			a := h.Try(tc.pod)
			if a.Chosen == nil && len(tc.cluster) > 0 {
				room, why := preempt.Choose(a, nil)
				if a.Preemption = room; room == nil {
					a.PostFilterMessage = "preemption: " + why
				}
			}
			decision := explain.Decision(a, 1, 0)
			if len(tc.cluster) > 0 && (decision.Point(decisions.PreFilter) == 0 ||
				a.Chosen != nil && decision.Point(decisions.PreScore) == 0) {
				t.Errorf("extension points took %v", decision.ExtensionPoints)
			}
			decision.ExtensionPoints = nil
			got, err := json.MarshalIndent(decision, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			path := filepath.Join("testdata", tc.name+".golden")
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// TestLargeClusterIsBounded: only the nearest and the leading of many nodes are reported, and all are counted.
func TestLargeClusterIsBounded(t *testing.T) {
	harness := schedtest.New(1, 1)
	for i := range 200 {
		harness.Add(schedtest.Node(fmt.Sprintf("n%03d", i),
			schedtest.Allocatable(corev1.ResourceCPU, fmt.Sprintf("%dm", 1000+i))))
	}
	decision := explain.Decision(harness.Try(schedtest.Pod("big", schedtest.Requests("2", ""))), 1, 0)
	if len(decision.Refusals) != 16 || decision.Reasons["Insufficient cpu"] != 200 ||
		!decision.Refusals[0].Nearest ||
		decision.Refusals[0].Node != "n199" {
		t.Errorf("%d verdicts, first %+v, counted %v; want 16, n199 nearest, 200", len(decision.Refusals),
			decision.Refusals[0],
			decision.Reasons)
	}
	decision = explain.Decision(harness.Try(schedtest.Pod("small")), 1, 0)
	if len(decision.Scores) != 5 || decision.Scores[0].Node != decision.Node {
		t.Errorf("%d scores, first of %s, chosen %s; want 5, the chosen first", len(decision.Scores),
			decision.Scores[0].Node,
			decision.Node)
	}
	for i := 1; i < len(decision.Scores); i++ {
		if decision.Scores[i].Total > decision.Scores[i-1].Total {
			t.Errorf("scores are not in order: %+v", decision.Scores)
		}
	}
}
