// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// addPreferences adds fields to a pod that only scores use.
func addPreferences(t *rapid.T, pod *corev1.Pod) {
	term := corev1.PodAffinityTerm{
		TopologyKey: rapid.SampledFrom([]string{corev1.LabelHostname, corev1.LabelTopologyZone}).Draw(t,
			"preferred key"),
		LabelSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "preferred target")},
		},
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	weighted := []corev1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: term}}
	switch rapid.IntRange(0, 5).Draw(t, "prefers") {
	case 0:
		pod.Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}
	case 1:
		pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: weighted,
		}
	case 2:
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew:           2,
			TopologyKey:       term.TopologyKey,
			LabelSelector:     term.LabelSelector,
			WhenUnsatisfiable: corev1.ScheduleAnyway,
			NodeTaintsPolicy: rapid.SampledFrom([]*corev1.NodeInclusionPolicy{
				nil, new(corev1.NodeInclusionPolicyHonor),
			}).Draw(t, "taints count"),
		})
	case 3:
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 5,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key:      corev1.LabelTopologyZone,
					Operator: corev1.NodeSelectorOpIn,
					Values:   []string{"a"},
				}}},
			}},
		}
	case 4:
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "soft", Operator: corev1.TolerationOpExists}}
	}
}

// TestFilterAllEqualsFilter: filterAll and scoreAll, with results cached for previous pods of the class, give the same
// statuses and scores as filtering and scoring the nodes one by one, while pods and nodes are added, deleted and
// updated.
func TestFilterAllEqualsFilter(t *testing.T) {
	engine := func(percent int32) *core.Engine {
		p := schedtest.Default(&plugins.Shared{})
		p.PercentageOfNodesToScore = percent // below 100 filterAll is not used; of so few nodes all are filtered
		return core.NewEngine(p, 1, 1)
	}
	rapid.Check(t, func(t *rapid.T) {
		nodes, namespaces, pods := world(t)
		for i, n := range nodes {
			if i%3 == 0 {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
					Key:    "soft",
					Effect: corev1.TaintEffectPreferNoSchedule,
				})
			}
		}
		for _, p := range pods {
			addPreferences(t, p)
		}
		harness := newWorld(nodes, namespaces)
		there := map[string]*corev1.Pod{}
		alive := map[string]*corev1.Node{}
		for _, n := range nodes {
			alive[n.Name] = n
		}
		filterAll := engine(0)
		each := engine(50)
		if rapid.Bool().Draw(t, "nominated") {
			coming := state.NewPodInfo(schedtest.Pod("coming", schedtest.Requests("1", "1Gi"), schedtest.Priority(5),
				schedtest.Labelled("app", "x")))
			harness.Cache.Nominate(coming, nodes[0].Name)
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			churn(t, harness, nodes, pods, there, alive)
			p := state.NewPodInfo(rapid.SampledFrom(pods).Draw(t, "tried"))
			a := filterAll.Decide(p, harness.Cache.Refresh(), nil)
			b := each.Decide(p, harness.Cache.Refresh(), nil)
			if diff := cmp.Diff(verdict(b), verdict(a)); diff != "" {
				t.Fatalf("%s: verdicts (-one by one +all at once):\n%s", p.Key, diff)
			}
			if diff := cmp.Diff(largest(a.Totals), a.Best); diff != "" {
				t.Fatalf("%s: the best (-by their totals +as the attempt has them):\n%s", p.Key, diff)
			}
			if diff := cmp.Diff(ranked(b), ranked(a)); diff != "" {
				t.Fatalf("%s: scores (-one by one +all at once):\n%s", p.Key, diff)
			}
		}
	})
}

func largest(totals []int64) (at []int32) {
	for i, total := range totals {
		if total == slices.Max(totals) {
			at = append(at, int32(i))
		}
	}
	return at
}

// TestBestFollowsChanges: where all nodes fit and they differ only in what is on them, the engine looks only
// at nodes that have changed since the last pod that was alike. It decides like an engine that looks at all nodes.
func TestBestFollowsChanges(t *testing.T) {
	engine := func() *core.Engine {
		return core.NewEngine(schedtest.Default(&plugins.Shared{}), 1, 1)
	}
	shapes := []schedtest.PodOption{
		schedtest.Requests("100m", "500Mi"), schedtest.Requests("10m", "10Mi"), schedtest.Requests("", ""),
	}
	rapid.Check(t, func(t *rapid.T) {
		harness := schedtest.New(1, 1)
		for i := range rapid.IntRange(1, 20).Draw(t, "nodes") {
			harness.Add(schedtest.Node(fmt.Sprintf("n-%d", i)))
		}
		kept := engine()
		var there []*corev1.Pod
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := fmt.Sprintf("n-%d", rapid.IntRange(0, 25).Draw(t, "node"))
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				harness.Add(schedtest.Node(name))
			case 1:
				harness.Cache.RemoveNode(name)
			case 2:
				harness.Add(schedtest.Node(name, schedtest.Cordoned()))
			case 3, 4:
				if len(there) > 0 {
					harness.Cache.RemovePod(there[0].UID)
					there = there[1:]
				}
			}
			pod := schedtest.Pod(fmt.Sprintf("p-%d", step), rapid.SampledFrom(shapes).Draw(t, "shape"))
			info := state.NewPodInfo(pod)
			attempt := kept.Decide(info, harness.Cache.Refresh(), nil)
			b := engine().Decide(info, harness.Cache.Refresh(), nil)
			if diff := cmp.Diff(verdict(b), verdict(attempt)); diff != "" {
				t.Fatalf("step %d: verdicts (-of all +of those that changed):\n%s", step, diff)
			}
			if diff := cmp.Diff(ranked(b), ranked(attempt)); diff != "" {
				t.Fatalf("step %d: scores (-of all +of those that changed):\n%s", step, diff)
			}
			if diff := cmp.Diff(largest(attempt.Totals), attempt.Best); diff != "" {
				t.Fatalf("step %d: the best (-by their totals +as the attempt has them):\n%s", step, diff)
			}
			if attempt.Chosen == nil {
				continue
			}
			if attempt.Feasible[attempt.ChosenAt] != attempt.Chosen || len(attempt.Best) > 0 && !slices.Contains(
				attempt.Best, int32(attempt.ChosenAt)) {
				t.Fatalf("step %d: chose %s, at %d of the best %v", step, attempt.Chosen.Name, attempt.ChosenAt,
					attempt.Best)
			}
			if err := harness.Cache.Assume(info, attempt.Chosen.Name); err != nil {
				t.Fatal(err)
			}
			there = append(there, pod)
		}
	})
}

// ranked are the scores of an attempt by node and plugin: raw, normalized, and the totals.
func ranked(a *framework.Attempt) map[string]map[string][2]int64 {
	out := map[string]map[string][2]int64{}
	if a.Totals == nil || a.Chosen == nil || len(a.Totals) != len(a.Feasible) {
		return out
	}
	for i, n := range a.Feasible {
		of := map[string][2]int64{"total": {a.Totals[i]}}
		for p, w := range a.ScoredBy {
			of[w.Name] = [2]int64{a.Raw[p][i], a.Scores[p][i]}
		}
		out[n.Name] = of
	}
	return out
}
