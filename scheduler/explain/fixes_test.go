// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/scheduler/explain"
	"keelson/scheduler/schedtest"
)

// world is a cluster that a person can change as a fix says.
type world struct {
	nodes map[string]*corev1.Node
	pods  map[string]*corev1.Pod // by namespace/name
	pod   *corev1.Pod            // the one that waits
}

// try schedules the pod. It returns the nodes that it fits on, and what would make it fit.
func (w *world) try() (fit, fixes []string) {
	h := schedtest.New(1, 1)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		h.Add(w.nodes[name].DeepCopy())
	}
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		h.Add(w.pods[name].DeepCopy())
	}
	a := h.Try(w.pod.DeepCopy())
	for _, n := range a.Feasible {
		fit = append(fit, n.Name)
	}
	return fit, explain.Decision(a, 1, 0).Fixes
}

var (
	requestWords   = regexp.MustCompile(`^(\S+) request <= (\S+)$`)
	noneWords      = regexp.MustCompile(`^(\S+) is not requested$`)
	skewWords      = regexp.MustCompile(`^maxSkew of (\S+) >= (\d+)$`)
	fitsIfWords    = regexp.MustCompile(`^fits on (\S+) if (.+)$`)
	goneWords      = regexp.MustCompile(`^fits on (\S+) when pod (\S+) is gone$`)
	companionWords = regexp.MustCompile(`^fits on (\S+) when a pod with (.+) runs there$`)
	tolerateWords  = regexp.MustCompile(`^add toleration (.+)$`)
	uncordonWords  = regexp.MustCompile(`^uncordon (\S+)$`)
	labelWords     = regexp.MustCompile(`^label (\S+) with (.+?)(?: and remove label (.+) from (\S+))?$`)
	unlabelWords   = regexp.MustCompile(`^remove label (.+) from (\S+)$`)
	addNodeWords   = regexp.MustCompile(`^add a node named (\S+)$`)
)

// do carries out one step of a fix.
func (w *world) do(step string) error {
	switch {
	case goneWords.MatchString(step):
		delete(w.pods, goneWords.FindStringSubmatch(step)[2])
	case companionWords.MatchString(step):
		m := companionWords.FindStringSubmatch(step)
		p := schedtest.Pod("companion", schedtest.On(m[1]), schedtest.Requests("0", "0"))
		p.Labels = pairs(m[2])
		w.pods["default/companion"] = p
	case tolerateWords.MatchString(step):
		for t := range strings.SplitSeq(tolerateWords.FindStringSubmatch(step)[1], " and ") {
			pair, effect, _ := strings.Cut(t, ":")
			key, value, _ := strings.Cut(pair, "=")
			w.pod.Spec.Tolerations = append(w.pod.Spec.Tolerations, corev1.Toleration{
				Key:      key,
				Operator: corev1.TolerationOpEqual,
				Value:    value,
				Effect:   corev1.TaintEffect(effect),
			})
		}
	case uncordonWords.MatchString(step):
		n := w.nodes[uncordonWords.FindStringSubmatch(step)[1]]
		n.Spec.Unschedulable = false
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnschedulable
		})
	case unlabelWords.MatchString(step):
		m := unlabelWords.FindStringSubmatch(step)
		w.label(m[2], nil, m[1])
	case labelWords.MatchString(step):
		m := labelWords.FindStringSubmatch(step)
		w.label(m[1], pairs(m[2]), m[3])
	case fitsIfWords.MatchString(step):
		for c := range strings.SplitSeq(fitsIfWords.FindStringSubmatch(step)[2], " and ") {
			if err := w.change(c); err != nil {
				return err
			}
		}
	case addNodeWords.MatchString(step):
		name := addNodeWords.FindStringSubmatch(step)[1]
		n := schedtest.Node(name, schedtest.Allocatable("example.com/fpga", "1"),
			schedtest.Allocatable(corev1.ResourceCPU, "64"))
		maps.Copy(n.Labels, w.pod.Spec.NodeSelector)
		w.nodes[name] = n
	default:
		return fmt.Errorf("no step for %q", step)
	}
	return nil
}

