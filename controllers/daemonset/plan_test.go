// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newSet(f ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	one := intstr.FromInt32(1)
	none := intstr.FromInt32(0)
	l := map[string]string{"app": "agent"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "agent",
			Namespace:   "default",
			UID:         "agent",
			Generation:  2,
			Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "7"},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: l},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one, MaxSurge: &none},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}},
		},
	}
	for _, g := range f {
		g(set)
	}
	return set
}

func onDelete(s *appsv1.DaemonSet) {
	s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}

func rolling(unavailable, surge string) func(*appsv1.DaemonSet) {
	return func(s *appsv1.DaemonSet) {
		u := intstr.Parse(unavailable)
		g := intstr.Parse(surge)
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &u, MaxSurge: &g}
	}
}

func selecting(s *appsv1.DaemonSet) {
	s.Spec.Template.Spec.NodeSelector = map[string]string{"role": "x"}
}

// nodes are n1, n2 and so on, each as changed by the function of its place.
func nodes(n int, f ...func(*corev1.Node)) []*corev1.Node {
	var all []*corev1.Node
	for i := range n {
		x := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1)}}
		if i < len(f) && f[i] != nil {
			f[i](x)
		}
		all = append(all, x)
	}
	return all
}

func tainted(key string, e corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: e}) }
}

func labelled(n *corev1.Node) { n.Labels = map[string]string{"role": "x"} }

// on is a ready pod of the present template on a node.
func on(node, name string, f ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(newSet(), "new", node)
	pod.Name = name
	pod.UID = types.UID(name)
	pod.Spec.NodeName = node
	delete(pod.Labels, generationLabel)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{
				Type:               corev1.PodReady,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
			},
		},
	}
	for _, g := range f {
		g(pod)
	}
	return pod
}

func old(p *corev1.Pod)     { p.Labels[appsv1.ControllerRevisionHashLabelKey] = "old" }
func unready(p *corev1.Pod) { p.Status.Conditions = nil }
func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{Time: now} }
func waiting(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
}
func failed(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed} }
func ended(p *corev1.Pod)  { p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded} }
func younger(p *corev1.Pod) {
	p.CreationTimestamp = metav1.NewTime(now)
}

func snap(s *appsv1.DaemonSet, nodes []*corev1.Node, pods ...*corev1.Pod) snapshot {
	return snapshot{
		set:                   s,
		nodes:                 nodes,
		pods:                  pods,
		hash:                  "new",
		expectationsSatisfied: true,
		now:                   now,
		backoffLeft: func(node string) time.Duration {
			if node == "n9" {
				return time.Minute
			}
			return 0
		},
	}
}

func summary(p plan) string {
	var all []string
	for _, n := range p.create {
		all = append(all, "+"+n)
	}
	for _, v := range p.remove {
		all = append(all, "-"+v.pod.Name)
	}
	return strings.Join(all, " ")
}

