// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// fake is a node whose figures a test sets. Evicted pods end after a second.
type fake struct {
	mu      sync.Mutex
	figures Observations
	all     Usages
	one     map[string]Usage
	pods    []*corev1.Pod
	reclaim func()
	failed  string   // the last message that reclaiming did not do
	story   []string // what happened, with the second
	begin   time.Time
	looks   int
	slow    time.Duration // of One
}

func (f *fake) note(format string, args ...any) {
	f.story = append(f.story, fmt.Sprintf("%d ", int(time.Since(f.begin).Seconds()))+fmt.Sprintf(format, args...))
}

func (f *fake) NodeStats(context.Context) (Observations, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	return f.figures, false, nil
}

func (f *fake) PodStats(context.Context, []*corev1.Pod, bool) (Usages, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all, nil
}

func (f *fake) PodDisk(_ context.Context, p *corev1.Pod) (Usage, error) {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.one[p.Name], nil
}

func (f *fake) Pods() []*corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pods)
}

func (f *fake) Critical(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, "critical") }

func (f *fake) ReclaimFailed(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = message
}

func (f *fake) Reclaim(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("reclaim")
	if f.reclaim != nil {
		f.reclaim()
	}
	return nil
}

func (f *fake) Evict(eviction Eviction) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	grace := "own"
	if eviction.Grace != nil {
		grace = fmt.Sprint(*eviction.Grace)
	}
	text, _, _ := strings.Cut(eviction.Message, ". ")
	f.note("evict %s grace %s disruption %t: %s", eviction.Pod.Name, grace, eviction.Disruption, text)
	over := make(chan struct{})
	time.AfterFunc(time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pods = slices.DeleteFunc(f.pods, func(p *corev1.Pod) bool { return p == eviction.Pod })
		close(over)
	})
	return over
}

func (f *fake) EvictionStarting(r corev1.ResourceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("starved of %s", r)
}

func (f *fake) ConditionsChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("conditions changed")
}

// watch runs a manager for as long as script takes, and returns what happened.
func watch(t *testing.T, cfg Config, f *fake, script func(m *Manager)) []string {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.begin = time.Now()
		m, err := New(cfg, f, f, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { m.Run(ctx) })
		script(m)
		cancel()
		wg.Wait()
	})
	return f.story
}

func (f *fake) set(figures Observations) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.figures = figures
}

func diskFigures(available int64) Observations {
	return Observations{NodeFsAvailable: {
		resource.NewQuantity(available, resource.BinarySI), resource.NewQuantity(100, resource.BinarySI),
	}}
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestPressureEvictsOneAfterTheOther(t *testing.T) {
	f := &fake{
		figures: memory(gi),
		pods: []*corev1.Pod{
			pod("critical", "", 0), pod("high", "", 10), pod("low", "", 1), pod("middle", "", 5),
		},
	}
	got := watch(t, Config{}, f, func(m *Manager) {
		time.Sleep(5 * time.Second)
		f.set(memory(50 << 20))
		time.Sleep(6500 * time.Millisecond) // one look at 10 s, one right after the first pod's end
		f.set(memory(gi))
		time.Sleep(time.Minute)
		if c := m.Conditions(); !slices.Equal(c, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
			t.Errorf("conditions within the transition period: %v", c)
		}
		time.Sleep(5 * time.Minute)
		if c := m.Conditions(); len(c) != 0 {
			t.Errorf("conditions after the transition period: %v", c)
		}
	})
	same(t, got, []string{
		"10 conditions changed", "10 starved of memory",
		"10 evict low grace 1 disruption true: The node was low on resource: memory",
		"11 starved of memory", "11 evict middle grace 1 disruption true: The node was low on resource: memory",
		"312 conditions changed",
	})
}

func TestReclaimComesFirst(t *testing.T) {
	f := &fake{figures: diskFigures(5), pods: []*corev1.Pod{pod("a", "", 0)}}
	f.reclaim = func() { f.figures = diskFigures(50) }
	got := watch(t, Config{}, f, func(*Manager) { time.Sleep(15 * time.Second) })
	same(t, got, []string{"0 conditions changed", "0 starved of ephemeral-storage", "0 reclaim"})

	f = &fake{figures: diskFigures(5), pods: []*corev1.Pod{pod("a", "", 0)}}
	f.reclaim = func() { f.figures = diskFigures(11) } // above the threshold, below what is to be reclaimed
	got = watch(t, Config{MinimumReclaim: "nodefs.available=5"}, f, func(*Manager) {
		time.Sleep(500 * time.Millisecond)
	})
	same(t, got, []string{
		"0 conditions changed", "0 starved of ephemeral-storage", "0 reclaim",
		"0 evict a grace 1 disruption true: The node was low on resource: ephemeral-storage",
	})
}

// TestReclaimFails: when unused images were not enough, an event says how full the disk is without them.
func TestReclaimFails(t *testing.T) {
	f := &fake{figures: diskFigures(5), pods: []*corev1.Pod{pod("a", "", 0)}}
	f.reclaim = func() { f.figures = diskFigures(6) }
	watch(t, Config{}, f, func(*Manager) { time.Sleep(500 * time.Millisecond) })
	want := "Insufficient free disk space on the node's image filesystem (94% of 0.0 GiB used). Failed to free " +
		"sufficient space by deleting unused images (freed 1 bytes). "
	if !strings.HasPrefix(f.failed, want) {
		t.Errorf("got %q, want %q...", f.failed, want)
	}
	f = &fake{figures: diskFigures(5), pods: []*corev1.Pod{pod("a", "", 0)}}
	f.reclaim = func() { f.figures = diskFigures(50) }
	watch(t, Config{}, f, func(*Manager) { time.Sleep(500 * time.Millisecond) })
	if f.failed != "" {
		t.Errorf("after enough was freed: got %q", f.failed)
	}
}

func TestSoftThresholdLeavesTime(t *testing.T) {
	for most, grace := range map[int64]string{0: "own", 20: "20"} {
		f := &fake{figures: memory(gi / 2), pods: []*corev1.Pod{pod("a", "", 0)}}
		cfg := Config{Soft: "memory.available<1Gi", SoftGrace: "memory.available=25s", MaxPodGrace: most}
		got := watch(t, cfg, f, func(*Manager) { time.Sleep(30500 * time.Millisecond) })
		same(t, got, []string{
			"0 conditions changed", "30 starved of memory",
			"30 evict a grace " + grace + " disruption true: The node was low on resource: memory",
		})
	}
}

// limited is a pod with an emptyDir volume of 1 MiB at most.
func limited(name string) *corev1.Pod {
	p := pod(name, "", 0)
	p.Spec.Volumes = []corev1.Volume{
		{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))},
			},
		},
	}
	return p
}

