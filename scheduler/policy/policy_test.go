// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

func quantities(kv ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i+1 < len(kv); i += 2 {
		out[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return out
}

// aNode is an SSD node of 4 CPUs and 8Gi with one pod of 1 CPU and 2Gi.
func aNode() *state.NodeInfo {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "n1",
			Labels:      map[string]string{"disk": "ssd"},
			Annotations: map[string]string{"rack": "r7"},
		},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Allocatable: quantities("cpu", "4", "memory", "8Gi", "pods", "110", "example.com/gpu", "2"),
			Conditions: []corev1.NodeCondition{
				{
					Type:               corev1.NodeReady,
					Status:             corev1.ConditionTrue,
					LastTransitionTime: metav1.Unix(1_800_000_000, 0),
				},
			},
			NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.12.3"},
			Images:   []corev1.ContainerImage{{Names: []string{"a:1", "b:2"}, SizeBytes: 5}},
		},
	}
	return state.NewNodeInfo(node, aPod("other", "1", "2Gi"))
}

func aPod(name, cpu, memory string) *state.PodInfo {
	priority := int32(500)
	return state.NewPodInfo(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			Priority:      &priority,
			SchedulerName: "default-scheduler",
			Containers: []corev1.Container{{
				Name:      "c",
				Image:     "registry.example/web:1",
				Resources: corev1.ResourceRequirements{Requests: quantities("cpu", cpu, "memory", memory)},
				LivenessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
				},
			}},
		},
	})
}

