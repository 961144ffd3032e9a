// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	podfacts "keelson/api/core/pod"
	"keelson/cluster/clustertest"
)

// TestMain keeps client-go from telling of all the faults.
func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// usualSeeds run where nobody asks for more: about twenty seconds of one core.
const usualSeeds = 40

// TestConverge: whatever users did and whatever broke meanwhile, the cluster becomes what its objects say.
func TestConverge(t *testing.T) {
	first, n := uint64(1), usualSeeds
	if s := os.Getenv("CONVERGE_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, n = seed, 1
	}
	if s := os.Getenv("CONVERGE_SEEDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		n = min(n, 10)
	}
	var next atomic.Uint64
	next.Store(first)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed >= first+uint64(n) {
					return
				}
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
				})
			}
		})
	}
	all.Wait()
}

// simulate is one history.
func simulate(t *testing.T, seed uint64) {
	f := newFaults(seed)
	crashed := make(chan string, 1000)
	f.crash = func(part string) {
		select {
		case crashed <- part:
		default: // it has been told a thousand times
		}
	}
	c := clustertest.Start(t, clustertest.Config{Controllers: []string{"*"}, Nodes: nodeCount, Between: f.between})
	u := &users{c: c, rng: rand.New(rand.NewPCG(seed, 1)), made: map[string]kind{}, silent: map[string]bool{}, kinds: served(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex // guards broken
	var broken []string
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	looking.Go(func() {
		identities(ctx, c, f.takeRemoved, func(s string) {
			mu.Lock()
			defer mu.Unlock()
			broken = append(broken, s)
		})
	})
	fail := func(what string, list []string) {
		t.Errorf("seed %d: %s:\n  %s\nhistory:\n  %s", seed, what, strings.Join(list, "\n  "), strings.Join(u.log, "\n  "))
	}

	f.touch = func(ctx context.Context, path string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, f.roll(1_000_000))
		_ = c.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body(patch).Do(ctx).Error() // gone, or the API server is dead
	}
	f.on.Store(true)
	for range 12 + u.rng.IntN(12) {
		disturb(t, c, f, u)
		err := u.act(ctx)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(u.log, "\n"))
		}
		wait := time.Duration(u.rng.IntN(6000)) * time.Millisecond
		if u.rng.IntN(12) == 0 {
			wait = time.Duration(u.rng.IntN(400)) * time.Second // long enough for node loss
		}
		time.Sleep(wait)
		restart(t, c, f, u, crashed)
	}
	f.on.Store(false)
	u.say("the faults stop")
	restart(t, c, f, u, crashed)
	err := u.wake(ctx)
	if err == nil {
		err = u.uncordon(ctx)
	}
	if err == nil {
		err = u.setQuota(ctx, 1000)
	}
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	left := converged(t, c, 30*time.Minute, func() { restart(t, c, f, u, crashed) })
	if len(left) > 0 {
		fail("not converged within 30 minutes", append(left, describe(t, c)...))
		return
	}
	calm(t, c, u, fail)
	mu.Lock()
	defer mu.Unlock()
	if len(broken) > 0 {
		fail("an identity was given twice", broken)
	}
}

// converged waits until the cluster is as its objects say, and returns what is still wrong after d.
func converged(t *testing.T, c *clustertest.Cluster, d time.Duration, meanwhile func()) (left []string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Second) {
		meanwhile()
		var err error
		if left, err = wrongs(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 || time.Since(begin) > d {
			return left
		}
	}
}

// describe tells what there is, for whoever looks for the reason of a failure.
func describe(t *testing.T, c *clustertest.Cluster) (out []string) {
	t.Helper()
	nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		line := "node " + n.Name
		for _, cond := range n.Status.Conditions {
			line += fmt.Sprintf(" %s=%s", cond.Type, cond.Status)
		}
		out = append(out, fmt.Sprintf("%s taints %v unschedulable %t", line, n.Spec.Taints, n.Spec.Unschedulable))
	}
	pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		line := fmt.Sprintf("pod %s on %s is %s, deleted %v:", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp)
		for _, cond := range p.Status.Conditions {
			line += fmt.Sprintf(" %s=%s %s", cond.Type, cond.Status, cond.Message)
		}
		out = append(out, line)
	}
	return out
}