func TestLimitsAreKept(t *testing.T) {
	over := Usage{Volumes: map[string]Disk{"v": {Bytes: 2 << 20}}}
	f := &fake{
		figures: memory(gi),
		pods: []*corev1.Pod{
			limited("ok"), limited("over"), limited("critical"), limited("also"), pod("free", "", 0),
		},
		one: map[string]Usage{
			"over":     over,
			"critical": over,
			"also":     over,
			"free":     over,
		},
	}
	got := watch(t, Config{}, f, func(*Manager) { time.Sleep(5 * time.Second) })
	same(t, got, []string{
		`0 evict over grace 1 disruption false: Usage of EmptyDir volume "v" exceeds the limit "1Mi"`,
		`1 evict also grace 1 disruption false: Usage of EmptyDir volume "v" exceeds the limit "1Mi"`,
	})
}

// TestAWalkDoesNotHoldUpPressure: measuring a pod's volumes takes minutes; the node is relieved meanwhile.
func TestAWalkDoesNotHoldUpPressure(t *testing.T) {
	p := pod("hostile", "", 10)
	p.Spec.Volumes = []corev1.Volume{
		{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))},
			},
		},
	}
	f := &fake{figures: memory(gi), pods: []*corev1.Pod{p, pod("low", "", 0)}, slow: 5 * time.Minute}
	got := watch(t, Config{}, f, func(*Manager) {
		time.Sleep(5 * time.Second)
		f.set(memory(50 << 20))
		time.Sleep(5500 * time.Millisecond)
	})
	same(t, got, []string{"10 conditions changed", "10 starved of memory", "10 evict low grace 1 disruption true: " +
		"The node was low on resource: memory"})
}

// TestQuietWithoutPods: an empty node is looked at once a minute, one with pods every ten seconds from its first pod
// on.
func TestQuietWithoutPods(t *testing.T) {
	f := &fake{figures: memory(gi)}
	watch(t, Config{}, f, func(m *Manager) {
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if f.looks != 11 {
			t.Errorf("looked %d times in ten minutes at a node without pods, want 11", f.looks)
		}
		f.mu.Lock()
		f.pods = []*corev1.Pod{pod("a", "", 0)}
		f.mu.Unlock()
		m.Wake()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if f.looks != 14 {
			t.Errorf("looked %d times in 30 s at a node with a pod, want 3", f.looks-11)
		}
	})
}

// TestNewPodsDoNotPutOffARound: a node that gets a pod every few seconds is protected like any other.
func TestNewPodsDoNotPutOffARound(t *testing.T) {
	f := &fake{
		figures: memory(gi),
		pods:    []*corev1.Pod{limited("critical"), limited("over"), pod("low", "", 0)},
		one:     map[string]Usage{},
	}
	got := watch(t, Config{}, f, func(manager *Manager) {
		time.Sleep(time.Second)
		f.mu.Lock()
		f.one["over"] = Usage{Volumes: map[string]Disk{"v": {Bytes: 2 << 20}}}
		f.mu.Unlock()
		for range 16 {
			time.Sleep(900 * time.Millisecond)
			manager.Wake()
		}
		f.set(memory(50 << 20))
		for range 8 {
			time.Sleep(900 * time.Millisecond)
			manager.Wake()
		}
	})
	same(t, got, []string{
		`10 evict over grace 1 disruption false: Usage of EmptyDir volume "v" exceeds the limit "1Mi"`,
		"20 conditions changed", "20 starved of memory",
		"20 evict low grace 1 disruption true: The node was low on resource: memory",
		"21 starved of memory",
	})
}

// TestNothingIsMeasuredWithoutLimits: while no pod has a limit, only a new pod makes the manager go through them.
func TestNothingIsMeasuredWithoutLimits(t *testing.T) {
	f := &fake{
		figures: memory(gi),
		pods:    []*corev1.Pod{pod("free", "", 0)},
		one: map[string]Usage{
			"over": {Volumes: map[string]Disk{"v": {Bytes: 2 << 20}}},
		},
	}
	got := watch(t, Config{}, f, func(m *Manager) {
		if d := m.limitsInterval(f.Pods()); d != noLimitsInterval {
			t.Errorf("the pause without limits is %s, want %s", d, noLimitsInterval)
		}
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		f.pods = append(f.pods, limited("over"))
		f.mu.Unlock()
		m.Wake()
		time.Sleep(11 * time.Second)
	})
	same(t, got,
		[]string{`610 evict over grace 1 disruption false: Usage of EmptyDir volume "v" exceeds the limit "1Mi"`})
}