func made(t testing.TB, s *Spec) *Policy {
	t.Helper()
	p, errs := Compile("p", s, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return p
}

func judge(t testing.TB, pod *state.PodInfo, policies ...*Policy) (*Evaluation, *framework.Status) {
	t.Helper()
	s := &state.Snapshot{Namespaces: map[string]labels.Set{"shop": {"team": "red"}}}
	return NewEvaluation(policies, "default-scheduler", pod, s)
}

// TestFilters: an expression lets the pod onto the node (empty), or refuses it with these words.
func TestFilters(t *testing.T) {
	const refused = "node(s) refused by policy p: "
	for _, tt := range []struct{ expression, want string }{
		{"node.labels['disk'] == 'ssd'", ""},
		{"node.labels.disk == 'ssd'", ""},
		{"node.labels['disk'] == 'hdd'", refused + "does not satisfy node.labels['disk'] == 'hdd'"},
		{"node.labels['disk'] == 'hdd' || pod.priority < 1000", ""},
		// what is missing does not matter where the rest decides
		{"node.labels['zone'] == 'a' || pod.priority < 1000", ""},
		{"node.labels['zone'] == 'a'", refused + "filters[0] cannot be evaluated: no such key: zone"},
		{
			"'zone' in node.labels && node.labels['zone'] == 'a'",
			refused + "does not satisfy 'zone' in node.labels && node.labels['zone'] == 'a'",
		},
		{"node.labels[?'zone'].orValue('none') == 'none'", ""},
		{"node.name == 'n1' && node.metadata.name == node.name", ""},
		{"node.annotations['rack'].startsWith('r')", ""},
		{"node.taints.exists(t, t.key == 'gpu' && t.effect == 'NoSchedule')", ""},
		{"node.spec.taints.size() == 1 && !node.unschedulable", ""},
		{"node.free['cpu'].compareTo(quantity('3')) == 0 && node.requested['memory'] == quantity('2Gi')", ""},
		{"node.allocatable['memory'].isGreaterThan(node.free['memory'])", ""},
		{"node.free['example.com/gpu'].asInteger() == 2 && node.free['pods'].asInteger() == 109", ""},
		{
			"node.free['example.com/fpga'].asInteger() > 0",
			refused + "filters[0] cannot be evaluated: no such key: example.com/fpga",
		},
		{"'example.com/fpga' in node.free", refused + "does not satisfy 'example.com/fpga' in node.free"},
		{"node.free.all(name, node.free[name].asApproximateFloat() >= 0.0) && size(node.free) == 5", ""},
		{"node.status.allocatable['cpu'].isGreaterThan(pod.requests['cpu'])", ""},
		{"node.pods < 50", ""},
		{"node.pods > 50", refused + "does not satisfy node.pods > 50"},
		{
			"node.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True' && c.lastTransitionTime < " +
				"timestamp('2030-01-01T00:00:00Z'))", "",
		},
		{"node.status.nodeInfo.kernelVersion.matches('^6[.]')", ""},
		{"node.status.images.exists(i, 'b:2' in i.names)", ""},
		{"pod.namespace == 'shop' && pod.labels['app'] == 'web' && pod.metadata.labels == pod.labels", ""},
		{"pod.spec.containers.all(c, c.image.startsWith('registry.example/'))", ""},
		{"pod.spec.containers[0].livenessProbe.httpGet.port == 80", ""},
		{"pod.spec.containers[0].resources.requests['cpu'].asApproximateFloat() == 1.0", ""},
		{"has(pod.spec.affinity)", refused + "does not satisfy has(pod.spec.affinity)"},
		// empty where unset
		{
			"!has(pod.spec.affinity) && " +
				"size(pod.spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution) == 0", "",
		},
		{"pod.spec.runtimeClassName == '' && !pod.spec.hostNetwork", ""},
		{"!has(pod.metadata.deletionTimestamp)", ""},
		{"has(dyn(pod).spec) && dyn(node).name == 'n1'", ""},
		{"dyn(pod).nothing == 1", refused + "filters[0] cannot be evaluated: no such key: nothing"},
		{"dyn(pod.spec) == pod.spec && pod == pod", ""},
		{"pod.spec.containers[7].name == 'x'", refused + "filters[0] cannot be evaluated: index out of bounds: 7"},
		{"1 / (node.pods - 1) == 0", refused + "filters[0] cannot be evaluated: division by zero"},
		{
			"int(node.labels['disk']) > 0",
			refused + `filters[0] cannot be evaluated: type conversion error from 'string' to 'int'`,
		},
	} {
		p := made(t, &Spec{Filters: []Filter{{Expression: tt.expression}}})
		for range 2 { // what is remembered says the same
			j, st := judge(t, aPod("pod", "1", "1Gi"), p)
			if st != nil {
				t.Fatalf("%s: %v", tt.expression, st)
			}
			got := ""
			if st := j.Filter(aNode()); st != nil {
				got = st.Error()
			}
			if got != tt.want {
				t.Errorf("%s:\n got %s\nwant %s", tt.expression, got, tt.want)
			}
		}
	}
}

// TestWrong: an expression that does not compile is reported with field, line and column.
func TestWrong(t *testing.T) {
	filter := func(e string) Spec { return Spec{Filters: []Filter{{Expression: e}}} }
	for _, tt := range []struct {
		spec Spec
		want string
	}{
		{Spec{}, "spec.filters: Required value: a policy has filters or scores"},
		{filter(""), "spec.filters[0].expression: Required value"},
		{
			filter("node.lables['x'] == 'y'"),
			`spec.filters[0].expression: Invalid value: "node.lables['x'] == 'y'": 1:5: undefined field 'lables'`,
		},
		{filter("true &&\n  nod.name == ''"), "2:3: undeclared reference to 'nod' (in container '')"},
		{filter("pod.spec.containers.all(c, c.img == '')"), "1:29: undefined field 'img'"},
		{filter("node.name == 1"), "1:11: found no matching overload for '_==_' applied to '(string, int)'"},
		{filter("node.name =="), "1:13: Syntax error: mismatched input '<EOF>'"},
		{filter("node.name"), "1:1: must be a bool, but is string"},
		{filter("core.v1.Taint{key: 'a'}.key == 'a'"), ""}, // it has the right type; making one is an error of its own
		{filter(strings.Repeat("(", 400) + "true" + strings.Repeat(")", 400)), "expression recursion limit"},
		{filter("true" + strings.Repeat(" && true", 1000)), "is longer than 4096 bytes"},
		{
			filter("node.status.images.all(a, node.status.images.all(b, node.status.images.all(c, a == b && b == " +
				"c)))"), "1:1: may cost too much: ",
		},
		{
			Spec{Match: "node.name == 'a'", Filters: []Filter{{Expression: "true"}}},
			"spec.match: Invalid value: \"node.name == 'a'\": 1:1: undeclared reference to 'node'",
		},
		{
			Spec{Filters: []Filter{{Expression: "true", MessageExpression: "1"}}},
			"spec.filters[0].messageExpression: Invalid value: \"1\": 1:1: must be a string, but is int",
		},
		{
			Spec{Filters: []Filter{{Expression: "true", Message: strings.Repeat("a", 300)}}},
			"spec.filters[0].message: Too long",
		},
		{Spec{Filters: make([]Filter, 17)}, "spec.filters: Too many: 17: must have at most 16 items"},
		{
			Spec{Scores: []Score{{Expression: "'a'"}}},
			"spec.scores[0].expression: Invalid value: \"'a'\": 1:1: must be a number or a bool, but is string",
		},
		{
			Spec{Scores: []Score{{Expression: "1", Weight: new(int32(101))}}},
			"spec.scores[0].weight: Invalid value: 101: must be from 1 to 100",
		},
		{
			Spec{FailurePolicy: "Perhaps", Filters: []Filter{{Expression: "true"}}},
			`spec.failurePolicy: Unsupported value: "Perhaps"`,
		},
		{
			Spec{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}},
				Filters: []Filter{
					{Expression: "true"},
				},
			}, "spec.podSelector.matchLabels: Invalid value: \"a b\"",
		},
	} {
		_, errs := Compile("p", &tt.spec, field.NewPath("spec"))
		if got := fmt.Sprint(errs.ToAggregate()); !strings.Contains(got, tt.want) || tt.want == "" && len(errs) > 0 {
			t.Errorf("%+v:\n got %s\nwant %s", tt.spec, got, tt.want)
		}
	}
}

