// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func budget(least, most string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Name:       "b",
		Namespace:  "default",
		UID:        "b",
		Generation: 3,
	}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	if least != "" {
		v := intstr.Parse(least)
		b.Spec.MinAvailable = &v
	}
	if most != "" {
		v := intstr.Parse(most)
		b.Spec.MaxUnavailable = &v
	}
	return b
}

func TestDesired(t *testing.T) {
	for _, tt := range []struct {
		min, max       string
		expected, want int32
	}{
		{"2", "", 5, 2},
		{"7", "", 5, 7},
		{"50%", "", 5, 3},
		{"100%", "", 5, 5},
		{"0%", "", 5, 0},
		{"", "1", 5, 4},
		{"", "9", 5, 0},
		{"", "30%", 5, 3}, // two may be missing
		{"", "0", 5, 5},
		{"", "50%", 0, 0},
		{"", "", 5, 0},
	} {
		got, err := desired(budget(tt.min, tt.max), tt.expected)
		if err != nil || got != tt.want {
			t.Errorf("min %q, max %q of %d: got %d, %v; want %d", tt.min, tt.max, tt.expected, got, err, tt.want)
		}
	}
	if _, err := desired(budget("half", ""), 5); err == nil {
		t.Error("minAvailable half: no error")
	}
}

func TestStatus(t *testing.T) {
	ready := func(name string, f ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, g := range f {
			g(p)
		}
		return p
	}
	going := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	evicted := func(name string, ago time.Duration) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{name: metav1.NewTime(noon.Add(-ago))}
		}
	}
	for _, tt := range []struct {
		name              string
		pods              []*corev1.Pod
		before            func(*policyv1.PodDisruptionBudget)
		expected, healthy int32 // that are wanted
		current, allowed  int32
		disrupted         int
		recheck           time.Duration
		overdue           int
	}{
		{"all there", []*corev1.Pod{ready("a"), ready("b"), ready("c")}, nil, 3, 2, 3, 1, 0, 0, 0},
		{"too few", []*corev1.Pod{ready("a")}, nil, 3, 2, 1, 0, 0, 0, 0},
		{"no pods yet", nil, nil, 0, 0, 0, 0, 0, 0, 0},
		{
			"one going, one not ready",
			[]*corev1.Pod{ready("a"), ready("b", going), ready("c", unready), ready("d")},
			nil, 4, 1, 2, 1, 0, 0, 0,
		},
		{
			"one evicted a moment ago",
			[]*corev1.Pod{ready("a"), ready("b")},
			evicted("a", 30*time.Second), 2, 1, 1,
			0, 1, 90 * time.Second, 0,
		},
		{
			"the evicted one is going",
			[]*corev1.Pod{ready("a", going), ready("b")},
			evicted("a", time.Second), 2, 1,
			1, 0, 0, 0, 0,
		},
		{"the evicted one is gone", []*corev1.Pod{ready("b")}, evicted("a", time.Second), 2, 1, 1, 0, 0, 0, 0},
		{
			"evicted, but never deleted",
			[]*corev1.Pod{ready("a"), ready("b")},
			evicted("a", 2*time.Minute), 2, 1, 2,
			1, 0, 0, 1,
		},
	} {
		b := budget("", "")
		if tt.before != nil {
			tt.before(b)
		}
		st, recheck, overdue := status(b, tt.pods, tt.expected, tt.healthy, noon)
		if st.CurrentHealthy != tt.current || st.DisruptionsAllowed != tt.allowed ||
			len(st.DisruptedPods) != tt.disrupted || recheck != tt.recheck || len(overdue) != tt.overdue {
			t.Errorf("%s: got %d healthy, %d allowed, %d disrupted, recheck %v, %d overdue; want %d, %d, %d, %v, %d",
				tt.name,
				st.CurrentHealthy, st.DisruptionsAllowed, len(st.DisruptedPods), recheck, len(overdue), tt.current,
				tt.allowed, tt.disrupted, tt.recheck, tt.overdue)
		}
		if st.ObservedGeneration != 3 || st.ExpectedPods != tt.expected || st.DesiredHealthy != tt.healthy {
			t.Errorf("%s: got %+v", tt.name, st)
		}
		c := meta.FindStatusCondition(st.Conditions, policyv1.DisruptionAllowedCondition)
		want := policyv1.InsufficientPodsReason
		if tt.allowed > 0 {
			want = policyv1.SufficientPodsReason
		}
		if c == nil || c.Reason != want || (c.Status == metav1.ConditionTrue) != (tt.allowed > 0) ||
			c.ObservedGeneration != 3 {
			t.Errorf("%s: condition %+v, want reason %s", tt.name, c, want)
		}
		b.Status = *st
		if again, _, _ := status(b, tt.pods, tt.expected, tt.healthy,
			noon); again.DisruptionsAllowed != st.DisruptionsAllowed || !again.Conditions[0].LastTransitionTime.Equal(
			&st.Conditions[0].LastTransitionTime) {
			t.Errorf("%s: a second pass gives %+v", tt.name, again)
		}
	}
}

func TestStaleTarget(t *testing.T) {
	at := func(reason string, ago time.Duration, f ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		p.Status.Conditions = []corev1.PodCondition{{
			Type:               corev1.DisruptionTarget,
			Status:             "True",
			Reason:             reason,
			LastTransitionTime: metav1.NewTime(noon.Add(-ago)),
		}}
		for _, g := range f {
			g(p)
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		p     *corev1.Pod
		left  time.Duration
		stale bool
	}{
		{"none", &corev1.Pod{}, 0, false},
		{"fresh", at("EvictionByEvictionAPI", 20*time.Second), 100 * time.Second, true},
		{"old", at("EvictionByEvictionAPI", time.Hour), 0, true},
		{"the kubelet's", at(corev1.PodReasonTerminationByKubelet, time.Hour), 0, false},
		{"being deleted", at("", time.Hour, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), 0, false},
		{"ended", at("", time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0, false},
	} {
		if left, stale := staleTarget(tt.p, noon); left != tt.left || stale != tt.stale {
			t.Errorf("%s: got %v, %v; want %v, %v", tt.name, left, stale, tt.left, tt.stale)
		}
	}
}
