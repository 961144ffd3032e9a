// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/cluster/datadir"
	"keelson/controllers/nodeipam"
)

// TestSettledPodCIDRs: a node without pods takes the ranges that its Node has, gives up those that another node has,
// and starts without a server.
func TestSettledPodCIDRs(t *testing.T) {
	mine := netip.MustParsePrefix("10.42.7.0/24")
	given := func(cidrs ...string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	}
	contested := given("10.42.7.0/24")
	contested.Annotations = map[string]string{nodeipam.AnnotationConflict: "other"}
	for name, tc := range map[string]struct {
		node       *corev1.Node
		away       bool
		want, file string
	}{
		"the same":        {node: given("10.42.7.0/24"), want: "[10.42.7.0/24]"},
		"another one":     {node: given("10.42.9.0/24"), want: "[10.42.9.0/24]", file: "10.42.9.0/24\n"},
		"deleted":         {want: "[]"},
		"recreated":       {node: given(), want: "[]"},
		"another node's":  {node: contested, want: "[10.42.8.0/24]", file: "10.42.8.0/24\n"},
		"the server away": {away: true, want: "[10.42.7.0/24]"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := clienttest.New()
			if tc.node != nil {
				if err := cl.Tracker().Add(tc.node); err != nil {
					t.Fatal(err)
				}
			}
			cl.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return tc.away, nil, errors.New("connection refused")
			})
			// The controller: who gives up is made again and given another range.
			cl.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if p := string(a.(clienttesting.PatchAction).GetPatch()); !strings.Contains(p,
					nodeipam.AnnotationRelease+`":"10.42.7.0/24"`) {
					t.Errorf("the node says %s", p)
				}
				return true, contested, nil
			})
			cl.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
				w := watch.NewFakeWithChanSize(3, false)
				w.Delete(contested)
				w.Add(given())
				w.Modify(given("10.42.8.0/24"))
				return true, w, nil
			})
			dir := datadir.Dir(t.TempDir())
			got, err := RangeRequest{
				Dir:      dir,
				NodeName: "n",
				Client:   &client.Client{Interface: client.Plain(cl)},
			}.settled(t.Context(), []netip.Prefix{mine})
			if err != nil || fmt.Sprint(got) != tc.want {
				t.Errorf("ranges %v, %v, want %s", got, err, tc.want)
			}
			if kept, err := storedPodCIDRs(dir); err != nil ||
				strings.Join(PrefixStrings(kept), "\n") != strings.TrimSpace(tc.file) {
				t.Errorf("remembered: %v, %v, want %s", kept, err, tc.file)
			}
		})
	}
}
