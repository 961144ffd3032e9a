// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/event"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/holdback"
	"keelson/kubelet/image"
	"keelson/kubelet/metrics"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/refs"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/userns"
	"keelson/kubelet/volume"
	"keelson/lib/signal"
)

// Env is what all workers of a node share. It is read-only once the first worker runs.
type Env struct {
	Component   string // for marks: "kubelet node-1"
	API         kubernetes.Interface
	Runtime     runtimeapi.RuntimeServiceClient
	RuntimeName string
	Images      *image.Manager
	Volumes     *volume.Manager
	Devices     *dra.Manager          // of claims; nil: there are none
	Plugins     *deviceplugin.Manager // nil: there are none
	Users       *userns.Manager
	Cgroups     *podcgroup.Manager
	Refs        *refs.Store
	Probes      *probe.Manager
	Starts      *holdback.Keeper // nil: no start is held back
	Prober      *probe.Runner    // sends the requests of httpGet hooks
	Events      record.EventRecorder
	Marks       *event.Recorder
	Metrics     *metrics.Metrics
	Log         *slog.Logger

	Hostname      string
	HostIPs       []string
	MemoryBytes   int64
	LogDir        string
	SeccompDir    string // of Localhost profiles
	ClusterDomain string
	ClusterDNS    []string
	// StatusBatchPeriod is how long a status may be held back while further changes are expected soon, so that one
	// write tells of all.
	StatusBatchPeriod time.Duration
	ResolvConf        string // the node's file; empty: /etc/resolv.conf or what it stands for (translate.HostDNS)
	HostsFile         string // the node's file

	// Services are the services whose variables a pod of the namespace sees.
	Services func(namespace string) []*corev1.Service
	// Allocatable is what the node can give to pods.
	Allocatable func() corev1.ResourceList
	// Admit decides whether a pod may run on the node. end: it may not. room: other pods are being preempted for it;
	// each channel is closed when one of them has gone, and when all are closed Admit is asked again. Neither: it may.
	Admit func(*corev1.Pod) (end *End, room []<-chan struct{})
	// Resize says why the node cannot give a running pod what it asks for now; nil: it can, and counts it.
	Resize func(*corev1.Pod) *Refusal
	// Adopt counts in a pod that was admitted before the kubelet was restarted.
	Adopt func(*corev1.Pod)
	// Handler is the runtime handler of a runtime class.
	Handler func(ctx context.Context, class string) (string, error)
	// Node is the node as events name it.
	Node func() *corev1.ObjectReference
}

// Worker owns one pod from its first sight to its last trace.
type Worker struct {
	env  *Env
	uid  string
	wake signal.Signal

	mu       sync.Mutex
	pod      *corev1.Pod // as wanted; immutable
	mirror   *corev1.Pod // the mirror pod of a static pod; nil when the API has none
	static   bool
	gone     bool
	stale    bool // the pod changed in the runtime
	refsNews bool // an object it refers to has changed
	nodeNews bool // the runtime changed as a whole
	ended    []result
	evict    *eviction
	// published is what the loop last saw, for others to read.
	published *runtimestate.Pod

	s   state // the loop's own
	ops sync.WaitGroup
}

// result is an action that ended. apply runs on the loop.
type result struct {
	key   string
	apply func()
}

// eviction is the end that the kubelet (pressure on the node, preemption) has decided for the pod.
type eviction struct {
	end  End
	over chan struct{} // closed when nothing of the pod runs and its volumes are gone
	done bool
}

