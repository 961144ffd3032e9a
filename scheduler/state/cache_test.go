// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/apitest"
)

// TestNodeChangesAndGoes: a node that has changed since the last refresh, and is gone before the next, takes no other
// node's place.
func TestNodeChangesAndGoes(t *testing.T) {
	node := func(name, label string) *corev1.Node {
		return apitest.Node(name, apitest.NodeLabels("l", label))
	}
	for _, gone := range []string{"a", "b", "c"} {
		c := NewCache()
		for _, name := range []string{"a", "b", "c"} {
			c.SetNode(node(name, "old"))
		}
		c.Refresh()
		c.SetNode(node(gone, "new"))
		c.RemoveNode(gone)
		s := c.Refresh()
		if len(s.Nodes) != 2 || s.Node(gone) != nil {
			t.Fatalf("%s is gone: there are %d nodes, %s among them: %t", gone, len(s.Nodes), gone, s.Node(gone) != nil)
		}
		for _, n := range s.Nodes {
			if n.Name == gone || s.Node(n.Name) != n {
				t.Errorf("%s is gone: %s is in the list, and by its name there is %v", gone, n.Name, s.Node(n.Name))
			}
		}
	}
}

// TestChanged: the nodes that changed since a version are known while it is recent and the nodes are the same.
func TestChanged(t *testing.T) {
	cache := NewCache()
	for i := range 3 {
		cache.SetNode(apitest.Node(fmt.Sprintf("n-%d", i)))
	}
	snapshot := cache.Refresh()
	at := snapshot.Version()
	touch := func(name string) {
		p := NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID("pod-on-" + name)}})
		if err := cache.Assume(p, name); err != nil {
			t.Fatal(err)
		}
		cache.Refresh()
		cache.Forget(p.Pod.UID)
		cache.Refresh()
	}
	touch("n-1")
	touch("n-2")
	if got, known := snapshot.Changed(at); !known || !slices.Equal(got, []int32{1, 1, 2, 2}) {
		t.Errorf("two nodes have changed, twice: got %v, known %v", got, known)
	}
	if got, known := snapshot.Changed(snapshot.Version()); !known || len(got) != 0 {
		t.Errorf("since now: got %v, known %v", got, known)
	}
	for range 2000 {
		touch("n-0")
	}
	if got, known := snapshot.Changed(at); known {
		t.Errorf("4000 changes are remembered: %d", len(got))
	}
	recent := snapshot.Version()
	touch("n-1")
	if got, known := snapshot.Changed(recent); !known || !slices.Equal(got, []int32{1, 1}) {
		t.Errorf("the last change: got %v, known %v", got, known)
	}
	cache.SetNode(apitest.Node("n-3"))
	cache.Refresh()
	if got, known := snapshot.Changed(recent); known {
		t.Errorf("nodes may be at other places now: got %v", got)
	}
}
