// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"keelson/cluster/clustertest"
	"keelson/event"
)

// TestMain keeps client-go from logging all the faults, and the garbage collector from working for every cluster
// that ends.
func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}

// usualSeeds run where no one asks for more: about twenty seconds of one core.
const usualSeeds = 40

// seeds are those that CONVERGE_SEED and CONVERGE_SEEDS ask for: 123, 1001-11000, or how many.
func seeds(t *testing.T) (first, last uint64) {
	t.Helper()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("CONVERGE_SEED and CONVERGE_SEEDS are numbers, the latter also a range such as 1001-2000: %v", err)
		}
		return n
	}
	first = 1
	last = usualSeeds
	if s := os.Getenv("CONVERGE_SEED"); s != "" {
		first = number(s)
		last = first
	}
	s := os.Getenv("CONVERGE_SEEDS")
	from, to, isRange := strings.Cut(s, "-")
	switch {
	case isRange:
		first = number(from)
		last = number(to)
	case s != "":
		last = first + number(s) - 1
	case testing.Short():
		last = min(last, first+9)
	}
	return first, last
}

// TestConverge: whatever users did and whatever broke meanwhile, the cluster becomes what its objects say.
func TestConverge(t *testing.T) {
	first, last := seeds(t)
	kinds := served(t)
	var next atomic.Uint64
	next.Store(first)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed > last {
					return
				}
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					h := &history{seed: seed, kinds: kinds, patience: 30 * time.Minute}
					for _, what := range h.run(t) {
						t.Errorf("seed %d: %s\nhistory:\n  %s\n%s", seed, what, h.u.history(), again(seed))
					}
				})
			}
		})
	}
	all.Wait()
}

// again says how to run a seed once more.
func again(seed uint64) string {
	return fmt.Sprintf("again: CONVERGE_SEED=%d go test -run 'TestConverge$' -count 20 ./cluster/clustertest/converge",
		seed)
}

// history is what users and faults do to one cluster.
type history struct {
	seed  uint64
	kinds []kind
	// mutate makes the parts do something wrong; nil: they do what they do.
	mutate mutation
	// actions are what users do, without faults, in place of random actions; nil: actions are random,
	// and faults happen.
	actions actions
	// patience is how long the cluster has to converge.
	patience time.Duration

	c       *clustertest.Cluster
	f       *faults
	u       *users
	crashed chan string
}

// run returns what went wrong.
func (h *history) run(t *testing.T) (wrong []string) {
	h.u = &users{
		rng:    rand.New(rand.NewPCG(h.seed, 1)),
		made:   map[string]kind{},
		silent: map[string]bool{},
		absent: map[string]bool{},
		kinds:  h.kinds,
	}
	within(t, h.seed, h.u.history, func(t *testing.T) { wrong = h.simulate(t) })
	return wrong
}

// idleControllers have nothing to do with what is simulated. Each costs an informer and a client whenever the
// controllers start.
var idleControllers = []string{
	"*", "-bootstrap-signer-controller", "-token-cleaner-controller", "-certificatesigningrequest-approving-controller",
	"-certificatesigningrequest-signing-controller", "-certificatesigningrequest-cleaner-controller",
	"-clusterrole-aggregation-controller",
	"-endpoints-controller", "-endpointslice-controller", "-endpointslice-mirroring-controller",
	"-service-cidr-controller",
	"-serviceaccount-token-controller", "-root-ca-certificate-publisher-controller", "-namespace-controller",
	"-ephemeral-volume-controller",
	"-persistentvolume-expander-controller", "-volumeattributesclass-protection-controller",
	"-storage-version-migrator-controller",
	"-validatingadmissionpolicy-status-controller", "-ttl-controller", "-resourceclaim-controller",
	"-device-taint-eviction-controller",
}

func (h *history) simulate(t *testing.T) []string {
	h.begin(t)
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	looking.Go(func() { h.f.laws.watch(ctx, h.c) })

	if err := h.trouble(ctx, t); err != nil {
		return []string{err.Error()}
	}
	h.f.on.Store(false)
	for _, part := range []string{
		clustertest.APIServer, clustertest.Controllers, clustertest.Scheduler, clustertest.Nodes,
	} {
		if !h.f.isDead(part) {
			h.f.disarm(part)
		}
	}
	h.u.say("the faults stop")
	h.restart(t)
	if err := h.mend(ctx, t); err != nil {
		return []string{err.Error()}
	}
	if left := h.converged(t, h.patience); len(left) > 0 {
		return append([]string{"not converged within " + h.patience.String() + ":\n  " + strings.Join(
			append(left, describe(t, h.c)...), "\n  ")}, h.f.laws.found()...)
	}
	wrong := h.calm(t)
	synctest.Wait()
	return append(wrong, h.f.laws.found()...)
}

// trouble is what users do, and what breaks meanwhile.
func (h *history) trouble(ctx context.Context, t *testing.T) error {
	if h.actions != nil {
		for _, do := range h.actions {
			if err := do(ctx, h.u); err != nil {
				return err
			}
			time.Sleep(20 * time.Second)
		}
		return nil
	}
	h.f.on.Store(true)
	for range 12 + h.u.rng.IntN(12) {
		h.disturb(t)
		if err := h.u.act(ctx); err != nil {
			return err
		}
		wait := time.Duration(h.u.rng.IntN(6000)) * time.Millisecond
		if h.u.rng.IntN(12) == 0 {
			wait = time.Duration(h.u.rng.IntN(400)) * time.Second // long enough for node loss
		}
		h.pass(wait)
		h.restart(t)
	}
	return nil
}

