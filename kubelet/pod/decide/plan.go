// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/holdback"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

// Op is a kind of action.
type Op string

// The actions of plans. The worker has two more of its own, for the status and the mirror pod (report.go there).
const (
	OpVolumes         Op = "volumes"         // set up (or refresh) the pod's volumes
	OpSandbox         Op = "sandbox"         // have devices prepared and run a new sandbox
	OpStart           Op = "start"           // image, create, start, post-start hook of one container
	OpPreStop         Op = "preStop"         // begin the end of one container: its pre-stop hook and its grace period
	OpStop            Op = "stop"            // pre-stop hook, unless it has run, and stop of one container
	OpStopSandbox     Op = "stopSandbox"     // stop a sandbox: its network is given back
	OpTearDown        Op = "tearDown"        // undo the devices and volumes
	OpRemoveContainer Op = "removeContainer" // forget a dead container and its log
	OpRemoveSandbox   Op = "removeSandbox"   // forget a stopped sandbox
	OpDelete          Op = "delete"          // delete the API object: everything is gone here
	OpForget          Op = "forget"          // remove the pod's last traces; the worker ends after it
	OpResize          Op = "resize"          // give a running container its new resources
	OpResizePod       Op = "resizePod"       // give the pod as a whole its new resources
)

// Action is one thing to do. Fields that its Op does not need are zero.
type Action struct {
	Op        Op
	Container string // its name
	ID        string // container or sandbox
	Restart   int    // of a container to start
	Life      int    // of the pod in which a container starts
	Attempt   uint32 // of a sandbox to run
	Grace     int64  // seconds a stop may take
	Hook      bool   // run the pre-stop hook
	Event     string // message of the Killing event; empty: no event
	Replace   string // id of a container that was created and never started, to be removed first
	// BackOff is how long the container to start waits after its next exit.
	BackOff time.Duration
}

// Key distinguishes actions that may run at the same time.
func (a Action) Key() string {
	switch a.Op {
	case OpStart:
		return string(a.Op) + "/" + a.Container
	case OpPreStop, OpStop, OpStopSandbox, OpRemoveContainer, OpRemoveSandbox, OpResize:
		return string(a.Op) + "/" + a.ID
	case OpVolumes, OpSandbox, OpTearDown, OpDelete, OpForget, OpResizePod:
	}
	return string(a.Op)
}

// Flight is an action under way.
type Flight struct {
	Action Action
	Began  time.Time
}

// Waiting is why a container does not run, as users read it.
type Waiting struct {
	Reason  string
	Message string
	// Image is the one that is not there: the container's, or one of its image volumes. Empty where that is not the
	// reason.
	Image string
}

// Failed is the last failure of an action, kept until it succeeds or Retry has passed.
type Failed struct {
	Waiting
	Retry time.Time
	// Then is what the container waits for from ThenAt on (ImagePullBackOff after ErrImagePull); zero: nothing else.
	Then   Waiting
	ThenAt time.Time
}

// shown is why a container waits at a time, and when that changes.
func (f Failed) shown(now time.Time) (Waiting, time.Time) {
	if f.ThenAt.IsZero() {
		return f.Waiting, time.Time{}
	}
	if now.Before(f.ThenAt) {
		return f.Waiting, f.ThenAt
	}
	return f.Then, time.Time{}
}

// Crash is a container's restart back-off: after an exit at time t it may start again at t+Delay.
type Crash struct {
	Delay   time.Duration
	Updated time.Time
}

// Back-off of containers that exit again and again.
const (
	crashMin = 10 * time.Second
	// CrashMax is the longest back-off that may be asked for, and the default.
	CrashMax = 5 * time.Minute
)

// Over reports whether the container, having ended at, may start now; until is when it may. No delay is longer than
// most.
func (c Crash) Over(ended, now time.Time, most time.Duration) (over bool, until time.Time) {
	if c.Delay == 0 || ended.Sub(c.Updated) > 2*most {
		return true, time.Time{}
	}
	until = ended.Add(min(c.Delay, most))
	return !now.Before(until), until
}

// Next is the back-off after one more start.
func (c Crash) Next(ended, now time.Time, most time.Duration) Crash {
	if c.Delay == 0 || ended.Sub(c.Updated) > 2*most {
		return Crash{Delay: min(crashMin, most), Updated: now}
	}
	return Crash{Delay: min(2*c.Delay, most), Updated: now}
}

