// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"keelson/client"
	"keelson/cluster"
	"keelson/event"
	"keelson/lib/memory"
	"keelson/lib/run"
)

// SchedulingConfig selects and scales the scheduler's workloads.
type SchedulingConfig struct {
	Workloads []string // by name; none: all
	Scale     float64  // factor for the numbers of nodes and pods; 1: unchanged
	JSON      bool
	History   string    // as in Config
	Profile   io.Writer // receives a CPU profile of the measured part of one workload; nil: none
}

// Scheduled holds the figures of one workload.
type Scheduled struct {
	Workload string  `json:"workload"`
	Nodes    int     `json:"nodes"`
	Before   int     `json:"before"` // pods created before the measurement
	Pods     int     `json:"pods"`   // measured
	Rate     float64 `json:"podsPerSecond"`
	Floor    float64 `json:"floor"`  // the threshold of Kubernetes' scheduler_perf, on larger machines
	Target   float64 `json:"target"` // Keelson's budget
	// Latencies of all attempts during the measurement; Attempts is their number per measured pod.
	P50      time.Duration `json:"attemptP50"`
	P99      time.Duration `json:"attemptP99"`
	Attempts float64       `json:"attempts"`
	// Of the whole process, with API server and load, per measured pod.
	Allocs float64       `json:"allocsPerPod"`
	CPU    time.Duration `json:"cpuPerPod"`
	// StateMB is the memory that is freed when the scheduler ends, with its informers.
	StateMB float64 `json:"stateMB"`
	// First is the time from the start of the scheduler to its first decision when all pods but one are bound; 0: not
	// measured.
	First time.Duration `json:"firstDecision,omitempty"`
}

// results are the figures of a history.
func (s *Scheduled) results() []Result {
	figure := func(name string, value float64, unit string) Result {
		of := fmt.Sprintf("%s, %d pods on %d nodes with %d before", s.Workload, s.Pods, s.Nodes, s.Before)
		return Result{Scenario: "scheduler", Figure: of + name, Value: value, Unit: unit}
	}
	if s.First > 0 {
		return []Result{figure(": start to first decision", ms(s.First), "ms"), figure(": state", s.StateMB, "MB")}
	}
	rate := figure("", s.Rate, "pods/s")
	rate.Limit = s.Target
	rate.Higher = true
	return []Result{rate, figure(": attempt, p99", ms(s.P99), "ms"), figure(": processor time a pod", ms(s.CPU), "ms")}
}

// stallLimit is how long a workload may go without progress.
const stallLimit = 2 * time.Minute

// creators is the number of concurrent clients that create objects.
const creators = 128

// RunScheduling measures the scheduler against an API server with a durable store in this process, without kubelets and
// controllers. It prints one line per workload.
func RunScheduling(ctx context.Context, cfg SchedulingConfig, out io.Writer) (err error) {
	history, err := openHistory(cfg.History)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, history.close()) }()
	defer memory.Pace(0)() // the same garbage collector settings as in cluster
	// client-go logs each event that is not written when a workload ends
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var errs []error
	var lines strings.Builder // a screen wraps whole lines, and a table is written in pieces
	table := tabwriter.NewWriter(&lines, 0, 8, 2, ' ', tabwriter.AlignRight)
	flush := func() error {
		_ = table.Flush() // a strings.Builder does not fail
		_, err := io.WriteString(out, lines.String())
		lines.Reset()
		return err
	}
	if !cfg.JSON {
		_, _ = fmt.Fprintln(table,
			"workload\tnodes\tbefore\tpods\tpods/s\tfloor\ttarget\tattempts\tp50\tp99\tallocs/pod\tcpu/pod\tstate\t")
	}
	for _, l := range schedulingLoads {
		if len(cfg.Workloads) > 0 && !slices.Contains(cfg.Workloads, l.name) {
			continue
		}
		scheduled, err := measureWorkload(ctx, l.scaled(cfg.Scale), cfg.Profile)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.name, err))
			continue
		}
		if err := history.add(scheduled.results()); err != nil {
			return err
		}
		if cfg.JSON {
			if err := json.NewEncoder(out).Encode(scheduled); err != nil {
				return err
			}
			continue
		}
		if scheduled.First > 0 {
			_, _ = fmt.Fprintf(out, "%s: %d nodes and %d pods: first decision %s after the start, state %.0f MB\n",
				scheduled.Workload, scheduled.Nodes, scheduled.Before, scheduled.First.Round(time.Millisecond),
				scheduled.StateMB)
			continue
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.1f\t%s\t%s\t%.0f\t%s\t%.0f MB\t\n",
			scheduled.Workload,
			scheduled.Nodes, scheduled.Before, scheduled.Pods, scheduled.Rate, scheduled.Floor, scheduled.Target,
			scheduled.Attempts, scheduled.P50.Round(time.Microsecond), scheduled.P99.Round(time.Microsecond),
			scheduled.Allocs, scheduled.CPU.Round(
				time.Microsecond), scheduled.StateMB)
		if err := flush(); err != nil {
			return err
		}
	}
	return errors.Join(append(errs, flush())...)
}

