// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/schedtest"
)

// TestDistanceEqualsExplain: a node that is ranked without texts is as far away as one that is explained.
func TestDistanceEqualsExplain(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) // a test wants the same numbers again
	harness := schedtest.New(1, 1)
	for i := range 300 {
		name := fmt.Sprintf("node-%d", i)
		harness.Add(schedtest.Node(name, schedtest.Zone(fmt.Sprint(random.IntN(3))),
			schedtest.Allocatable(corev1.ResourcePods, fmt.Sprint(1+random.IntN(3))),
			schedtest.Allocatable(corev1.ResourceCPU, fmt.Sprint(1+random.IntN(4))), schedtest.Allocatable(
				corev1.ResourceMemory, fmt.Sprintf("%dGi", 1+random.IntN(4)))))
		for p := range random.IntN(3) {
			harness.Add(schedtest.Pod(fmt.Sprintf("p-%d-%d", i, p), schedtest.On(name),
				schedtest.Requests(fmt.Sprint(random.IntN(2)), fmt.Sprintf("%dMi", 256*random.IntN(6))),
				schedtest.Labelled("app", fmt.Sprint(random.IntN(2)))))
		}
	}
	// the filter after the resources refuses some nodes, too
	pod := schedtest.Pod("pod", schedtest.Requests("3", "3Gi"), schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "0"}},
				TopologyKey:   corev1.LabelHostname,
			}},
		}}
	}))
	attempt := harness.Try(pod)
	ranked := 0
	near := 0
	far := 0
	attempt.Chosen = nil // as if none fitted, so that hints count
	for i := range attempt.Refused {
		r := &attempt.Refused[i]
		got, ok := distanceOf(attempt, r)
		want := explainRefusal(attempt, r)
		if !ok {
			continue
		}
		ranked++
		if want.distance < farDistance {
			near++
		} else {
			far++
		}
		if got.Node != want.Node || got.distance != want.distance {
			t.Errorf("%s, %s: ranked as %s at %v, measured at %v", want.Node, want.Shortage, got.Node, got.distance,
				want.distance)
		}
	}
	if near < 20 || far < 20 {
		t.Errorf("of %d ranked nodes %d are near and %d far: too few of a kind to compare", ranked, near, far)
	}
	if d := Decision(attempt, 1, 0); len(d.Refusals) != maxVerdicts || d.Refusals[0].Shortage == "" ||
		d.Refusals[maxVerdicts-1].Shortage == "" {
		t.Errorf("got %d verdicts, want %d, each with what is missing: %+v", len(d.Refusals), maxVerdicts, d.Refusals)
	}
}