// End is a final verdict on a pod: it stops and has this phase forever.
type End struct {
	Phase   corev1.PodPhase
	Reason  string
	Message string
	// Grace is how many seconds its containers get at most; nil: the pod's own grace period.
	Grace *int64
	// Condition is set in the pod's status in addition to those that the kubelet always writes; nil: none.
	Condition *corev1.PodCondition
	// Rejected: the node never took the pod, and has nothing to say of its containers.
	Rejected bool
}

// Input is all that Decide knows.
type Input struct {
	// Pod is the pod as wanted. For a pod that only the runtime knows it has a name and nothing else.
	Pod *corev1.Pod
	// Gone: neither the API nor a file wants the pod any more.
	Gone bool
	// Local: the API has no object of its own for it (static pods), so there is none to delete.
	Local    bool
	Observed *runtimestate.Pod
	Now      time.Time
	// HostIP is the node's address, which is that of pods on the host network.
	HostIP string

	Flights map[string]Flight
	Failed  map[string]Failed // by Action.Key
	Crashes map[string]Crash  // by container
	// CrashMax is the longest back-off of a container.
	CrashMax time.Duration
	Result   func(probe.Key) probe.Result
	// Refused is why the pod's containers must keep the resources they have; nil: they may be resized.
	Refused *Refusal
	// Limits are those that the pod's cgroup was given; nil: unknown.
	Limits *podcgroup.Limits
	// Resized is the hash of the resources that a running container was given after its creation, by container id.
	Resized map[string]string

	// Ending has the containers whose end has begun, by id, with the grace period in seconds that it began with.
	Ending map[string]int64

	// Held is why the pod may begin no start; nil: it may.
	Held *holdback.Hold

	End *End // decided earlier: rejected, deadline passed, evicted
	Progress

	// life is which life of the pod its containers should have: it grows when all of them restart together. Decide
	// finds it.
	life int
}

// Progress is how far the pod has come on its way up, or down.
type Progress struct {
	VolumesDone  bool // set up at least once
	VolumesDirty bool // something they show has changed
	TornDown     bool
	StatusDone   bool // the final status is written
	Deleted      bool // the API object is gone or its deletion was accepted
}

// Plan is what to do now.
type Plan struct {
	Actions []Action
	// Cancel lists keys of flights that are no longer wanted.
	Cancel  []string
	Probes  []probe.Target
	Waiting map[string]Waiting
	// End is set once, when this Decide found a final verdict.
	End *End
	// Terminal: the pod's work is over (by itself or by verdict) and no container runs or will run.
	Terminal bool
	// Restarting: containers are being stopped so that all of them start again.
	Restarting bool
	// Stopping: the pod is being stopped.
	Stopping bool
	// Wake is when to decide again without being woken; zero: never.
	Wake time.Time
}

// WakeAt makes the plan be made again at t, unless it is earlier anyway; a zero t changes nothing.
func (p *Plan) WakeAt(t time.Time) {
	if !t.IsZero() && (p.Wake.IsZero() || t.Before(p.Wake)) {
		p.Wake = t
	}
}

// Flying reports whether the action of that key is running.
func (in *Input) Flying(key string) bool {
	_, ok := in.Flights[key]
	return ok
}

// do adds an action unless it is under way, or failed lately and must wait.
func (d *decision) do(action Action) bool {
	k := action.Key()
	if d.Flying(k) {
		return true
	}
	if f, ok := d.Failed[k]; ok && d.Now.Before(f.Retry) {
		d.plan.WakeAt(f.Retry)
		return false
	}
	if d.Held != nil && d.Starting(action) {
		d.plan.WakeAt(d.Held.Until)
		return false
	}
	d.plan.Actions = append(d.plan.Actions, action)
	return true
}

// Starting reports whether an action is one of those during which the process may die of the pod, and which wait while
// the pod is held back. Volumes of a pod that runs are looked after at each start of the kubelet: that alone makes no
// suspect of it.
func (in *Input) Starting(a Action) bool {
	switch a.Op {
	case OpSandbox, OpStart:
		return true
	case OpVolumes:
		return !in.anyAlive()
	case OpStop, OpStopSandbox, OpTearDown, OpRemoveContainer, OpRemoveSandbox, OpDelete, OpForget, OpResize:
	}
	return false
}