// TestAbout: which pods a policy is about.
func TestAbout(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec Spec
		want bool
	}{
		{"all", Spec{}, true},
		{"scheduler", Spec{SchedulerNames: []string{"a", "default-scheduler"}}, true},
		{"other scheduler", Spec{SchedulerNames: []string{"a"}}, false},
		{"pods", Spec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}, true},
		{"other pods", Spec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}, false},
		{
			"namespaces",
			Spec{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}},
			true,
		},
		{
			"other namespaces",
			Spec{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}},
			false,
		},
		{"match", Spec{Match: "pod.priority < 1000"}, true},
		{"no match", Spec{Match: "pod.priority > 1000"}, false},
		{"one of two", Spec{Match: "pod.priority < 1000", SchedulerNames: []string{"a"}}, false},
		{"match that fails and is ignored", Spec{Match: "pod.labels['x'] == ''", FailurePolicy: Ignore}, false},
	} {
		tt.spec.Filters = []Filter{{Expression: "false", Message: "never"}}
		j, st := judge(t, aPod("pod", "1", "1Gi"), made(t, &tt.spec))
		if st != nil {
			t.Fatalf("%s: %v", tt.name, st)
		}
		if got := j.Filter(aNode()) != nil; got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	p := made(t, &Spec{Match: "pod.labels['x'] == ''", Filters: []Filter{{Expression: "true"}}})
	var reported string
	p.OnError = func(m string) { reported += m }
	for range 2 {
		if _, st := judge(t, aPod("pod", "1", "1Gi"), p); st == nil ||
			st.Error() != "policy p: match cannot be evaluated: no such key: x" {
			t.Errorf("match that fails: %v", st)
		}
	}
	if want := "spec.match: no such key: x (pod shop/pod)"; reported != want {
		t.Errorf("reported %q, want %q once", reported, want)
	}
}

// given writes down what each rule gave the node that was scored as the at-th.
func given(t *testing.T, scorer framework.NodeScorer, at int) string {
	t.Helper()
	r := scorer.Rules
	if r == nil {
		t.Fatal("the scorer does not keep what its rules gave")
	}
	var out []string
	for i, rule := range r.Rules() {
		raw, score, ok := r.RuleResult(at, i)
		out = append(out, fmt.Sprintf("%s %s x%d: %g > %d %v", rule.Policy, rule.Field, rule.Weight, raw, score, ok))
	}
	return strings.Join(out, "; ")
}