// SchedulingWorkloads lists the workloads by name.
func SchedulingWorkloads() []string {
	var out []string
	for _, l := range schedulingLoads {
		out = append(out, l.name)
	}
	return out
}

// testbed is an API server with a scheduler, in this process.
type testbed struct {
	*client.Client
	mem *cluster.InMemory
	// Pods with a node, the measured ones among them, pods after a failed attempt, and the measured ones among those.
	bound, measured, refused, measuredRefused atomic.Int64
	// when the last measured pod was counted, in Unix nanoseconds
	last atomic.Int64

	ends []func() error // stop the parts other than the scheduler

	mu       sync.Mutex
	attempts []time.Duration
	first    time.Time // the end of the first attempt since clear
}

func (r *testbed) listen(m event.Event) {
	if m.Step != event.StepDecision {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = append(r.attempts, m.Took)
	if r.first.IsZero() {
		r.first = time.Now()
	}
}

func (r *testbed) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = nil
	r.first = time.Time{}
}

// saw counts a pod once when it is bound, and once when an attempt has failed.
func (r *testbed) saw(before, after *corev1.Pod) {
	if after.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == "") {
		r.bound.Add(1)
		if strings.HasPrefix(after.Name, measuredPods) {
			r.last.Store(time.Now().UnixNano())
			r.measured.Add(1)
		}
	}
	if refused(after) && (before == nil || !refused(before)) {
		r.refused.Add(1)
		if strings.HasPrefix(after.Name, measuredPods) {
			r.last.Store(time.Now().UnixNano())
			r.measuredRefused.Add(1)
		}
	}
}

// measuredPods is the name prefix of measured pods.
const measuredPods = "measured"

func refused(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
	})
}

// withTestbed runs use with an API server over a new store, and stops the server afterwards.
func withTestbed(ctx context.Context, use func(ctx context.Context, r *testbed) error) (err error) {
	dir, err := os.MkdirTemp("", "keelson-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	st, err := cluster.OpenStore(filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	r := &testbed{}
	cfg := cluster.InMemoryConfig{Store: st, Listeners: []event.Listener{r.listen}}
	// As in Kubernetes' scheduler_perf: nodes are ready, priorities are numbers.
	cfg.API.Admission.Disable = []string{"ServiceAccount", "TaintNodesByCondition", "Priority"}
	if r.mem, err = cluster.NewInMemory(cfg); err != nil {
		return err
	}
	end, err := begin(ctx, r.mem.Run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	r.Client = r.mem.Admin("keelson-bench")
	stop, err := r.follow()
	if err != nil {
		return err
	}
	defer stop()
	defer func() {
		for _, end := range r.ends {
			err = errors.Join(err, end())
		}
	}()
	return use(ctx, r)
}

// startPart starts a part that lives as long as the testbed.
func (r *testbed) startPart(ctx context.Context, f run.Func) error {
	end, err := begin(ctx, f)
	if err == nil {
		r.ends = append(r.ends, end)
	}
	return err
}

// begin starts a part and returns when it is ready; end stops it.
func begin(ctx context.Context, f run.Func) (end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- f(ctx, sync.OnceFunc(func() { close(ready) })) }() // ends with ctx; end waits for it
	select {
	case <-ready:
		return func() error {
			cancel()
			return <-ended
		}, nil
	case err := <-ended:
		cancel()
		return nil, errors.Join(errors.New("a part ended before it was ready"), err)
	}
}

// follow counts pods when they are bound.
func (r *testbed) follow() (stop func(), err error) {
	informers := r.Informers(0, client.Scope{})
	done := make(chan struct{})
	_, err = coreinformers.New(informers.Scoped()).Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if p, ok := o.(*corev1.Pod); ok {
				r.saw(nil, p)
			}
		},
		UpdateFunc: func(old, o any) {
			before, _ := old.(*corev1.Pod)
			if p, ok := o.(*corev1.Pod); ok {
				r.saw(before, p)
			}
		},
	})
	informers.Start(done)
	return func() {
		close(done)
		informers.Shutdown()
	}, err
}

