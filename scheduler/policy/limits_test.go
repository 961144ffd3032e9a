// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// TestReads: the fields that an expression reads decide which of its values are cached, and which events wake a pod.
func TestReads(t *testing.T) {
	for _, tt := range []struct {
		expression, node, key string
		stable                bool
	}{
		{"node.labels['disk'] == 'ssd' || pod.priority < 1000", "NodeLabelChange", "500|", true},
		{
			"node.metadata.labels.disk == pod.labels['app'] && pod.namespace == 'shop'", "NodeLabelChange",
			"4:shop3:app3:web", true,
		},
		{"pod.metadata.labels['none'] == node.name", "", "-", true},
		{"pod.labels.all(k, k in node.labels)", "NodeLabelChange", "3:app3:web", true},
		{"node.taints.exists(t, t.key == 'a') || node.spec.unschedulable", "NodeTaintChange", "", true},
		{"node.labels[?'a'].orValue('') == node.labels[pod.namespace]", "NodeLabelChange", "4:shop", true},
		{"node.labels[pod.name] == ''", "NodeLabelChange", "?", true},
		{"has(pod.spec.affinity) || node.name == ''", "", "?", true},
		{"node.pods < 3", "NodeAllocatableChange AssignedPodAdd AssignedPodScaleDown AssignedPodDelete", "", false},
		{"node.allocatable['cpu'] == quantity('1')", "NodeAllocatableChange", "", false},
		{"node.annotations['a'] == ''", "NodeChange", "", false},
		{
			"['a'].exists(node, node == 'a') || {'a': node.name}['a'] == 'b'",
			"NodeAllocatableChange NodeLabelChange NodeTaintChange NodeDeclaredFeatureChange AssignedPodAdd " +
				"AssignedPodScaleDown AssignedPodDelete NodeChange", "", false,
		},
	} {
		filter := made(t, &Spec{Filters: []Filter{{Expression: tt.expression}}}).filters[0]
		var kinds []string
		for k := range 32 {
			if k := filter.reads.node & (1 << k); k != 0 {
				kinds = append(kinds, k.String())
			}
		}
		got := map[string]bool{}
		for _, k := range kinds {
			got[k] = true
		}
		for k := range strings.FieldsSeq(tt.node) {
			if !got[k] {
				t.Errorf("%s: %v, want %s too", tt.expression, kinds, k)
			}
		}
		if len(got) != len(strings.Fields(tt.node)) {
			t.Errorf("%s: %v, want %s", tt.expression, kinds, tt.node)
		}
		key, ok := filter.reads.cacheKey(aPod("pod", "1", "1Gi"))
		if !ok {
			key = "?"
		}
		if key != tt.key || filter.reads.stable() != tt.stable {
			t.Errorf("%s: key %q, stable %v", tt.expression, key, filter.reads.stable())
		}
	}
}

// TestRemembered: a node is asked once for all pods that are alike to the expression, until its labels change.
func TestRemembered(t *testing.T) {
	policy := made(t,
		&Spec{Filters: []Filter{{Expression: "node.labels['disk'] == 'ssd' && pod.labels['app'] == 'web'"}}})
	ask := func(pod *state.PodInfo, n *state.NodeInfo) (fits, found bool) {
		j, _ := judge(t, pod, policy)
		left := j.budget.left.Load()
		st := j.Filter(n)
		return st == nil, j.budget.left.Load() != left
	}
	info := aNode()
	for i, want := range []bool{true, false, false} {
		fits, found := ask(aPod(fmt.Sprint("pod", i), "1", "1Gi"), info)
		if !fits || found != want {
			t.Errorf("pod %d: fits %v, evaluated %v, want %v", i, fits, found, want)
		}
	}
	other := aPod("pod", "1", "1Gi")
	other.Pod.Labels = map[string]string{"app": "db"}
	if fits, found := ask(other, info); fits || !found {
		t.Errorf("another pod: fits %v, evaluated %v", fits, found)
	}
	changed := aNode()
	changed.Node.Labels["disk"] = "hdd"
	if fits, found := ask(aPod("pod", "1", "1Gi"), changed); fits || !found {
		t.Errorf("another node: fits %v, evaluated %v", fits, found)
	}
	for range 1000 { // what is remembered is bounded
		ask(aPod("pod", "1", "1Gi"), aNode())
	}
	if size := policy.filters[0].cacheFor(other, 0).size.Load(); size > spareValues+1 {
		t.Errorf("%d values are remembered", size)
	}
	for i := range 1000 {
		pod := aPod("pod", "1", "1Gi")
		pod.Pod.Labels = map[string]string{"app": fmt.Sprint(i)}
		ask(pod, info)
	}
	if n := len(policy.filters[0].caches); n > maxCaches {
		t.Errorf("%d kinds of pods are remembered", n)
	}
}

