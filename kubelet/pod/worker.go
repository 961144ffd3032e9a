// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/event"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/holdback"
	"keelson/kubelet/image"
	"keelson/kubelet/metrics"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/probe"
	"keelson/kubelet/refs"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
	"keelson/kubelet/userns"
	"keelson/kubelet/volume"
	"keelson/lib/signal"
)

// Env is what all workers of a node share. It is read-only.
type Env struct {
	Providers
	Site

	Component   string // for marks: "kubelet node-1"
	API         client.Interface
	Runtime     runtimeapi.RuntimeServiceClient
	RuntimeName string
	Admission   Admission
	Probes      *probe.Manager
	Starts      *holdback.Keeper // nil: no start is held back
	Prober      *probe.Runner    // sends the requests of httpGet hooks
	Events      record.EventRecorder
	Marks       *event.Recorder
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	// StatusBatchPeriod is how long a status may be held back while further changes are expected soon, so that one
	// write reports all.
	StatusBatchPeriod time.Duration
	// CrashMax is the longest back-off of a container that ends again and again.
	CrashMax time.Duration

	// Services are the services whose variables a pod of the namespace sees.
	Services func(namespace string) []*corev1.Service
	// Allocatable is what the node can give to pods.
	Allocatable func() corev1.ResourceList
	// Handler is the runtime handler of a runtime class.
	Handler func(ctx context.Context, class string) (string, error)
	// Node is the node as events name it.
	Node func() *corev1.ObjectReference
}

// Providers have what a pod needs before its containers can run.
type Providers struct {
	Images  *image.Manager
	Volumes *volume.Manager
	Devices *dra.Manager          // of claims; nil: there are none
	Plugins *deviceplugin.Manager // nil: there are none
	Users   *userns.Manager
	Cgroups *podcgroup.Manager
	Refs    *refs.Store
}

// cgroup runs an operation on a pod's cgroup, and measures it.
func (e *Env) cgroup(operation string, run func(*podcgroup.Manager) error) error {
	begin := time.Now()
	err := run(e.Cgroups)
	e.Metrics.Cgroup(operation, time.Since(begin))
	return err
}

// growCgroup makes the cgroup of a pod, or raises its limits to what the pod asks for.
func (e *Env) growCgroup(uid string, pod *corev1.Pod) error {
	return e.cgroup("update", func(m *podcgroup.Manager) error { return m.Grow(uid, translate.PodLimits(pod)) })
}

// Site is what pods see of their node, and where their files are.
type Site struct {
	Hostname      string
	HostIPs       []string
	Machine       translate.Machine
	LogDir        string
	SeccompDir    string // of Localhost profiles
	ClusterDomain string
	ClusterDNS    []string
	ResolvConf    string // the node's file; empty: /etc/resolv.conf or what it stands for (translate.HostDNS)
	HostsFile     string // the node's file
}

// Admission decides which pods may run on the node, and counts what they have.
type Admission interface {
	// Admit decides whether a pod may run on the node. end: it may not. room: other pods are being preempted for it;
	// each channel is closed when one of them has gone, and when all are closed Admit is asked again. Neither: it may.
	Admit(ctx context.Context, p *corev1.Pod) (end *decide.End, room []<-chan struct{})
	// Resize says why the node cannot give a running pod what it asks for now; nil: it can, and counts it. A pod that
	// has to wait is woken when there is room for it.
	Resize(p *corev1.Pod) *decide.Refusal
	// Adopt counts in a pod that was admitted before the kubelet was restarted.
	Adopt(p *corev1.Pod)
}

// Worker owns one pod from its first sight to its last trace. Its methods may be called from any goroutine.
type Worker struct {
	inbox    inbox
	eviction eviction
	observed atomic.Pointer[runtimestate.Pod] // stored by the loop
	loop     *loop
}

// New returns a worker for a pod. seen is when the kubelet first observed it. It starts nothing.
func New(env *Env, p *corev1.Pod, seen time.Time) *Worker {
	w := &Worker{inbox: inbox{wake: signal.New(), pod: p, news: RuntimeChanged}}
	w.loop = newLoop(env, p, seen, w)
	return w
}

// Notify passes news to the worker, which looks again.
func (w *Worker) Notify(n News) { w.inbox.notify(n) }

// Update passes a version of the pod, or of the mirror pod of a static pod, to the worker.
func (w *Worker) Update(p *corev1.Pod) { w.inbox.update(p) }

// Deleted passes the last version of the pod, or of the mirror pod of a static pod, that the API no longer has.
func (w *Worker) Deleted(p *corev1.Pod) { w.inbox.deleted(p) }

// IsGone reports whether neither the API nor a file has the pod any more. Its containers may still be stopping.
func (w *Worker) IsGone() bool { return w.inbox.view().gone }

// Pod returns the last observed pod with the status last written. It is shared: never modify it.
func (w *Worker) Pod() *corev1.Pod { return w.inbox.view().pod }

// Observed returns the pod as the runtime last reported it; nil: it was not asked yet. It is shared: never modify it.
func (w *Worker) Observed() *runtimestate.Pod { return w.observed.Load() }

// Evict ends the pod with a verdict. The channel is closed when nothing of it runs and its volumes are gone. A pod that
// was evicted before keeps its verdict, and one that has ended is not evicted: nil.
func (w *Worker) Evict(end decide.End) <-chan struct{} {
	if v := w.inbox.view(); v.gone || podkind.TerminalPhase(v.pod.Status.Phase) {
		return nil
	}
	over := w.eviction.begin(end)
	w.Notify(Nothing)
	return over
}

// Leaving is closed when nothing of the evicted pod is left on the node; nil: it was not evicted, or nothing is left
// already.
func (w *Worker) Leaving() <-chan struct{} { return w.eviction.leaving() }

// Left reports whether the pod was evicted and nothing of it is left on the node, whatever phase the API server still
// shows.
func (w *Worker) Left() bool { return w.eviction.hasLeft() }

// Run manages the pod until nothing of it is left or ctx is done; containers keep running in the second case. It
// reports whether nothing is left. Call it once.
func (w *Worker) Run(ctx context.Context) (gone bool) { return w.loop.run(ctx) }
