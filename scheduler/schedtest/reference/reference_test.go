// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/schedtest/reference"
	"keelson/scheduler/state"
)

// usualSeeds run where SCHEDULER_SEEDS is not set: some seconds of one core.
const usualSeeds = 300

// seeds are those that SCHEDULER_SEEDS asks for: 123-123, 1001-11000, or how many.
func seeds(t *testing.T) (first, last uint64) {
	t.Helper()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("SCHEDULER_SEEDS is a number or a range such as 1001-2000: %v", err)
		}
		return n
	}
	s := os.Getenv("SCHEDULER_SEEDS")
	from, to, isRange := strings.Cut(s, "-")
	switch {
	case isRange:
		return number(from), number(to)
	case s != "":
		return 1, number(s)
	case testing.Short():
		return 1, 30
	}
	return 1, usualSeeds
}

// TestReference: whatever comes in whatever order, the scheduler refuses a node for the reason for which the plain
// rules do, scores it as they do, and takes one that no other beats.
func TestReference(t *testing.T) {
	first, last := seeds(t)
	var next, placed, refused atomic.Uint64
	next.Store(first)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1) - 1; seed <= last && !t.Failed(); seed = next.Add(1) - 1 {
				steps := generateSteps(seed)
				r, err := run(steps, seed, whole)
				placed.Add(r.placed)
				refused.Add(r.refused)
				if err != nil {
					steps, err = shrink(steps, seed, err)
					t.Errorf("seed %d: %v, after\n%s(again: SCHEDULER_SEEDS=%d-%d)", seed, err, text(steps), seed, seed)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d pods placed, %d refused", placed.Load(), refused.Load())
	if n := last - first + 1; !t.Failed() && n >= 30 && (placed.Load() < 3*n || refused.Load() < n) {
		t.Errorf("the worlds say little: %d pods placed, %d refused of %d seeds", placed.Load(), refused.Load(), n)
	}
}

// TestMutants: the worlds ask enough of every plugin that its absence, or another weight, is found.
func TestMutants(t *testing.T) {
	for _, p := range schedtest.Default(&plugins.Shared{Storage: volumes.NewStorage(nil)}).Plugins {
		name := p.Name
		is := func(w framework.Weighted) bool { return w.Name == name }
		mutants := map[string]func(*framework.Profile){}
		if !plugins.Find(name).Reference {
			continue
		}
		if p.PreFilter != nil {
			mutants["without "+name] = func(p *framework.Profile) { p.Plugins = slices.DeleteFunc(p.Plugins, is) }
		}
		if p.PreScore != nil {
			mutants[name+" with another weight"] = func(p *framework.Profile) {
				w := &p.Plugins[slices.IndexFunc(p.Plugins, is)]
				w.Weight = 9 - w.Weight
			}
		}
		for what, alter := range mutants {
			t.Run(what, func(t *testing.T) {
				for seed := range uint64(usualSeeds) {
					if _, err := run(generateSteps(seed), seed, alter); err != nil {
						t.Logf("seed %d: %.200s", seed, err.Error())
						return
					}
				}
				t.Errorf("%d seeds have not found it", usualSeeds)
			})
		}
	}
}

func text(steps []step) string {
	var out strings.Builder
	for _, s := range steps {
		j, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		var said any
		if err := json.Unmarshal(j, &said); err != nil {
			panic(err)
		}
		y, err := yaml.Marshal(short(said))
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&out, "---\n%s", y)
	}
	return out.String()
}

// short leaves out what says nothing; an empty selector says something.
func short(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		if l, ok := v.([]any); ok {
			for i := range l {
				l[i] = short(l[i])
			}
		}
		return v
	}
	for k, v := range m {
		m[k] = short(v)
		if e, ok := m[k].(map[string]any); v == "" || v == float64(0) || ok && len(e) == 0 && !strings.HasSuffix(k,
			"elector") {
			delete(m, k)
		}
	}
	return m
}

// both are the scheduler and the reference, which see the same.
type both struct {
	real            *schedtest.Harness
	stored          *store
	plain           reference.Cluster
	placed, refused uint64
}