// begin starts the cluster.
func (h *history) begin(t *testing.T) {
	h.crashed = make(chan string, 1000)
	h.f = newFaults(h.seed)
	h.f.mutate = h.mutate
	h.f.say = h.u.say
	h.f.crash = func(part string) {
		if part != clustertest.Nodes && part != clustertest.Scheduler {
			h.f.laws.deaf(true)
		}
		select {
		case h.crashed <- part:
		default: // it has been notified a thousand times
		}
	}
	var cluster *clustertest.Cluster
	h.f.cut = func() { cluster.Cut() }
	cluster = clustertest.Start(t, clustertest.Config{
		Controllers: idleControllers,
		Nodes:       nodeCount,
		Between:     h.f.between,
		Marks:       []event.Listener{h.f.marked},
	})
	h.c = cluster
	h.u.c = cluster
	h.u.laws = h.f.laws
	h.f.touch = func(ctx context.Context, path string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, h.f.roll(1_000_000))
		// gone, or the API server is dead
		_ = cluster.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body(patch).Do(ctx).Error()
	}
	if _, err := cluster.StorageV1().StorageClasses().Create(t.Context(), volumeClass(),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// repair brings back what users have broken, so that everything can become as it should be.
func (h *history) mend(ctx context.Context, t *testing.T) error {
	if err := h.u.wake(ctx); err != nil {
		return err
	}
	h.bringBack(t)
	return errors.Join(h.u.uncordon(ctx), h.u.setQuota(ctx, 1000), h.u.suspendAll(ctx))
}

// bringBack has the nodes register whose objects were deleted.
func (h *history) bringBack(t *testing.T) {
	if len(h.u.absent) == 0 {
		return
	}
	h.f.crash(clustertest.Nodes)
	h.restart(t)
	clear(h.u.absent)
}

// pass lets time go by. The API server may die meanwhile, when no user wants anything of it.
func (h *history) pass(d time.Duration) {
	if h.u.rng.IntN(25) == 0 {
		h.f.arm(clustertest.APIServer, true, h.u.rng.IntN(40))
	}
	time.Sleep(d)
	h.f.disarmMarks(clustertest.APIServer)
}

// converged waits until the cluster is as its objects say, and returns what is still wrong after d.
func (h *history) converged(t *testing.T, d time.Duration) (left []string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Second) {
		h.restart(t)
		var err error
		if left, err = wrongs(t.Context(), h.c, h.f.laws, h.actions != nil); err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 || time.Since(begin) > d {
			return left
		}
	}
}

// disturb has a part crash soon, sometimes: after so many writes, or at a event.
func (h *history) disturb(t *testing.T) {
	t.Helper()
	if h.u.rng.IntN(4) == 0 {
		part := []string{
			clustertest.Controllers, clustertest.Controllers, clustertest.Scheduler, clustertest.Nodes,
		}[h.u.rng.IntN(4)]
		h.f.arm(part, h.u.rng.IntN(2) == 0, h.u.rng.IntN(12))
	}
	if h.u.rng.IntN(8) == 0 {
		h.bringBack(t)
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
func (h *history) restart(t *testing.T) {
	t.Helper()
	parts := map[string]bool{}
	for len(h.crashed) > 0 {
		parts[<-h.crashed] = true
	}
	for _, part := range []string{
		clustertest.APIServer, clustertest.Nodes, clustertest.Scheduler, clustertest.Controllers,
	} {
		if !parts[part] {
			continue
		}
		h.u.say("%s crashed, and starts again", part)
		if err := h.c.Kill(part); err != nil {
			t.Fatal(err)
		}
		h.f.disarm(part)
		for tries := 0; ; tries++ {
			err := h.c.Restart(part)
			if err == nil {
				break
			}
			if tries == 20 {
				t.Fatalf("%s does not start: %v", part, err)
			}
		}
		switch part {
		case clustertest.Nodes:
			h.f.laws.note(func() { clear(h.f.laws.lost) })
			clear(h.u.absent)
		case clustertest.Controllers, clustertest.APIServer:
			h.f.laws.deaf(false)
		}
	}
}

// calm drains one node after the other while nothing else happens, and the cluster converges again.
func (h *history) calm(t *testing.T) []string {
	ctx := t.Context()
	budgets, err := h.c.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(budgets.Items) == 0 {
		return nil
	}
	h.u.say("calm: nodes are drained in turn")
	for i := range nodeCount {
		node := fmt.Sprintf("node-%d", i)
		if err := h.u.cordon(ctx, node, true); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			left, err := h.u.evictAll(ctx, node)
			if err != nil {
				t.Fatal(err)
			}
			if left == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		if err := h.u.cordon(ctx, node, false); err != nil {
			t.Fatal(err)
		}
	}
	if left := h.converged(t, 10*time.Minute); len(left) > 0 {
		return []string{"not converged after the drain:\n  " + strings.Join(left, "\n  ")}
	}
	return nil
}