func pairs(text string) map[string]string {
	out := map[string]string{}
	for p := range strings.SplitSeq(text, " and ") {
		key, value, _ := strings.Cut(p, "=")
		out[key] = value
	}
	return out
}

func (w *world) label(node string, set map[string]string, remove string) {
	maps.Copy(w.nodes[node].Labels, set)
	for key := range strings.SplitSeq(remove, " and ") {
		delete(w.nodes[node].Labels, key)
	}
}

// change changes what the pod asks for.
func (w *world) change(condition string) error {
	requests := w.pod.Spec.Containers[0].Resources.Requests
	switch {
	case requestWords.MatchString(condition):
		m := requestWords.FindStringSubmatch(condition)
		requests[corev1.ResourceName(m[1])] = resource.MustParse(m[2])
	case noneWords.MatchString(condition):
		delete(requests, corev1.ResourceName(noneWords.FindStringSubmatch(condition)[1]))
	case skewWords.MatchString(condition):
		m := skewWords.FindStringSubmatch(condition)
		skew, err := strconv.ParseInt(m[2], 10, 32)
		for i := range w.pod.Spec.TopologySpreadConstraints {
			if c := &w.pod.Spec.TopologySpreadConstraints[i]; c.TopologyKey == m[1] {
				c.MaxSkew = max(c.MaxSkew, int32(skew))
			}
		}
		return err
	default:
		return fmt.Errorf("no step for %q", condition)
	}
	return nil
}

// clone copies what do changes.
func (w *world) clone() *world {
	c := &world{nodes: map[string]*corev1.Node{}, pods: maps.Clone(w.pods), pod: w.pod.DeepCopy()}
	for name, n := range w.nodes {
		c.nodes[name] = n.DeepCopy()
	}
	return c
}

// drawWorld draws a cluster of a few nodes in which a pod with many wishes may fit nowhere.
func drawWorld(t *rapid.T) *world {
	w := &world{nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}}
	some := func(what string) bool { return rapid.IntRange(0, 3).Draw(t, what) == 0 }
	app := func(what string) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(t, what) }
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		node := schedtest.Node(fmt.Sprint("node-", i), schedtest.Zone(
			rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")), schedtest.Labels("size", fmt.Sprint(10*i)),
			schedtest.Allocatable(corev1.ResourceCPU, fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "cpu"))),
			schedtest.Allocatable(corev1.ResourcePods, "4"))
		if some("disk") {
			node.Labels["disk"] = rapid.SampledFrom([]string{"ssd", "hdd"}).Draw(t, "which disk")
		}
		if some("rack") {
			node.Labels["rack"] = "r"
		}
		if some("cordoned") {
			node.Spec.Unschedulable = true
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
				Key:    corev1.TaintNodeUnschedulable,
				Effect: corev1.TaintEffectNoSchedule,
			})
		}
		for _, key := range []string{"gpu", "team"} {
			if some(key) {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
					Key:    key,
					Value:  "yes",
					Effect: corev1.TaintEffectNoSchedule,
				})
			}
		}
		w.nodes[node.Name] = node
		for p := range rapid.IntRange(0, 4).Draw(t, "pods") {
			name := fmt.Sprintf("p-%d-%d", i, p)
			pod := schedtest.Pod(name, schedtest.On(node.Name), schedtest.Requests("500m", "64Mi"),
				schedtest.Labelled("app", app("app")))
			if some("port") {
				schedtest.HostPort("", corev1.ProtocolTCP, 80)(pod)
			}
			if some("repels") {
				pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: terms(app("repels"), corev1.LabelHostname),
				}}
			}
			w.pods["default/"+name] = pod
		}
	}
	w.pod = schedtest.Pod("waits", schedtest.Requests(fmt.Sprint(rapid.IntRange(1, 5).Draw(t, "asks")), "64Mi"),
		schedtest.Labelled("app", app("own app")))
	spec := &w.pod.Spec
	if some("fpga") {
		spec.Containers[0].Resources.Requests["example.com/fpga"] = resource.MustParse("1")
	}
	if some("selector") {
		spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if some("own port") {
		schedtest.HostPort("", corev1.ProtocolTCP, 80)(w.pod)
	}
	if some("affinity") {
		op := rapid.SampledFrom([]corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t,
			"operator")
		requirement := corev1.NodeSelectorRequirement{
			Key:      rapid.SampledFrom([]string{"disk", "rack"}).Draw(t, "key"),
			Operator: op,
		}
		if op == corev1.NodeSelectorOpIn || op == corev1.NodeSelectorOpNotIn {
			requirement.Values = []string{"hdd", "r"}
		}
		more := corev1.NodeSelectorRequirement{
			Key:      "size",
			Operator: rapid.SampledFrom([]corev1.NodeSelectorOperator{"Gt", "Lt"}).Draw(t, "compares"),
			Values:   []string{"10"},
		}
		spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}},
					{MatchExpressions: []corev1.NodeSelectorRequirement{more, requirement}},
				},
			}},
		}
	}
	if some("by name") {
		spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{
						MatchFields: []corev1.NodeSelectorRequirement{
							{
								Key:      metav1.ObjectNameField,
								Operator: corev1.NodeSelectorOpIn,
								Values: []string{
									"node-3",
								},
							},
						},
					},
				},
			}},
		}
	}
	drawPodRules(t, spec, app, some)
	return w
}

