// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// world draws nodes, namespaces and the pods that come.
func world(t *rapid.T) (nodes []*corev1.Node, namespaces []*corev1.Namespace, pods []*corev1.Pod) {
	for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
		opts := []schedtest.NodeOption{
			schedtest.Allocatable(corev1.ResourceCPU, rapid.SampledFrom([]string{"1", "2", "4"}).Draw(t, "cpu")),
		}
		if z := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"); z != "" {
			opts = append(opts, schedtest.Zone(z))
		}
		if rapid.IntRange(0, 5).Draw(t, "taint") == 0 {
			opts = append(opts, schedtest.Taint("k", "v", corev1.TaintEffectNoSchedule))
		}
		opts = append(opts,
			schedtest.Allocatable(corev1.ResourcePods, rapid.SampledFrom([]string{"2", "5", "110"}).Draw(t, "pods")))
		nodes = append(nodes, schedtest.Node(fmt.Sprint("n", i), opts...))
	}
	for _, n := range []string{"default", "red", "blue"} {
		namespaces = append(namespaces, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"team": n}},
		})
	}
	for i := range rapid.IntRange(1, 30).Draw(t, "incoming") {
		pods = append(pods, drawPod(t, fmt.Sprint("p", i)))
	}
	return nodes, namespaces, pods
}

func drawPod(t *rapid.T, name string) *corev1.Pod {
	apps := []string{"x", "y"}
	opts := []schedtest.PodOption{
		schedtest.Requests(rapid.SampledFrom([]string{"", "300m", "1"}).Draw(t, "cpu"),
			rapid.SampledFrom([]string{"", "1Gi", "10Gi"}).Draw(t, "memory")),
		schedtest.In(rapid.SampledFrom([]string{"default", "red", "blue"}).Draw(t, "namespace")),
		schedtest.Labelled("app", rapid.SampledFrom(apps).Draw(t, "app")),
		schedtest.Priority(rapid.SampledFrom([]int32{0, 10}).Draw(t, "priority")),
	}
	term := corev1.PodAffinityTerm{
		TopologyKey: rapid.SampledFrom([]string{corev1.LabelHostname, corev1.LabelTopologyZone}).Draw(t, "key"),
		LabelSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": rapid.SampledFrom(apps).Draw(t, "target")},
		},
	}
	if rapid.Bool().Draw(t, "across") {
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}
	}
	switch rapid.IntRange(0, 7).Draw(t, "wants") {
	case 0:
		opts = append(opts, schedtest.With(func(s *corev1.PodSpec) { blue(s, true, term) }))
	case 1:
		opts = append(opts, schedtest.With(func(s *corev1.PodSpec) { blue(s, false, term) }))
	case 2:
		opts = append(opts, schedtest.With(func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew:           1,
				TopologyKey:       term.TopologyKey,
				LabelSelector:     term.LabelSelector,
				WhenUnsatisfiable: corev1.DoNotSchedule,
			}}
		}))
	case 3:
		opts = append(opts, schedtest.HostPort("", corev1.ProtocolTCP, 80))
	case 4:
		opts = append(opts, schedtest.With(func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{corev1.LabelTopologyZone: "a"}
		}))
	}
	return schedtest.Pod(name, opts...)
}

func newWorld(nodes []*corev1.Node, namespaces []*corev1.Namespace) *schedtest.Harness {
	h := schedtest.New(1, 7)
	for _, n := range nodes {
		h.Add(n)
	}
	for _, n := range namespaces {
		h.Add(n)
	}
	return h
}

// TestNeverOverCommits: whatever comes, no node holds more than it offers, no port twice, and no two pods that exclude
// each other.
func TestNeverOverCommits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, namespaces, pods := world(t)
		h := newWorld(nodes, namespaces)
		for _, p := range pods {
			h.Place(p)
		}
		snapshot := h.Cache.Refresh()
		for _, n := range snapshot.Nodes {
			if int64(len(n.Pods)) > n.Allocatable.Pods || n.Requested.MilliCPU > n.Allocatable.MilliCPU ||
				n.Requested.Memory > n.Allocatable.Memory {
				t.Fatalf("node %s: %d pods ask for %+v of %+v", n.Name, len(n.Pods), n.Requested, n.Allocatable)
			}
			for i, p := range n.Ports {
				for _, o := range n.Ports[:i] {
					if p.Conflicts(o) {
						t.Fatalf("node %s: port %v taken twice", n.Name, p)
					}
				}
			}
		}
		excluded(t, snapshot)
	})
}

// excluded checks required anti-affinity the slow way.
func excluded(t *rapid.T, s *state.Snapshot) {
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			for _, term := range p.AntiAffinity {
				value, ok := n.Node.Labels[term.TopologyKey]
				for _, m := range s.Nodes {
					if !ok || m.Node.Labels[term.TopologyKey] != value {
						continue
					}
					for _, o := range m.Pods {
						if o != p && term.Matches(o.Pod, s.Namespaces[o.Pod.Namespace]) {
							t.Fatalf("%s on %s excludes %s on %s", p.Key, n.Name, o.Key, m.Name)
						}
					}
				}
			}
		}
	}
}

// TestBoundPodFits: a pod that was placed fits where it is, asked again without it being there.
func TestBoundPodFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, namespaces, pods := world(t)
		harness := newWorld(nodes, namespaces)
		for _, p := range pods {
			node := harness.Place(p)
			if node == "" {
				continue
			}
			harness.Cache.RemovePod(p.UID)
			a := harness.Try(p)
			if st := framework.Check(a.Filters, harness.Cache.Refresh().Node(node)); st != nil {
				t.Fatalf("%s was placed on %s, where it does not fit: %v", p.Name, node, st.Reasons)
			}
			bound := p.DeepCopy()
			bound.Spec.NodeName = node
			harness.Add(bound)
		}
	})
}

