// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// TestChoose: nodes are asked once until a label or a taint of one changes, and what is counted with a choice follows
// the pods.
func TestChoose(t *testing.T) {
	cache := NewCache()
	set := func(name, zone string, taints ...corev1.Taint) {
		cache.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{"zone": zone},
			},
			Spec: corev1.NodeSpec{Taints: taints},
		})
	}
	set("a", "1")
	set("b", "1")
	set("c", "2", corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule})
	asked := 0
	choose := func() string {
		snapshot := cache.Refresh()
		got := snapshot.SelectNodes("untainted", "zone", func(n *NodeInfo) bool {
			asked++
			return !n.HardTaints
		})
		counter := snapshot.Count(Query{Terms: []*Term{NewTerm("zone", []string{"default"}, nil, labels.Everything())}})
		in := map[string]int32{}
		out := map[string]string{}
		for id, count := range got.Included {
			if count > 0 {
				in[got.Values[id]] = count
			}
		}
		for _, place := range got.Excluded {
			out[snapshot.Nodes[place].Name] = got.Values[got.ValueIDs[place]]
		}
		among := map[string]int64{}
		for id, count := range counter.SumsOfExcluded(got) {
			if count != 0 {
				among[got.Values[id]] = count
			}
		}
		if len(in) != got.IncludedValues {
			t.Errorf("%d values are let in, it says %d", len(in), got.IncludedValues)
		}
		return fmt.Sprint(in, out, among, asked)
	}
	check := func(what, want string) {
		t.Helper()
		if got := choose(); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	check("first", "map[1:2] map[c:2] map[] 3")
	for i, node := range []string{"a", "c", "c"} {
		cache.SetPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))},
			Spec:       corev1.PodSpec{NodeName: node},
		})
	}
	check("pods came", "map[1:2] map[c:2] map[2:2] 3")
	set("c", "2")
	check("a taint went", "map[1:2 2:1] map[] map[] 6")
	set("b", "1", corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute})
	set("a", "1", corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute})
	check("two taints came", "map[2:1] map[a:1 b:1] map[1:1] 9")
	s := cache.Refresh()
	for i := range 3 * maxSelections {
		s.SelectNodes(fmt.Sprint(i), "zone", func(*NodeInfo) bool { return true })
	}
	if n := len(s.selections); n > maxSelections {
		t.Errorf("%d choices are kept, at most %d should be", n, maxSelections)
	}
}
