// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// waitForHealth waits until the health of the devices of container main of pod p is want, as "ID health, ...".
func (n *node) waitForHealth(want string) {
	n.t.Helper()
	for {
		var got []string
		for _, s := range n.Health("p", "main") {
			for _, r := range s.Resources {
				got = append(got, string(r.ResourceID)+" "+string(r.Health))
			}
		}
		if strings.Join(got, ", ") == want {
			return
		}
		select {
		case uid := <-n.health:
			if uid != "p" {
				n.t.Errorf("pod %s was notified", uid)
			}
		case <-time.After(time.Minute):
			n.t.Fatalf("after a minute: %q, want %q", got, want)
		}
	}
}

// TestHealth: pods are notified of their devices' health, which is unknown when the plugin has gone, and absent until
// it has come back after a restart.
func TestHealth(t *testing.T) {
	dir := t.TempDir()
	node := newNode(t, dir, time.Hour)
	f := node.serve(&fake{}, "gpu.sock")
	f.lists <- devices("a", "b", "free")
	node.waitForResources("3 3")
	if err := node.Allocate(t.Context(), pod("p", container("main", 2))); err != nil {
		t.Fatal(err)
	}
	node.waitForHealth("a Healthy, b Healthy")
	f.lists <- devices("a", "!b", "free")
	node.waitForHealth("a Healthy, b Unhealthy")
	f.lists <- devices("b", "free")
	node.waitForHealth("a Unknown, b Healthy")
	f.stop()
	node.waitForHealth("a Unknown, b Unknown")
	node.stop()

	node = newNode(t, dir, time.Hour)
	if got := node.Health("p", "main"); got != nil {
		t.Errorf("before the plugin has come: %v", got)
	}
	node.serve(&fake{}, "new.sock").lists <- devices("a", "b")
	node.waitForHealth("a Healthy, b Healthy")
	if err := node.Release("p"); err != nil {
		t.Fatal(err)
	}
	node.waitForHealth("")
	node.stop()
}

// TestHealthOfOneThatStaysAway: the devices of a plugin that does not come back after a restart have an unknown health.
func TestHealthOfOneThatStaysAway(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, dir, time.Hour)
	n.serve(&fake{}, "gpu.sock").lists <- devices("a")
	n.waitForResources("1 1")
	if err := n.Allocate(t.Context(), pod("p", container("main", 1))); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n = newNode(t, dir, time.Millisecond)
	n.waitForHealth("a Unknown")
	if got := n.Pods(); !slices.Equal(got, []string{"p"}) {
		t.Errorf("pods %v", got)
	}
}