// TestTryingChangesNothing: the same attempt twice gives the same answer, and parallel looking gives the same as one by
// one.
func TestTryingChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, namespaces, pods := world(t)
		h := newWorld(nodes, namespaces)
		for _, p := range pods {
			first := verdict(h.Try(p))
			if diff := cmp.Diff(first, verdict(h.Try(p))); diff != "" {
				t.Fatalf("%s: second try differs (-first +second):\n%s", p.Name, diff)
			}
			h.Place(p)
		}
	})
}

func verdict(a *framework.Attempt) map[string]string {
	out := map[string]string{}
	for _, n := range a.Feasible {
		out[n.Name] = "fits"
	}
	for _, r := range a.Refused {
		out[r.Node.Name] = fmt.Sprint(r.Status.Reasons)
	}
	return out
}

// TestParallelIsTheSame compares placements in a cluster large enough for several goroutines.
func TestParallelIsTheSame(t *testing.T) {
	place := func(parallelism int) []string {
		h := schedtest.New(parallelism, 3)
		for i := range 1500 {
			opts := []schedtest.NodeOption{schedtest.Zone(fmt.Sprint(i % 5))}
			if i%3 == 0 {
				opts = append(opts, schedtest.Cordoned())
			}
			h.Add(schedtest.Node(fmt.Sprintf("n%04d", i), opts...))
		}
		var got []string
		for i := range 200 {
			got = append(got, h.Place(schedtest.Pod(fmt.Sprint(i))))
		}
		return got
	}
	if diff := cmp.Diff(place(1), place(4)); diff != "" {
		t.Errorf("placements differ (-one goroutine +four):\n%s", diff)
	}
}

// TestIncrementalIsFromScratch: a snapshot brought up to date step by step answers as a new one does.
func TestIncrementalIsFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, namespaces, pods := world(t)
		harness := newWorld(nodes, namespaces)
		queries := []state.Query{}
		for _, p := range pods {
			info := state.NewPodInfo(p)
			for _, term := range slices.Concat(info.Affinity, info.AntiAffinity) {
				queries = append(queries, state.Query{Terms: []*state.Term{term}, Live: rapid.Bool().Draw(t, "live")})
			}
		}
		there := map[string]*corev1.Pod{}
		alive := map[string]*corev1.Node{}
		for _, n := range nodes {
			alive[n.Name] = n
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			churn(t, harness, nodes, pods, there, alive)
			snapshot := harness.Cache.Refresh()
			fresh := newWorld(slices.Collect(maps.Values(alive)), namespaces)
			for _, p := range there {
				fresh.Add(p)
			}
			want := fresh.Cache.Refresh()
			for _, q := range queries {
				for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
					if diff := cmp.Diff(want.Count(q).By(key), snapshot.Count(q).By(key)); diff != "" {
						t.Fatalf("count by %s (-from scratch +incremental):\n%s", key, diff)
					}
				}
			}
			for _, p := range pods {
				if diff := cmp.Diff(held(want, p), held(snapshot, p)); diff != "" {
					t.Fatalf("terms held against %s (-from scratch +incremental):\n%s", p.Name, diff)
				}
			}
			for _, n := range want.Nodes {
				got := snapshot.Node(n.Name)
				if got == nil || len(got.Pods) != len(n.Pods) || got.Requested.MilliCPU != n.Requested.MilliCPU ||
					got.ScoreMemory != n.ScoreMemory {
					t.Fatalf("node %s: got %+v, want %+v", n.Name, got, n)
				}
			}
			if len(snapshot.Nodes) != len(want.Nodes) {
				t.Fatalf("%d nodes, want %d", len(snapshot.Nodes), len(want.Nodes))
			}
		}
	})
}

func churn(
	t *rapid.T, harness *schedtest.Harness, nodes []*corev1.Node, pods []*corev1.Pod, there map[string]*corev1.Pod,
	alive map[string]*corev1.Node,
) {
	node := rapid.SampledFrom(nodes).Draw(t, "node")
	pod := rapid.SampledFrom(pods).Draw(t, "pod").DeepCopy()
	switch rapid.IntRange(0, 5).Draw(t, "op") {
	case 0, 1:
		pod.Spec.NodeName = node.Name
		harness.Add(pod)
		there[pod.Name] = pod
	case 2:
		harness.Cache.RemovePod(pod.UID)
		delete(there, pod.Name)
	case 3:
		moved := node.DeepCopy()
		moved.Labels[corev1.LabelTopologyZone] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "zone")
		harness.Add(moved)
		alive[node.Name] = moved
	case 4:
		harness.Cache.RemoveNode(node.Name)
		delete(alive, node.Name)
	case 5:
		if old := there[pod.Name]; old != nil {
			again := old.DeepCopy()
			again.DeletionTimestamp = new(metav1.Now())
			harness.Add(again)
			there[pod.Name] = again
		}
	}
}

func held(s *state.Snapshot, p *corev1.Pod) map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	for _, g := range s.MatchingTermGroups(state.ExistingAntiAffinity, p) {
		if by := g.By(g.Term.TopologyKey); len(by) > 0 {
			out[g.Term.TopologyKey+g.Term.Sig] = by
		}
	}
	return out
}

func TestEnough(t *testing.T) {
	for n, want := range map[int]int{
		1:      1,
		99:     99,
		100:    100,
		250:    120,
		1000:   420,
		5000:   500,
		6000:   300,
		100000: 5000,
	} {
		if got := core.FeasibleNodesToFind(n, 0); got != want {
			t.Errorf("Enough(%d) = %d, want %d", n, got, want)
		}
	}
}