// TestScores: results are taken as 0 to 100, times their weights, and summed. What each rule gave is kept.
func TestScores(t *testing.T) {
	for _, tt := range []struct {
		scores []Score
		want   int64
		given  string
	}{
		{[]Score{{Expression: "30"}}, 30, "p scores[0] x1: 30 > 30 true"},
		{[]Score{{Expression: "30", Weight: new(int32(3))}}, 90, "p scores[0] x3: 30 > 30 true"},
		{
			[]Score{{Expression: "30"}, {Expression: "node.labels['disk'] == 'ssd'", Weight: new(int32(2))}},
			230,
			"p scores[0] x1: 30 > 30 true; p scores[1] x2: 100 > 100 true",
		},
		{[]Score{{Expression: "node.labels['disk'] == 'hdd'"}}, 0, "p scores[0] x1: 0 > 0 true"},
		{[]Score{{Expression: "1000"}}, 100, "p scores[0] x1: 1000 > 100 true"},
		{[]Score{{Expression: "-5"}}, 0, "p scores[0] x1: -5 > 0 true"},
		{[]Score{{Expression: "7u"}}, 7, "p scores[0] x1: 7 > 7 true"},
		{
			[]Score{
				{
					Expression: "node.free['memory'].asApproximateFloat() / " +
						"node.allocatable['memory'].asApproximateFloat() * 100.0",
				},
			},
			75,
			"p scores[0] x1: 75 > 75 true",
		},
		{[]Score{{Expression: "12.5 + 0.25"}}, 13, "p scores[0] x1: 12.75 > 13 true"},
		{[]Score{{Expression: "0.0 / 0.0"}}, 0, "p scores[0] x1: 0 > 0 false"},
		{[]Score{{Expression: "1.0 / 0.0"}}, 100, "p scores[0] x1: 1.7976931348623157e+308 > 100 true"},
		{
			[]Score{{Expression: "int(node.labels['weight'])"}, {Expression: "5"}},
			5,
			"p scores[0] x1: 0 > 0 false; p scores[1] x1: 5 > 5 true",
		},
	} {
		j, _ := judge(t, aPod("pod", "1", "1Gi"), made(t, &Spec{Scores: tt.scores}))
		scorer := j.NodeScorer()
		for i := range 2 {
			if got := scorer.Score(aNode()); got != tt.want {
				t.Errorf("%+v: %d, want %d", tt.scores, got, tt.want)
			}
			if got := given(t, scorer, i); got != tt.given {
				t.Errorf("%+v: rules gave %s, want %s", tt.scores, got, tt.given)
			}
		}
		if j.HasFilters() {
			t.Errorf("%+v: there are filters", tt.scores)
		}
	}
}

// TestMessages: message is for all; an expression over the pod alone goes before it; one that reads the node is
// reported for that node.
func TestMessages(t *testing.T) {
	for _, tt := range []struct {
		filter        Filter
		reason, short string
	}{
		{Filter{Message: "needs an SSD"}, "needs an SSD", "false && node.name == ''"},
		{Filter{Message: "a\n  b"}, "a b", "false && node.name == ''"},
		{Filter{Message: "m", MessageExpression: "pod.name + ' stays out'"}, "pod stays out", "pod stays out"},
		{Filter{Message: "m", MessageExpression: "node.name + ' has ' + node.labels['disk']"}, "m", "n1 has ssd"},
		{Filter{Message: "m", MessageExpression: "node.labels['none']"}, "m", "m"},
	} {
		tt.filter.Expression = "false && node.name == ''"
		j, _ := judge(t, aPod("pod", "1", "1Gi"), made(t, &Spec{Filters: []Filter{{Expression: "true"}, tt.filter}}))
		st := j.Filter(aNode())
		short, _, _ := j.Explain(j.pod, aNode(), st)
		if want := "node(s) refused by policy p: " + tt.reason; st.Error() != want {
			t.Errorf("%+v: %s, want %s", tt.filter, st.Error(), want)
		}
		if want := "policy p, filters[1]: " + tt.short; short != want {
			t.Errorf("%+v: %s, want %s", tt.filter, short, want)
		}
	}
}

// TestCode: taking pods away is tried only where a filter looks at what they take.
func TestCode(t *testing.T) {
	for e, want := range map[string]framework.Code{
		"node.labels['disk'] == 'hdd'":                framework.Unresolvable,
		"node.pods < 1":                               framework.Unschedulable,
		"node.free['cpu'].asApproximateFloat() < 0.0": framework.Unschedulable,
	} {
		j, _ := judge(t, aPod("pod", "1", "1Gi"), made(t, &Spec{Filters: []Filter{{Expression: e}}}))
		if st := j.Filter(aNode()); st == nil || st.Code != want {
			t.Errorf("%s: %v, want code %d", e, st, want)
		}
	}
}
