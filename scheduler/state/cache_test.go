// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeChangesAndGoes: a node that has changed since the last refresh, and is gone before the next, takes no other node's place.
func TestNodeChangesAndGoes(t *testing.T) {
	node := func(name, label string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}}}
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