// parallel calls create for 0 to n-1 from several goroutines.
func parallel(ctx context.Context, n int, create func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range creators {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := create(ctx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}

// create creates n pods of a shape, with their claims and volumes.
func (r *testbed) create(ctx context.Context, n int, prefix string, shape func(i int) *corev1.Pod) error {
	return parallel(ctx, n, func(ctx context.Context, i int) error {
		p := shape(i)
		p.Name = fmt.Sprintf("%s-%d", prefix, i)
		_, err := r.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// reach waits until a counter reaches want.
func reach(ctx context.Context, what string, count *atomic.Int64, want int64) error {
	last := int64(-1)
	at := time.Now()
	for {
		n := count.Load()
		if n >= want {
			return nil
		}
		if n != last {
			last = n
			at = time.Now()
		}
		if time.Since(at) > stallLimit {
			return fmt.Errorf("%d of %d pods are %s, and for %s there was no other", n, want, what, stallLimit)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// measureWorkload runs one workload on a server of its own.
func measureWorkload(ctx context.Context, l workload, profile io.Writer) (out Scheduled, err error) {
	out = Scheduled{
		Workload: l.name,
		Nodes:    l.nodes,
		Before:   l.before,
		Pods:     l.pods,
		Floor:    l.floor,
		Target:   l.target,
	}
	err = withTestbed(ctx, func(ctx context.Context, r *testbed) (err error) {
		if err := l.prepare(ctx, r); err != nil {
			return err
		}
		if l.restart {
			return l.startsLate(ctx, r, &out)
		}
		end, err := begin(ctx, r.mem.Scheduler(r.mem.Direct))
		if err != nil {
			return err
		}
		end = sync.OnceValue(end)
		defer func() { err = errors.Join(err, end()) }()
		if err := l.initial(ctx, r); err != nil {
			return fmt.Errorf("pods before the measured ones: %w", err)
		}
		if profile != nil {
			if err := pprof.StartCPUProfile(profile); err != nil {
				return err
			}
			defer pprof.StopCPUProfile()
		}
		if err := l.measure(ctx, r, &out); err != nil {
			return err
		}
		pprof.StopCPUProfile()
		with := heap()
		if err := end(); err != nil {
			return err
		}
		out.StateMB = (with - heap()) / 1e6
		return nil
	})
	return out, err
}

// startsLate starts the scheduler when all pods but one are bound.
func (l *workload) startsLate(ctx context.Context, r *testbed, out *Scheduled) error {
	if err := r.create(ctx, l.before, "first", placed(l.nodes)); err != nil {
		return err
	}
	if err := r.create(ctx, l.pods, measuredPods, l.pod); err != nil {
		return err
	}
	r.clear()
	start := time.Now()
	end, err := begin(ctx, r.mem.Scheduler(r.mem.Direct))
	if err != nil {
		return err
	}
	err = reach(ctx, "bound", &r.measured, int64(l.pods))
	with := heap()
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	out.StateMB = (with - heap()) / 1e6
	r.mu.Lock()
	defer r.mu.Unlock()
	out.First = r.first.Sub(start)
	return nil
}

func (l *workload) measure(ctx context.Context, r *testbed, out *Scheduled) error {
	r.clear()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := processorTime()
	begin := time.Now()
	churning, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if l.churn != nil {
		wg.Go(func() { l.churnPods(churning, r) })
	}
	what := "bound"
	counted := &r.measured
	if l.refusals {
		what = "tried"
		counted = &r.measuredRefused
	}
	err := r.create(ctx, l.pods, measuredPods, l.pod)
	if err == nil {
		err = reach(ctx, what, counted, int64(l.pods))
	}
	stop()
	wg.Wait()
	if err != nil {
		return err
	}
	took := time.Unix(0, r.last.Load()).Sub(begin)
	out.CPU = (processorTime() - cpu) / time.Duration(l.pods)
	runtime.ReadMemStats(&after)
	out.Allocs = float64(after.Mallocs-before.Mallocs) / float64(l.pods)
	out.Rate = float64(l.pods) / took.Seconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.attempts)
	if n := len(r.attempts); n > 0 {
		out.P50 = r.attempts[n/2]
		out.P99 = r.attempts[n*99/100]
		out.Attempts = float64(n) / float64(l.pods)
	}
	return nil
}

// churnPods creates five pods per second, as scheduler_perf does.
func (l *workload) churnPods(ctx context.Context, r *testbed) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p := l.churn(i)
			p.Name = fmt.Sprintf("churn-%d", i)
			if _, err := r.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil &&
				ctx.Err() == nil {
				return
			}
		}
	}
}

// heap is the live heap in bytes.
func heap() float64 {
	var m runtime.MemStats
	for range 3 { // finalizers and pools need several collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// processorTime is the CPU time of this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