// drawPodRules draws what a pod wants of other pods.
func drawPodRules(t *rapid.T, spec *corev1.PodSpec, app func(string) string, some func(string) bool) {
	key := func() string {
		return rapid.SampledFrom([]string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}).Draw(t, "topology")
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if some("near") {
		spec.Affinity.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t,
				"near"), key()),
		}
	}
	if some("far") {
		spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms(app("far"), key()),
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "constraints") {
		honor := corev1.NodeInclusionPolicyHonor
		constraint := corev1.TopologySpreadConstraint{
			MaxSkew:           1,
			TopologyKey:       key(),
			WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app("spread")}},
		}
		if some("honors taints") {
			constraint.NodeTaintsPolicy = &honor
		}
		if some("domains") {
			constraint.MinDomains = new(int32(3))
		}
		spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, constraint)
	}
}

func terms(app, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{
		{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: key},
	}
}

var namedNode = regexp.MustCompile(`node-\d`)

// TestFixesHelp: a pod fits on a node after each step of a fix is done, on the node that the fix names.
func TestFixesHelp(t *testing.T) {
	done := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		world := drawWorld(t)
		fit, fixes := world.try()
		if len(fit) > 0 {
			return
		}
		for _, fix := range fixes {
			changed := world.clone()
			for step := range strings.SplitSeq(fix, "; then: ") {
				if err := changed.do(step); err != nil {
					t.Fatal(err)
				}
				done[strings.Fields(step)[0]]++
			}
			if addNodeWords.MatchString(fix) && (world.pod.Spec.Affinity.PodAffinity != nil ||
				len(world.pod.Spec.TopologySpreadConstraints) > 0) {
				continue // the new node has no such neighbors
			}
			got, still := changed.try()
			if name := namedNode.FindString(fix); len(got) == 0 || name != "" && !slices.Contains(got, name) {
				t.Fatalf("after %q the pod fits on %v, and its fixes are %q", fix, got, still)
			}
		}
	})
	for _, step := range []string{"fits", "add", "uncordon", "label"} {
		if done[step] == 0 {
			t.Errorf("no fix began with %q: %v", step, done)
		}
	}
}