// crowded has so many images that an expression costs more than was to be expected.
func crowded(images int) *state.NodeInfo {
	node := aNode().Node.DeepCopy()
	for i := range images {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: int64(i)})
	}
	return state.NewNodeInfo(node)
}

// TestCostLimits: an evaluation that costs too much refuses its node; once an attempt has cost too much the other nodes
// are refused without an evaluation, and the next attempt starts over.
func TestCostLimits(t *testing.T) {
	p := made(t,
		&Spec{Filters: []Filter{
			{Expression: "node.status.images.all(a, node.status.images.all(b, a.sizeBytes + b.sizeBytes >= 0))"},
		}})
	reported := make(chan string, 9)
	p.OnError = func(m string) { reported <- m }
	costly := crowded(5000)
	cheap := crowded(1)
	const spent = "node(s) refused by policy p: the policies cost more than the 500000 that they may in one attempt"
	for range 2 { // the second attempt has its own budget
		evaluation, _ := judge(t, aPod("pod", "1", "1Gi"), p)
		if st := evaluation.Filter(cheap); st != nil {
			t.Fatal(st)
		}
		asked := 0
		for ; asked < 1000; asked++ {
			st := evaluation.Filter(costly)
			if st == nil {
				t.Fatal("let in")
			}
			if st.Error() == spent {
				break
			}
			if want := "node(s) refused by policy p: filters[0] cannot be evaluated: costs more than the 20000 that " +
				"it may"; st.Error() != want {
				t.Fatalf("got %s, want %s", st.Error(), want)
			}
		}
		if asked != attemptLimit/evaluationLimit-1 && asked != attemptLimit/evaluationLimit {
			t.Errorf("%d evaluations in one attempt", asked)
		}
		if st := evaluation.Filter(cheap); st == nil || st.Error() != spent {
			t.Errorf("after that: %v", st)
		}
	}
	if m := <-reported; m != "spec.filters[0]: costs more than the 20000 that it may (pod shop/pod, node n1)" ||
		len(reported) > 0 {
		t.Errorf("reported %q, and %d more", m, len(reported))
	}
}

// TestDearQuantity: a label that quantity() would take seconds for is an error.
func TestDearQuantity(t *testing.T) {
	p := made(t, &Spec{Filters: []Filter{{Expression: "quantity(pod.labels['size']).isGreaterThan(quantity('1500m'))"}}})
	pod := aPod("pod", "1", "1Gi")
	pod.Pod.Labels = map[string]string{"size": "1e2880888"}
	evaluation, _ := judge(t, pod, p)
	if st := evaluation.Filter(crowded(1)); st == nil || !strings.Contains(st.Error(), "an exponent over 100") {
		t.Errorf("got %v", st)
	}
}