// state belongs to the worker's goroutine.
type state struct {
	seen    *runtimestate.Pod
	flights map[string]Flight
	cancels map[string]context.CancelFunc
	failed  map[string]Failed
	tries   map[string]int
	crashes map[string]Crash
	resized map[string]string
	limits  *podcgroup.Limits // of the pod's cgroup, as last set; nil: unknown
	// ending has the containers whose end has begun, by id.
	ending     map[string]stopping
	waitReason map[string]string // why a container waits, as last recorded in an event
	messages   map[string]string // termination messages by container id
	exits      map[string]bool   // exits that were marked
	end        *End
	admitted   bool
	recalled   bool          // what an earlier run of the kubelet knew is taken over
	room       chan struct{} // closed when all pods that are preempted for this one have gone; nil: none is
	first      time.Time
	volumes    bool      // set up at least once
	volDirt    bool      // what volumes show has changed
	refresh    time.Time // of tokens
	tornDown   bool
	deleted    bool
	forgotten  bool // the pod's last traces are removed: the worker ends
	heldSince  time.Time
	ips        []string                           // of the last sandbox that was ready
	health     map[string][]corev1.ResourceStatus // of devices, by container, as last known
	labels     string                             // what the downward API last showed
	readErr    int

	starting  bool      // has entered Env.Starts
	held      bool      // Env.Starts holds it back
	heldUntil time.Time // of the hold that was last announced

	resizeDenied     *Refusal
	deniedGeneration int64     // the pod's generation whose resize was denied
	retryAt          time.Time // when a denied resize is tried again
}

// New returns a worker for a pod. seen is when the kubelet first observed it.
func New(env *Env, p *corev1.Pod, seen time.Time) *Worker {
	return &Worker{
		env:    env,
		uid:    string(p.UID),
		wake:   signal.New(),
		pod:    p,
		stale:  true,
		static: podinfo.Static(p),
		s: state{
			flights:    map[string]Flight{},
			cancels:    map[string]context.CancelFunc{},
			failed:     map[string]Failed{},
			tries:      map[string]int{},
			crashes:    map[string]Crash{},
			resized:    map[string]string{},
			ending:     map[string]stopping{},
			waitReason: map[string]string{},
			messages:   map[string]string{},
			exits:      map[string]bool{},
			first:      seen,
			health:     map[string][]corev1.ResourceStatus{},
		},
	}
}

// Wake makes the worker look again.
func (w *Worker) Wake() {
	w.wake.Notify()
}

// Update passes a newer version of the pod to the worker.
func (w *Worker) Update(p *corev1.Pod) {
	w.mu.Lock()
	if newer(p, w.pod) {
		w.pod = p
	}
	w.mu.Unlock()
	w.Wake()
}

// Mirror passes the mirror pod of a static pod to the worker.
func (w *Worker) Mirror(p *corev1.Pod) {
	w.mu.Lock()
	if w.mirror == nil || p.UID != w.mirror.UID || newer(p, w.mirror) {
		w.mirror = p
	}
	w.mu.Unlock()
	w.Wake()
}

// MirrorGone notifies the worker that the mirror pod with this uid was deleted.
func (w *Worker) MirrorGone(uid types.UID) {
	w.mu.Lock()
	if w.mirror != nil && w.mirror.UID == uid {
		w.mirror = nil
	}
	w.mu.Unlock()
	w.Wake()
}

// Gone notifies the worker that neither the API nor a file has the pod any more.
func (w *Worker) Gone() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.Wake()
}

// IsGone reports whether neither the API nor a file has the pod any more. Its containers may still be stopping.
func (w *Worker) IsGone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// Evict ends the pod with a verdict. The channel is closed when nothing of it runs and its volumes are gone. A pod that
// was evicted before keeps its verdict, and one that has ended is not evicted: nil.
func (w *Worker) Evict(end End) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evict != nil || w.gone || podkind.TerminalPhase(w.baseLocked().Status.Phase) {
		return nil
	}
	w.evict = &eviction{end: end, over: make(chan struct{})}
	w.Wake()
	return w.evict.over
}

// Leaving is closed when nothing of the evicted pod is left on the node; nil: it was not evicted, or nothing is left
// already.
func (w *Worker) Leaving() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evict == nil || w.evict.done {
		return nil
	}
	return w.evict.over
}

// Left reports whether the pod was evicted and nothing of it is left on the node, whatever phase the API server still
// shows.
func (w *Worker) Left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evict != nil && w.evict.done
}

// evicted returns the verdict of an eviction; nil: none.
func (w *Worker) evicted() *End {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evict == nil {
		return nil
	}
	return &w.evict.end
}

// evictionOver notifies the callers of Evict that the eviction is complete.
func (w *Worker) evictionOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evict != nil && !w.evict.done {
		w.evict.done = true
		close(w.evict.over)
	}
}

