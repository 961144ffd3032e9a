// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const critical = 2_000_000_000

func asking(name, cpu string, priority int32, guaranteed bool) *corev1.Pod {
	requirements := corev1.ResourceRequirements{}
	if cpu != "" {
		requirements.Requests = corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse("1Mi"),
		}
	}
	if guaranteed {
		requirements.Limits = requirements.Requests
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{
			Priority:   &priority,
			Containers: []corev1.Container{{Name: "c", Resources: requirements}},
		},
	}
}

// TestVictims: as few and as cheap pods leave as will do, never one that matters as much.
func TestVictims(t *testing.T) {
	node := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse(
			"1Gi"),
		corev1.ResourcePods: resource.MustParse("4"),
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string
	}{
		"one is enough": {
			asking("new", "1", critical, false),
			[]*corev1.Pod{asking("a", "2", 0, false), asking("b", "2", 0, false)},
			"b",
		},
		"the burstable one": {
			asking("new", "1", critical, false),
			[]*corev1.Pod{asking("a", "2", 0, true), asking("b", "2", 0, false)},
			"b",
		},
		"the less important one": {
			asking("new", "1", critical, false),
			[]*corev1.Pod{asking("a", "2", 5, false), asking("b", "2", 9, false)},
			"a",
		},
		"none of the same rank": {
			asking("new", "1", critical, false), []*corev1.Pod{asking("a", "4", critical, false)}, "",
		},
		"one of a lower rank": {
			asking("new", "1", critical+1000, false), []*corev1.Pod{asking("a", "4", critical, false)}, "a",
		},
		"not if it does not help": {asking("new", "5", critical, false), []*corev1.Pod{asking("a", "2", 0, false)}, ""},
		"a place among pods": {
			asking("new", "1", critical, false),
			[]*corev1.Pod{
				asking("a", "100m", 0, true), asking("b", "", 0, false), asking("c", "100m", 0, false),
				asking("d", "100m", 0, false),
			},
			"b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range podsToPreempt(c.pod, nil, node, c.others) {
				got = append(got, v.Name)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestOutOfExtendedResource: what a client wrote into the node's status is counted; what no client did is not the
// kubelet's to judge.
func TestOutOfExtendedResource(t *testing.T) {
	node := &corev1.Node{
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}},
	}
	p := func(name corev1.ResourceName) *corev1.Pod {
		p := asking("p", "1", 0, false)
		p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("2")
		return p
	}
	if reason, msg := checkFit(p("example.com/gpu"), node, nil, nil); reason != "OutOfexample.com/gpu" ||
		!strings.Contains(msg, "requested: 2, used: 0, capacity: 1") {
		t.Errorf("got %s: %s", reason, msg)
	}
	if reason, msg := checkFit(p("example.com/other"), node, nil, nil); reason != "" {
		t.Errorf("got %s: %s", reason, msg)
	}
}