// TestAllAtOnce: judging and scoring all nodes at once gives what one after the other gives, before and after changes
// of nodes.
func TestAllAtOnce(t *testing.T) {
	policy := made(t, &Spec{
		Filters: []Filter{
			{Expression: "node.labels['disk'] == 'ssd'"},
			{
				Expression:        "node.pods < 2",
				Message:           "two are enough",
				MessageExpression: "'no room for ' + pod.labels.app",
			},
		},
		Scores: []Score{
			{Expression: "10 * node.pods"},
			{Expression: "node.name.endsWith('3')", Weight: new(int32(2))},
		},
	})
	cache := state.NewCache()
	node := func(name, disk string) {
		n := aNode().Node.DeepCopy()
		n.Name = name
		n.Labels = map[string]string{"disk": disk}
		cache.SetNode(n)
	}
	disks := []string{"ssd", "hdd", "ssd", "ssd", "hdd", "ssd"}
	for i, disk := range disks {
		node(fmt.Sprint("n", i), disk)
	}
	check := func(what string) {
		t.Helper()
		snapshot := cache.Refresh()
		for range 2 {
			evaluation, st := NewEvaluation([]*Policy{policy}, "default-scheduler", aPod("pod", "1", "1Gi"), snapshot)
			if st != nil {
				t.Fatal(st)
			}
			all := evaluation.NodeFilter()
			if all.FilterAll == nil {
				t.Fatal("nodes are judged one by one")
			}
			before := framework.NewStatus("Other", framework.Unschedulable, "another reason")
			out := make([]*framework.Status, len(snapshot.Nodes))
			out[0] = before
			all.FilterAll(out)
			scorer := evaluation.NodeScorer()
			if scorer.ScoreAll == nil {
				t.Fatal("nodes are scored one by one")
			}
			places := []int32{5, 1, 3}
			scores := make([]int64, 3)
			scorer.ScoreAll(places, scores)
			for place, n := range snapshot.Nodes {
				one := evaluation.Filter(n)
				if place == 0 {
					one = before
				}
				if got, want := fmt.Sprint(out[place]), fmt.Sprint(one); got != want {
					t.Errorf("%s, %s: %s, one by one %s", what, n.Name, got, want)
				}
			}
			for i, place := range places {
				alone := evaluation.NodeScorer()
				if got, want := scores[i], alone.Score(snapshot.Nodes[place]); got != want {
					t.Errorf("%s, %s: %d points, one by one %d", what, snapshot.Nodes[place].Name, got, want)
				}
				if got, want := given(t, scorer, i), given(t, alone, 0); got != want {
					t.Errorf("%s, %s: the rules gave %s, one by one %s", what, snapshot.Nodes[place].Name, got, want)
				}
			}
		}
	}
	check("at first")
	for i := range 2 {
		pod := aPod(fmt.Sprint("there", i), "1", "1Gi")
		pod.Pod.UID = types.UID(pod.Pod.Name)
		pod.Pod.Spec.NodeName = "n3"
		cache.SetPod(pod.Pod)
		check(fmt.Sprint(i+1, " pods on n3"))
	}
	node("n2", "hdd")
	check("another label")
	node("n6", "ssd")
	check("another node")
	cache.RemoveNode("n1")
	check("a node less")
	byName := made(t, &Spec{Filters: []Filter{{Expression: "node.name != pod.name"}}})
	j, _ := judge(t, aPod("pod", "1", "1Gi"), byName)
	if j.NodeFilter().FilterAll != nil {
		t.Error("a rule that reads the pod's name is asked about all nodes")
	}
}

// TestManyReasons: however many things go wrong, few texts are reported.
func TestManyReasons(t *testing.T) {
	p := made(t, &Spec{Filters: []Filter{{Expression: "node.labels[node.name] == ''"}}})
	j, _ := judge(t, aPod("pod", "1", "1Gi"), p)
	reasons := map[string]bool{}
	for i := range 100 {
		n := aNode()
		n.Name = fmt.Sprint("node-", i)
		reasons[j.Filter(n).Error()] = true
	}
	if len(reasons) != maxErrs+1 {
		t.Errorf("%d reasons", len(reasons))
	}
}

// FuzzCompile: whatever is written, compiling it ends with a policy or an error that says where, and a policy judges
// without panic.
func FuzzCompile(f *testing.F) {
	for _, e := range []string{
		"node.labels['disk'] == 'ssd' || pod.priority < 1000", "pod.spec.containers.all(c, c.image.matches('^a'))",
		"node.free['cpu'].isGreaterThan(quantity('1'))",
		"dyn(node) == dyn(pod)", "has(pod.spec.affinity)", "[1, 2].map(x, x * node.pods).exists(y, y > 3)", "node.",
		"'a", "\x00", "core.v1.Taint{key: 'a'} in node.taints",
		"node.labels[?'a'].optMap(v, v == 'b').orValue(true)", "type(node) == type(pod)",
		"string(node.pods) + pod.name", "duration('1h') < duration('2h')",
	} {
		f.Add(e)
	}
	node := aNode()
	pod := aPod("pod", "1", "1Gi")
	f.Fuzz(func(t *testing.T, e string) {
		for _, s := range []Spec{
			{Filters: []Filter{{Expression: e}}},
			{Scores: []Score{{Expression: e}}},
			{Match: e, Filters: []Filter{{Expression: "false", MessageExpression: e}}},
		} {
			p, errs := Compile("p", &s, field.NewPath("spec"))
			if (p == nil) != (len(errs) > 0) {
				t.Fatalf("%q: policy %v, errors %v", e, p != nil, errs)
			}
			if p == nil {
				continue
			}
			j, st := judge(t, pod, p)
			if st != nil {
				continue
			}
			if st := j.Filter(node); st != nil && (len(st.Reasons) != 1 || strings.Contains(st.Reasons[0], "\n")) {
				t.Errorf("%q: %q", e, st.Reasons)
			}
			j.Explain(pod, node, nil)
			if scorer := j.NodeScorer(); scorer.Score != nil {
				if n := scorer.Score(node); n < 0 || n > 100 {
					t.Errorf("%q: %d points", e, n)
				}
			}
		}
	})
}
