// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// From any state, passes lead to the pods that the set wants, all of the present revision; none ever creates a pod
// whose name is taken, and while the set is scaled and updated in order at most one pod at a time is taken from those
// that serve.
func TestConverges(t *testing.T) {
	states := []func(*corev1.Pod){func(*corev1.Pod) {}, old, unready, going, failed, ended, pending, unlabelled}
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Int32Range(0, 3).Draw(t, "start")
		set := newSet(rapid.Int32Range(0, 5).Draw(t, "replicas"), startsAt(first))
		if rapid.Bool().Draw(t, "parallel") {
			parallel(set)
		}
		pods := map[string]*corev1.Pod{}
		for n := range 9 {
			if rapid.Bool().Draw(t, "there") {
				p := podOf(set, n, rapid.SampledFrom(states).Draw(t, "state"))
				pods[p.Name] = p
			}
		}
		for range 100 {
			s := snap(set, nil)
			for _, p := range pods {
				s.pods = append(s.pods, p)
			}
			p := decide(s)
			step(t, set, pods, p)
			if len(p.stages) == 0 && !kubelet(pods) {
				break
			}
		}
		if len(pods) != replicas(set) {
			t.Fatalf("got %d pods in the end, want %d", len(pods), replicas(set))
		}
		for _, p := range pods {
			if _, n := parseOrdinal(p.Name); !inRange(set, n) || revisionOf(p) != "new" || !hasIdentity(set, p, n) {
				t.Errorf("in the end there is %s of revision %s with labels %v", p.Name, revisionOf(p), p.Labels)
			}
		}
	})
}

// step carries out a plan.
func step(t *rapid.T, set *appsv1.StatefulSet, pods map[string]*corev1.Pod, p plan) {
	taken := 0
	for _, stage := range p.stages {
		for _, action := range stage {
			switch action.verb {
			case create:
				name := podName(set, action.n)
				if pods[name] != nil {
					t.Fatalf("a second pod %s is created", name)
				}
				pods[name] = podOf(set, action.n, pending)
			case remove:
				if available(snap(set, nil), action.pod) && action.pod.DeletionTimestamp == nil {
					taken++
				}
				gone := action.pod.DeepCopy()
				going(gone)
				pods[gone.Name] = gone
			case restoreIdentity:
				restored := action.pod.DeepCopy()
				restored.Labels = withPodLabels(set, action.n, restored.Labels)
				pods[restored.Name] = restored
			case createClaims, setClaimOwners:
				t.Fatalf("claims of a set that has none")
			}
		}
	}
	if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && taken > 1 {
		t.Fatalf("%d serving pods are deleted at once", taken)
	}
}

// kubelet ends the pods that are going and makes the others ready; it reports whether there was anything to do.
func kubelet(pods map[string]*corev1.Pod) bool {
	did := false
	for name, p := range pods {
		switch {
		case p.DeletionTimestamp != nil:
			delete(pods, name)
			did = true
		case p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning && p.Status.Conditions == nil:
			q := p.DeepCopy()
			q.Status = podOf(newSet(1), 0).Status
			pods[name] = q
			did = true
		}
	}
	return did
}