// Stale notifies the worker that the pod has changed in the runtime.
func (w *Worker) Stale() {
	w.mu.Lock()
	w.stale = true
	w.mu.Unlock()
	w.Wake()
}

// NodeChanged notifies the worker of a runtime change that concerns no single pod. A failed sandbox is then retried at
// once.
func (w *Worker) NodeChanged() {
	w.mu.Lock()
	w.nodeNews = true
	w.mu.Unlock()
	w.Stale()
}

// RefsChanged notifies the worker that a config map or secret of the pod has changed.
func (w *Worker) RefsChanged() {
	w.mu.Lock()
	w.refsNews = true
	w.mu.Unlock()
	w.Wake()
}

// Pod returns the last observed pod with the status last written. It is shared: never modify it.
func (w *Worker) Pod() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.baseLocked()
}

// EachRunning calls f with every container of the pod that ran when the worker last looked.
func (w *Worker) EachRunning(f func(*runtimestate.Container)) {
	seen := w.Observed()
	if seen == nil {
		return
	}
	for i := range seen.Containers {
		if c := &seen.Containers[i]; c.Running() {
			f(c)
		}
	}
}

// Observed returns the pod as the runtime last reported it; nil: it was not asked yet. It is shared: never modify it.
func (w *Worker) Observed() *runtimestate.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published
}

// baseLocked is the pod with the API's status: that of its mirror pod for a static pod.
func (w *Worker) baseLocked() *corev1.Pod {
	if !w.static || w.mirror == nil {
		return w.pod
	}
	p := *w.pod
	p.Status = w.mirror.Status
	return &p
}

// newer reports whether a is not an older version of the same pod than b.
func newer(a, b *corev1.Pod) bool {
	if b == nil || a.UID != b.UID {
		return true
	}
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX != nil || errY != nil || x >= y
}

// Run looks after the pod until nothing of it is left or ctx is done; containers keep running in the second case. It
// reports whether nothing is left.
func (w *Worker) Run(ctx context.Context) (gone bool) {
	defer w.leaveUnfinished() // after the actions have ended
	defer w.ops.Wait()
	opctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	w.markSeen()
	for create := true; ; create = false {
		begin := time.Now()
		next := w.step(opctx)
		w.env.Metrics.PodStep(create, time.Since(begin))
		if w.s.forgotten {
			w.evictionOver()
			w.ops.Wait() // a mirror's deletion may be under way
			return true
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.wake.C():
		case <-timer.C:
		}
	}
}

// launch runs an action beside the loop. work returns what the loop then applies.
func (w *Worker) launch(ctx context.Context, a Action, work func(ctx context.Context) func()) {
	key := a.Key()
	octx, cancel := context.WithCancel(ctx)
	w.s.flights[key] = Flight{Action: a, Began: time.Now()}
	w.s.cancels[key] = cancel
	w.ops.Go(func() {
		apply := work(octx) // its context ends once the loop has applied it
		w.mu.Lock()
		w.ended = append(w.ended, result{key, apply})
		w.stale = true
		w.mu.Unlock()
		w.Wake()
	})
}

func (w *Worker) subject() event.Subject {
	p := w.pod
	return event.Subject{
		Resource:  "pods",
		Namespace: p.Namespace,
		Name:      p.Name,
		UID:       w.uid,
	}
}

func (w *Worker) mark(step event.Step, begin time.Time, err error, detail any) {
	mk := event.Event{
		Step:      step,
		Component: w.env.Component,
		At:        begin,
		Took:      time.Since(begin),
		Subject:   w.markSubject(),
		Detail:    detail,
	}
	if err != nil {
		mk.Err = err.Error()
	}
	w.env.Marks.Emit(mk)
}

func (w *Worker) markSubject() event.Subject {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.subject()
}

// markSeen sends the mark of a pod from the API. The reader of the file marks a static pod.
func (w *Worker) markSeen() {
	if w.static {
		return
	}
	w.env.Marks.Emit(event.Event{
		Step:      event.StepSeen,
		Component: w.env.Component,
		At:        w.s.first,
		Subject:   w.markSubject(),
		Detail:    &event.Seen{Source: "api"},
	})
}