func TestDecide(t *testing.T) {
	surge := newSet(rolling("0", "1"))
	tests := []struct {
		name  string
		set   *appsv1.DaemonSet
		nodes []*corev1.Node
		pods  []*corev1.Pod
		want  string
	}{
		{"a pod on every node", newSet(), nodes(2), []*corev1.Pod{on("n1", "a")}, "+n2"},
		{"one that waits for its node counts", newSet(), nodes(1), []*corev1.Pod{on("n1", "a", waiting)}, ""},
		{"one that terminates is waited for", newSet(), nodes(1), []*corev1.Pod{on("n1", "a", going)}, ""},
		{"the oldest of two stays", newSet(), nodes(1), []*corev1.Pod{on("n1", "a", younger), on("n1", "b")}, "-a"},
		{
			"one that is bound stays", newSet(), nodes(1), []*corev1.Pod{
				on("n1", "a", waiting), on("n1", "b", younger),
			}, "-a",
		},
		{"a failed pod goes", newSet(), nodes(1), []*corev1.Pod{on("n1", "a", failed)}, "-a"},
		{
			"not during its pause", newSet(),
			[]*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n9"}}},
			[]*corev1.Pod{on("n9", "a", failed)},
			"",
		},
		{"one that succeeded goes", newSet(), nodes(1), []*corev1.Pod{on("n1", "a", ended)}, "-a"},
		{
			"a failed one that is gone but for its finalizer does not count", newSet(), nodes(1), []*corev1.Pod{
				on("n1", "a", failed, going),
			}, "+n1",
		},
		{"node selector", newSet(selecting), nodes(2, labelled), []*corev1.Pod{on("n2", "b")}, "+n1 -b"},
		{
			"a NoSchedule taint keeps new pods away", newSet(), nodes(1, tainted("k", corev1.TaintEffectNoSchedule)),
			nil, "",
		},
		{
			"and those that are there not", newSet(), nodes(1, tainted("k", corev1.TaintEffectNoSchedule)),
			[]*corev1.Pod{on("n1", "a")},
			"",
		},
		{
			"NoExecute does", newSet(), nodes(1, tainted("k", corev1.TaintEffectNoExecute)), []*corev1.Pod{
				on("n1", "a"),
			}, "-a",
		},
		{
			"a cordoned node runs it", newSet(),
			nodes(1, tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), nil, "+n1",
		},
		{
			"a lost node too", newSet(), nodes(1, tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)),
			nil, "+n1",
		},
		{
			"only with the host's network before there is another", newSet(),
			nodes(1, tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), nil, "",
		},
		{
			"a pod that waits for a node that is gone", newSet(), nil, []*corev1.Pod{
				on("n1", "a", waiting), on("n2", "b"),
			}, "-a",
		},

		{
			"rollout: one node at a time", newSet(), nodes(2),
			[]*corev1.Pod{on("n1", "a", old), on("n2", "b", old)},
			"-a",
		},
		{
			"rollout: waits for the new pod", newSet(), nodes(2), []*corev1.Pod{
				on("n1", "a", unready), on("n2", "b", old),
			}, "",
		},
		{
			"rollout: waits for the old one to end", newSet(), nodes(2), []*corev1.Pod{
				on("n1", "a", old, going), on("n2", "b", old),
			}, "",
		},
		{
			"rollout: unavailable pods go at once", newSet(), nodes(3), []*corev1.Pod{
				on("n1", "a", old), on("n2", "b", old, unready), on("n3", "c", old, unready),
			}, "-b -c",
		},
		{
			"rollout: half of three nodes are two", newSet(rolling("50%", "0")), nodes(3), []*corev1.Pod{
				on("n1", "a", old), on("n2", "b", old), on("n3", "c", old),
			}, "-a -b",
		},
		{"rollout: not while pods are missing", newSet(), nodes(2), []*corev1.Pod{on("n1", "a", old)}, "+n2"},
		{"OnDelete", newSet(onDelete), nodes(1), []*corev1.Pod{on("n1", "a", old)}, ""},
		{
			"the template's generation counts as the hash does", newSet(), nodes(1), []*corev1.Pod{
				on("n1", "a", old, func(p *corev1.Pod) { p.Labels[generationLabel] = "7" }),
			}, "",
		},

		{
			"surge: a new pod next to the old", surge, nodes(2),
			[]*corev1.Pod{on("n1", "a", old), on("n2", "b", old)},
			"+n1",
		},
		{
			"surge: waits for it", surge, nodes(2), []*corev1.Pod{
				on("n1", "a", old), on("n1", "a2", unready), on("n2", "b", old),
			}, "",
		},
		{
			"surge: then the old goes", surge, nodes(2), []*corev1.Pod{
				on("n1", "a", old), on("n1", "a2"), on("n2", "b", old),
			}, "-a",
		},
		{
			"surge: an unavailable old one goes at once", surge, nodes(1), []*corev1.Pod{
				on("n1", "a", old, unready), on("n1", "a2", unready),
			}, "-a",
		},
		{
			"surge: next to it the new one does not count", surge, nodes(2), []*corev1.Pod{
				on("n1", "a", old, unready), on("n2", "b", old),
			}, "+n1 +n2",
		},
		{"surge: at once next to one that terminates", surge, nodes(1), []*corev1.Pod{on("n1", "a", going)}, "+n1"},
		{"surge: a failed pod first goes", surge, nodes(1), []*corev1.Pod{on("n1", "a", failed)}, "-a"},
	}
	for _, tt := range tests {
		if got := summary(decide(snap(tt.set, tt.nodes, tt.pods...))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestDecideBounds(t *testing.T) {
	if got := len(decide(snap(newSet(), nodes(1000))).create); got != burst {
		t.Errorf("1,000 nodes: got %d creations in a pass, want %d", got, burst)
	}
	s := snap(newSet(), nodes(1))
	s.expectationsSatisfied = false
	if got := summary(decide(s)); got != "" {
		t.Errorf("while the cache is stale: got %q, want nothing", got)
	}
}

func TestStatus(t *testing.T) {
	set := newSet(selecting, func(s *appsv1.DaemonSet) { s.Spec.MinReadySeconds = 30 })
	fresh := func(p *corev1.Pod) {
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
	}
	snapshot := snap(set, append(nodes(4, labelled, labelled, labelled, labelled), nodes(5)[4]),
		on("n1", "a"), on("n2", "b", old, fresh), on("n3", "c", unready), on("n5", "e"), on("lost", "f"))
	p := decide(snapshot)
	st := status(snapshot, p)
	got := fmt.Sprint(st.DesiredNumberScheduled, st.CurrentNumberScheduled, st.NumberMisscheduled, st.NumberReady,
		st.NumberAvailable, st.NumberUnavailable, st.UpdatedNumberScheduled, st.ObservedGeneration)
	if want := "4 3 1 2 1 3 2 2"; got != want {
		t.Errorf("desired, current, misscheduled, ready, available, unavailable, updated, generation: got %s, want %s",
			got, want)
	}
	if p.next != 20*time.Second {
		t.Errorf("next look: got %v, want 20s", p.next)
	}
	snapshot.expectationsSatisfied = false
	if st := status(snapshot, decide(snapshot)); st.ObservedGeneration != 0 {
		t.Errorf("a pass that did not act: got generation %d, want what it was", st.ObservedGeneration)
	}
}

func TestNewPod(t *testing.T) {
	set := newSet(selecting, func(s *appsv1.DaemonSet) {
		sec := int64(3)
		s.Spec.Template.Spec.HostNetwork = true
		s.Spec.Template.Spec.Tolerations = []corev1.Toleration{
			{Key: "mine", Operator: corev1.TolerationOpExists},
			{
				Key:               corev1.TaintNodeNotReady,
				Operator:          corev1.TolerationOpExists,
				Effect:            corev1.TaintEffectNoExecute,
				TolerationSeconds: &sec,
			},
		}
		s.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}},
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 2),
			},
		}}
	})
	pod := newPod(set, "h", "n1")
	if got := nodeOf(pod); got != "n1" || pod.Spec.NodeName != "" {
		t.Errorf("pinned to %q, bound to %q; want n1 and none yet", got, pod.Spec.NodeName)
	}
	if got, want := fmt.Sprint(pod.GenerateName, pod.Labels), "agent-map[app:agent controller-revision-hash:h "+
		"pod-template-generation:7]"; strings.ReplaceAll(got, "- map", "-map") != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var keys []string
	for _, x := range pod.Spec.Tolerations {
		keys = append(keys, strings.TrimPrefix(x.Key, "node.kubernetes.io/"))
		if x.TolerationSeconds != nil {
			t.Errorf("toleration of %s lasts %d s, want forever", x.Key, *x.TolerationSeconds)
		}
	}
	if got, want := strings.Join(keys, " "), "mine not-ready unreachable disk-pressure memory-pressure pid-pressure "+
		"unschedulable network-unavailable"; got != want {
		t.Errorf("tolerations: got %s, want %s", got, want)
	}
	if terms := pod.Spec.Affinity.NodeAffinity; len(
		terms.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 1 ||
		len(terms.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Errorf("affinity: got %+v", terms)
	}
	if n := len(
		set.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); n != 2 {
		t.Errorf("the template was changed: %d terms", n)
	}
}

