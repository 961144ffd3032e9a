// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"keelson/event"
)

// Sender is the sender of marks, as the API server has authenticated and authorized it.
type Sender struct {
	// Name is the user name.
	Name string
	// Steps are the steps whose marks the sender may send; nil: all.
	Steps []event.Step
	// Node is the node whose kubelet the sender is; empty: it is none. A node may send marks about pods bound to it;
	// they are stored as reported by the node.
	Node string
	// Bound lists the pods bound to Node by UID. It is called once per request.
	Bound func() map[string]Pod
}

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// NodeSteps, SchedulerSteps and ControllerSteps are the steps of each kind of agent.
var (
	NodeSteps = []event.Step{
		event.StepSeen, event.StepVolumes, event.StepNetwork, event.StepPolicy, event.StepSandbox, event.StepImage,
		event.StepContainerCreated,
		event.StepContainerStarted, event.StepContainerExited, event.StepProbe, event.StepStatus, event.StepReady,
		event.StepTerminated,
		event.StepReachable,
	}
	SchedulerSteps  = []event.Step{event.StepQueued, event.StepDecision, event.StepBind}
	ControllerSteps = []event.Step{event.StepReconcile, event.StepEviction}
)

// Limits for marks of a node. A normal mark of a kubelet has a few hundred bytes.
const (
	longestNodeMark = 4 << 10
	oldestNodeMark  = 24 * time.Hour
	longestStep     = 24 * time.Hour
	clockSkew       = time.Minute
)

// errNotPermitted rejects a mark that its sender may not send.
var errNotPermitted = errors.New("not permitted for this sender")

// permit returns nil if the sender may send mk, whose encoding has size bytes. bound are the pods of the sender's node.
func (t *Ledger) permit(sender *Sender, bound map[string]Pod, mk *event.Event, size int, now time.Time) error {
	if sender.Steps != nil && !slices.Contains(sender.Steps, mk.Step) {
		return fmt.Errorf("%w: step %s", errNotPermitted, mk.Step)
	}
	if sender.Node == "" {
		return nil
	}
	switch {
	case size > longestNodeMark:
		return fmt.Errorf("%w: %d bytes", errNotPermitted, size)
	case mk.Subject.Resource != "pods" || mk.Subject.UID == "":
		return fmt.Errorf("%w: about %s", errNotPermitted, mk.Subject.Resource)
	case mk.At.After(now.Add(clockSkew)) || mk.At.Before(now.Add(-oldestNodeMark)) || mk.Took > longestStep:
		return fmt.Errorf("%w: at %s for %s", errNotPermitted, mk.At, mk.Took)
	}
	name := Pod{mk.Subject.Namespace, mk.Subject.Name}
	remembered, on := t.remembered(mk.Subject.UID)
	switch p, ok := bound[mk.Subject.UID]; {
	case ok && p != name, remembered != (Pod{}) && remembered != name:
		return fmt.Errorf("%w: pod %s is not of that name", errNotPermitted, mk.Subject.UID)
	case !ok && on != sender.Node: // a pod deleted from the API may still be remembered
		return fmt.Errorf("%w: pod %s/%s is not bound to node %s", errNotPermitted, mk.Subject.Namespace,
			mk.Subject.Name, sender.Node)
	}
	return nil
}

// remembered is the name of a pod and the node to which it was bound, not counting reports of that node itself; empty:
// unknown.
func (t *Ledger) remembered(uid string) (name Pod, node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pods.of(uid)
	if r == nil {
		return Pod{}, ""
	}
	return Pod{r.subject.Namespace, r.subject.Name}, r.node
}

// Rate limits of a sender: marks per second, and the burst. Fifty pods that start together cause about 600 marks.
const (
	marksPerSecond = 500
	marksAtOnce    = 2 * maxHeld
	mostSenders    = 16384
)

// rates hold how much each sender may still send.
type rates struct {
	mu   sync.Mutex
	left map[string]*allowance // by sender
}

type allowance struct {
	marks float64
	at    time.Time
}

// take takes n marks from the sender's allowance; false: that is too many.
func (r *rates) take(name string, n int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.left[name]
	if a == nil {
		if r.left == nil || len(r.left) >= mostSenders {
			r.left = map[string]*allowance{}
		}
		a = &allowance{marks: marksAtOnce, at: now}
		r.left[name] = a
	}
	a.marks = min(a.marks+now.Sub(a.at).Seconds()*marksPerSecond, marksAtOnce)
	a.at = now
	if float64(n) > a.marks {
		return false
	}
	a.marks -= float64(n)
	return true
}
