// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func TestRanges(t *testing.T) {
	for _, tc := range []struct {
		cluster string
		bits    int
		used    []string
		want    string // the next three
	}{
		{"10.42.0.0/16", 24, nil, "10.42.0.0/24 10.42.1.0/24 10.42.2.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/24", "10.42.2.0/24"}, "10.42.1.0/24 10.42.3.0/24 10.42.4.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.128/26"}, "10.42.1.0/24 10.42.2.0/24 10.42.3.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/22"}, "10.42.4.0/24 10.42.5.0/24 10.42.6.0/24"},
		{"10.42.0.0/22", 24, []string{"10.42.1.0/24"}, "10.42.0.0/24 10.42.2.0/24 10.42.3.0/24"},
		{"10.42.0.0/22", 24, []string{"10.0.0.0/8"}, "full"},
		{"10.42.0.0/23", 24, nil, "10.42.0.0/24 10.42.1.0/24 full"},
		{"10.42.0.0/16", 24, []string{"192.168.0.0/24", "fd00::/64"}, "10.42.0.0/24 10.42.1.0/24 10.42.2.0/24"},
		{"fd00:1::/48", 64, []string{"fd00:1::/64"}, "fd00:1:0:1::/64 fd00:1:0:2::/64 fd00:1:0:3::/64"},
	} {
		r, err := newRanges(prefix(tc.cluster), tc.bits)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tc.used {
			r.occupy(prefix(p))
		}
		var got []string
		for range 3 {
			p, err := r.allocateNext()
			if errors.Is(err, errNoFreeRange) {
				got = append(got, "full")
				break
			}
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s in /%d without %v: got %v, want %s", tc.cluster, tc.bits, tc.used, got, tc.want)
		}
	}
	for _, tc := range []struct {
		cluster string
		bits    int
	}{{"10.42.0.0/16", 12}, {"10.0.0.0/7", 24}, {"fd00::/32", 64}, {"10.42.0.0/16", 33}} {
		if _, err := newRanges(prefix(tc.cluster), tc.bits); err == nil {
			t.Errorf("%s in /%d is taken", tc.cluster, tc.bits)
		}
	}
}

// TestNeverTwice: whatever is taken, brought and released, no range is given that overlaps one in use.
func TestNeverTwice(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0)) // a test's dice
	ranges, err := newRanges(prefix("10.42.0.0/20"), 24)
	if err != nil {
		t.Fatal(err)
	}
	var held []netip.Prefix
	for step := range 2000 {
		switch rnd.IntN(3) {
		case 0:
			p, err := ranges.allocateNext()
			if err != nil {
				continue
			}
			for _, h := range held {
				if h.Overlaps(p) {
					t.Fatalf("seed %d, step %d: %s is given, %s is in use", seed, step, p, h)
				}
			}
			held = append(held, p)
		case 1:
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(rnd.IntN(20)), byte(rnd.IntN(256))}),
				22+rnd.IntN(6)).Masked()
			ranges.occupy(p)
			held = append(held, p)
		default:
			if i := len(held); i > 0 {
				i = rnd.IntN(i)
				ranges.release(held[i])
				held = append(held[:i], held[i+1:]...)
			}
		}
	}
	for _, p := range held {
		ranges.release(p)
	}
	for i, n := range ranges.used {
		if n != 0 {
			t.Errorf("seed %d: range %d is used %d times by no node", seed, i, n)
		}
	}
}

func node(name string, cidrs ...string) *corev1.Node {
	return apitest.Node(name, apitest.PodCIDRs(cidrs...))
}

// TestGives: nodes get ranges of both families, none twice; where none is left a node waits, with an event, until
// another goes.
func TestGives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("brought", "10.42.0.0/24"), node("a"), node("b"),
			node("twin", "10.42.0.0/24"))
		cfg := Config{
			Cluster: []netip.Prefix{prefix("10.42.0.0/22"), prefix("fd00::/56")},
			Reserved: []netip.Prefix{
				prefix("10.42.3.0/24"),
			},
		}
		cluster.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, cfg)
		})
		have := func(name string) string {
			time.Sleep(time.Second)
			n, err := cluster.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(n.Spec.PodCIDRs) > 0 && n.Spec.PodCIDR != n.Spec.PodCIDRs[0] {
				t.Errorf("%s: podCIDR %s, podCIDRs %v", name, n.Spec.PodCIDR, n.Spec.PodCIDRs)
			}
			return strings.Join(n.Spec.PodCIDRs, " ")
		}
		got := map[string]bool{have("a"): true, have("b"): true}
		if !got["10.42.1.0/24 fd00::/64"] || !got["10.42.2.0/24 fd00:0:0:1::/64"] || have("brought") != "10.42.0.0/24" {
			t.Errorf("nodes have %v and %s", got, have("brought"))
		}
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("late"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if h := have("late"); h != "" {
			t.Errorf("a node gets %s where nothing is left", h)
		}
		said := strings.Join(cluster.EventsSeen(), "\n")
		if !strings.Contains(said, "Normal CIDRNotAvailable Node late status is now: CIDRNotAvailable") ||
			!strings.Contains(said, "Warning CIDRConflict") {
			t.Errorf("events: %s", said)
		}
		if err := cluster.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if h := have("late"); !got[strings.Replace(h, " fd00:0:0:2::/64", " fd00::/64", 1)] &&
			!got[strings.Replace(h, " fd00:0:0:2::/64", " fd00:0:0:1::/64", 1)] {
			t.Errorf("after a node went, the one that waits has %q, want the range of the first family that is free", h)
		}
	})
}

// TestLostAnswer: a range whose write may have succeeded is given to no other node.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("a"))
		cluster.Fake.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patch, ok := a.(clienttesting.PatchAction)
			return ok && patch.GetName() == "a", nil, errors.New("connection lost")
		})
		cfg := Config{Cluster: []netip.Prefix{prefix("10.42.0.0/24")}}
		cluster.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, cfg)
		})
		time.Sleep(time.Minute)
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("b"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n, err := cluster.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); err != nil ||
			len(n.Spec.PodCIDRs) != 0 {
			t.Errorf("b has %v, %v: a's range", n.Spec.PodCIDRs, err)
		}
		if err := cluster.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n, err := cluster.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); err != nil ||
			len(n.Spec.PodCIDRs) != 1 {
			t.Errorf("a is gone: b has %v, %v", n.Spec.PodCIDRs, err)
		}
	})
}

func TestValidate(t *testing.T) {
	for text, wrong := range map[string]bool{
		"10.42.0.0/16":              false,
		"10.42.0.0/16 fd00::/48":    false,
		"10.42.0.0/16 10.43.0.0/16": true,
		"10.0.0.0/6":                true,
	} {
		var cfg Config
		for p := range strings.FieldsSeq(text) {
			cfg.Cluster = append(cfg.Cluster, prefix(p))
		}
		if err := cfg.Validate(); (err != nil) != wrong {
			t.Errorf("%s: %v", text, err)
		}
	}
}