func TestPauses(t *testing.T) {
	var backoff failedPodsBackoff
	k := backoffKey{"s", 1, "n1"}
	for _, want := range []time.Duration{initialBackoff, 2 * initialBackoff, 4 * initialBackoff} {
		backoff.start(k, now)
		if got := backoff.remaining(k, now); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := backoff.remaining(k, now.Add(3*time.Second)); got != time.Second {
		t.Errorf("after 3 of 4 s: got %v, want 1s", got)
	}
	if got := backoff.remaining(backoffKey{"s", 2, "n1"}, now); got != 0 {
		t.Errorf("of a changed set: got %v, want none", got)
	}
	backoff.start(backoffKey{"s", 1, "n2"}, now.Add(time.Hour))
	if len(backoff.all) != 1 {
		t.Errorf("an hour later: %d pauses are remembered, want 1", len(backoff.all))
	}
}

// A DaemonSet may have a name of 253 characters; the prefix of its pods' names is valid.
func TestLongName(t *testing.T) {
	set := newSet(func(s *appsv1.DaemonSet) { s.Name = strings.Repeat("d", validation.DNS1123SubdomainMaxLength) })
	prefix := newPod(set, "hash", "n").GenerateName
	if errs := apivalidation.NameIsDNSSubdomain(prefix, true); len(errs) > 0 {
		t.Errorf("got prefix %s, %v", prefix, errs)
	}
}