// disturb has a part crash soon, or the API server now, sometimes.
func disturb(t *testing.T, c *clustertest.Cluster, f *faults, u *users) {
	t.Helper()
	if u.rng.IntN(4) == 0 {
		part := []string{clustertest.Controllers, clustertest.Controllers, clustertest.Scheduler, clustertest.Nodes}[u.rng.IntN(4)]
		f.mu.Lock()
		f.left[part] = u.rng.IntN(12)
		f.mu.Unlock()
	}
	if u.rng.IntN(25) == 0 {
		u.say("the API server is killed")
		if err := c.Kill(clustertest.APIServer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(u.rng.IntN(5000)) * time.Millisecond)
		if err := c.Restart(clustertest.APIServer); err != nil {
			t.Fatal(err)
		}
	}
}

// served are the kinds that take part: those of CONVERGE_KINDS (deployments,jobs,...), or all.
func served(t *testing.T) []kind {
	t.Helper()
	asked := os.Getenv("CONVERGE_KINDS")
	if asked == "" || asked == "all" {
		return kinds
	}
	var out []kind
	for _, k := range kinds {
		if slices.Contains(strings.Split(asked, ","), k.resource) {
			out = append(out, k)
		}
	}
	if len(out) == 0 {
		t.Fatalf("CONVERGE_KINDS=%s names no kind that is simulated", asked)
	}
	return out
}

// restart brings back the parts that have crashed.
func restart(t *testing.T, c *clustertest.Cluster, f *faults, u *users, crashed <-chan string) {
	t.Helper()
	parts := map[string]bool{}
	for len(crashed) > 0 {
		parts[<-crashed] = true
	}
	for _, part := range []string{clustertest.Nodes, clustertest.Scheduler, clustertest.Controllers} {
		if !parts[part] {
			continue
		}
		u.say("%s crashed, and starts again", part)
		if err := c.Kill(part); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		delete(f.dead, part)
		delete(f.left, part)
		f.mu.Unlock()
		for tries := 0; ; tries++ {
			err := c.Restart(part)
			if err == nil {
				break
			}
			if tries == 20 {
				t.Fatalf("%s does not start: %v", part, err)
			}
		}
	}
}

// calm drains one node after the other while nothing else happens: no budget is broken, and the cluster converges again.
func calm(t *testing.T, c *clustertest.Cluster, u *users, fail func(string, []string)) {
	ctx := t.Context()
	budgets, err := c.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(budgets.Items) == 0 {
		return
	}
	u.say("calm: nodes are drained in turn")
	var broken []string
	stop := watchBudgets(t, c, budgets.Items, func(s string) { broken = append(broken, s) })
	for i := range nodeCount {
		node := fmt.Sprintf("node-%d", i)
		if err := u.cordon(ctx, node, true); err != nil {
			t.Fatal(err)
		}
		for tries := 0; tries < 20; tries++ {
			left, err := u.evictAll(ctx, node)
			if err != nil {
				t.Fatal(err)
			}
			if left == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		if err := u.cordon(ctx, node, false); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	stop()
	if len(broken) > 0 {
		fail("evictions broke a budget", broken)
	}
	if left := converged(t, c, 5*time.Minute, func() {}); len(left) > 0 {
		fail("not converged after the drain", left)
	}
}

// watchBudgets reports when fewer pods are healthy than a budget wants, if as many were before.
func watchBudgets(t *testing.T, c *clustertest.Cluster, budgets []policyv1.PodDisruptionBudget, wrong func(string)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	w, err := c.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	healthy := map[string]map[string]bool{} // app -> pods
	enough := map[string]bool{}
	done := make(chan struct{})
	go func() { // ends with the watch, which stop ends
		defer close(done)
		for ev := range w.ResultChan() {
			p, ok := ev.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			app := p.Labels["app"]
			if healthy[app] == nil {
				healthy[app] = map[string]bool{}
			}
			delete(healthy[app], p.Name)
			if ev.Type != "DELETED" && p.DeletionTimestamp == nil && podfacts.Ready(p) {
				healthy[app][p.Name] = true
			}
			for i := range budgets {
				b := &budgets[i]
				least := b.Spec.MinAvailable.IntValue()
				if b.Name != app {
					continue
				}
				if len(healthy[app]) >= least {
					enough[app] = true
				} else if enough[app] {
					enough[app] = false
					wrong(fmt.Sprintf("%s: %d of %s are healthy, its budget wants %d: pod %s", time.Now().UTC().Format("15:04:05.000"), len(healthy[app]), app, least, p.Name))
				}
			}
		}
	}()
	return func() {
		cancel()
		w.Stop()
		<-done
	}
}