// defaultSelector: pods of app x are those of a service.
func defaultSelector(p *corev1.Pod) *metav1.LabelSelector {
	if p.Labels["app"] != "x" {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
}

// whole is the default profile as it is.
func whole(*framework.Profile) {}

// run returns what became of the steps, and the first thing in which the two differ.
func run(steps []step, seed uint64, alter func(*framework.Profile)) (b *both, err error) {
	stored := newStore()
	shared := &plugins.Shared{
		Storage: stored.Storage,
		DefaultSelector: func(p *corev1.Pod) labels.Selector {
			if s, err := metav1.LabelSelectorAsSelector(defaultSelector(p)); err == nil && defaultSelector(p) != nil {
				return s
			}
			return nil
		},
	}
	profile := schedtest.Default(shared)
	alter(profile)
	b = &both{
		stored: stored,
		real:   &schedtest.Harness{Cache: state.NewCache(), Engine: core.NewEngine(profile, 1, seed)},
		plain:  reference.Cluster{Namespaces: map[string]map[string]string{}, DefaultSelector: defaultSelector},
	}
	for i, s := range steps {
		if err := b.do(s); err != nil {
			return b, fmt.Errorf("step %d: %w", i, err)
		}
	}
	return b, nil
}

func (b *both) pod(name string) int {
	return slices.IndexFunc(b.plain.Pods, func(p *corev1.Pod) bool { return p.Name == name })
}

func (b *both) setPod(p *corev1.Pod) {
	b.real.Add(p)
	if i := b.pod(p.Name); i >= 0 {
		b.plain.Pods[i] = p
	} else {
		b.plain.Pods = append(b.plain.Pods, p)
	}
}

func (b *both) do(s step) error {
	switch cluster := &b.plain; {
	case s.Node != nil:
		b.real.Add(s.Node)
		if i := slices.IndexFunc(cluster.Nodes, func(n *corev1.Node) bool { return n.Name == s.Node.Name }); i >= 0 {
			cluster.Nodes[i] = s.Node
		} else {
			cluster.Nodes = append(cluster.Nodes, s.Node)
		}
	case s.NodeGone != "":
		b.real.Cache.RemoveNode(s.NodeGone)
		cluster.Nodes = slices.DeleteFunc(cluster.Nodes, func(n *corev1.Node) bool { return n.Name == s.NodeGone })
	case s.Namespace != nil:
		b.real.Add(s.Namespace)
		cluster.Namespaces[s.Namespace.Name] = s.Namespace.Labels
	case s.Bound != nil:
		b.setPod(s.Bound)
	case s.Leaving != "":
		if i := b.pod(s.Leaving); i >= 0 {
			p := cluster.Pods[i].DeepCopy()
			p.DeletionTimestamp = new(metav1.Unix(1, 0))
			b.setPod(p)
		}
	case s.Resized != "":
		if i := b.pod(s.Resized); i >= 0 {
			p := cluster.Pods[i].DeepCopy()
			p.Status = *s.To
			b.setPod(p)
		}
	case s.Gone != "":
		if i := b.pod(s.Gone); i >= 0 {
			b.real.Cache.RemovePod(cluster.Pods[i].UID)
			cluster.Pods = slices.Delete(cluster.Pods, i, i+1)
		}
	case s.Storage != nil:
		return b.store(s.Storage)
	case s.Place != nil && b.pod(s.Place.Name) < 0:
		return b.place(s.Place)
	}
	return nil
}

func (b *both) place(pod *corev1.Pod) error {
	attempt := b.real.Try(pod)
	if err := b.verdicts(pod, attempt); err != nil {
		return err
	}
	if attempt.Chosen == nil {
		b.refused++
		return nil
	}
	if err := b.scores(pod, attempt); err != nil {
		return err
	}
	b.placed++
	choices, _ := b.plain.ChooseVolumes(pod, attempt.Chosen.Node)
	if err := b.real.Cache.Assume(attempt.Pod, attempt.Chosen.Name); err != nil {
		return err
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = attempt.Chosen.Name
	b.plain.Pods = append(b.plain.Pods, bound)
	if len(b.plain.Pods)%2 == 0 { // some bindings are seen at once, the others never
		b.real.Add(bound)
	}
	return b.bind(choices)
}

// verdicts compares why nodes are refused.
func (b *both) verdicts(pod *corev1.Pod, attempt *framework.Attempt) error {
	got := map[string]string{}
	for _, n := range attempt.Feasible {
		got[n.Name] = ""
	}
	for _, r := range attempt.Refused {
		got[r.Node.Name] = r.Status.Plugin
	}
	for _, node := range b.plain.Nodes {
		want := b.plain.Refuses(pod, node)
		have, looked := got[node.Name]
		left := attempt.PreFilterStatus
		if left == nil {
			left = attempt.ExcludedBy
		}
		switch {
		case looked && have != want:
			return fmt.Errorf("pod %s, node %s: refused by %q, want %q", pod.Name, node.Name, have, want)
		case !looked && (left == nil || want == ""):
			return fmt.Errorf("pod %s, node %s: not looked at (%w), want %q", pod.Name, node.Name, left, want)
		}
		delete(got, node.Name)
	}
	if len(got) > 0 {
		return fmt.Errorf("pod %s: judged nodes that are not there: %v", pod.Name, got)
	}
	return nil
}

// scores compares what the plugins give, and whether the chosen node is a best one.
func (b *both) scores(pod *corev1.Pod, attempt *framework.Attempt) error {
	if best := b.plain.Best(pod); !slices.Contains(best, attempt.Chosen.Name) {
		return fmt.Errorf("pod %s: went to %s, the best are %v: %s", pod.Name, attempt.Chosen.Name, best,
			b.table(pod, attempt))
	}
	if len(attempt.Totals) == 0 {
		return nil
	}
	var fit []*corev1.Node
	for _, n := range attempt.Feasible {
		fit = append(fit, n.Node)
	}
	want, _ := b.plain.Scores(pod, fit)
	for i, w := range attempt.ScoredBy {
		if !slices.Equal(attempt.Scores[i], want[w.Name]) {
			return fmt.Errorf("pod %s: %s\n%s", pod.Name, w.Name, b.table(pod, attempt))
		}
		delete(want, w.Name)
	}
	for name, scores := range want { // a plugin without an opinion
		if slices.Min(scores) != slices.Max(scores) {
			return fmt.Errorf("pod %s: no scores of %s\n%s", pod.Name, name, b.table(pod, attempt))
		}
	}
	return nil
}

func (b *both) table(p *corev1.Pod, a *framework.Attempt) string {
	var fit []*corev1.Node
	var out strings.Builder
	for _, n := range a.Feasible {
		fit = append(fit, n.Node)
		fmt.Fprintf(&out, " %s", n.Name)
	}
	want, _ := b.plain.Scores(p, fit)
	for i, w := range a.ScoredBy {
		fmt.Fprintf(&out, "\n%s: got %v (raw %v), want %v", w.Name, a.Scores[i], a.Raw[i],
			want[w.Name])
	}
	return out.String()
}
