// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"keelson/lib/mark"
)

// Sender is who sends marks, as the API server has authenticated and authorized them.
type Sender struct {
	// Name is the user's.
	Name string
	// Steps are those that the sender may tell of; nil: all.
	Steps []mark.Step
	// Node is the node that the sender is the kubelet of; empty: it is none. A node tells of pods that are bound to it, and what it tells
	// is remembered as its word.
	Node string
	// Bound lists the pods that are bound to Node, by UID; it is called once a request.
	Bound func() map[string]Pod
}

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// NodeSteps, SchedulerSteps and ControllerSteps are what each kind of agent tells of.
var (
	NodeSteps = []mark.Step{
		mark.StepSeen, mark.StepVolumes, mark.StepNetwork, mark.StepPolicy, mark.StepSandbox, mark.StepImage, mark.StepContainerCreated,
		mark.StepContainerStarted, mark.StepContainerExited, mark.StepProbe, mark.StepStatus, mark.StepReady, mark.StepTerminated,
		mark.StepReachable,
	}
	SchedulerSteps  = []mark.Step{mark.StepQueued, mark.StepDecision, mark.StepBind}
	ControllerSteps = []mark.Step{mark.StepReconcile, mark.StepEviction}
)

// Bounds of what a node says. A mark of a node's kubelet has a few hundred bytes.
const (
	longestNodeMark = 4 << 10
	oldestNodeMark  = 24 * time.Hour
	longestStep     = 24 * time.Hour
	clockSkew       = time.Minute
)

// errNotIts is a mark that its sender may not make.
var errNotIts = errors.New("not the sender's to tell")

// permit is nil if the sender may tell m, whose encoding has size bytes; bound are the pods of the sender's node.
func (t *Timeline) permit(s *Sender, bound map[string]Pod, m *mark.Mark, size int, now time.Time) error {
	if s.Steps != nil && !slices.Contains(s.Steps, m.Step) {
		return fmt.Errorf("%w: step %s", errNotIts, m.Step)
	}
	if s.Node == "" {
		return nil
	}
	switch {
	case size > longestNodeMark:
		return fmt.Errorf("%w: %d bytes", errNotIts, size)
	case m.Subject.Resource != "pods" || m.Subject.UID == "":
		return fmt.Errorf("%w: about %s", errNotIts, m.Subject.Resource)
	case m.At.After(now.Add(clockSkew)) || m.At.Before(now.Add(-oldestNodeMark)) || m.Took > longestStep:
		return fmt.Errorf("%w: at %s for %s", errNotIts, m.At, m.Took)
	}
	name := Pod{m.Subject.Namespace, m.Subject.Name}
	remembered, on := t.remembered(m.Subject.UID)
	switch p, ok := bound[m.Subject.UID]; {
	case ok && p != name, remembered != (Pod{}) && remembered != name:
		return fmt.Errorf("%w: pod %s is not of that name", errNotIts, m.Subject.UID)
	case !ok && on != s.Node: // a pod that is gone from the API by now is still remembered
		return fmt.Errorf("%w: pod %s/%s is not bound to node %s", errNotIts, m.Subject.Namespace, m.Subject.Name, s.Node)
	}
	return nil
}

// remembered is a pod's name, and the node that it was bound to as others than that node have said; nothing if it is not known.
func (t *Timeline) remembered(uid string) (name Pod, node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pods.of(uid)
	if r == nil {
		return Pod{}, ""
	}
	return Pod{r.subject.Namespace, r.subject.Name}, r.node
}

// Rates of a sender: marks a second in the long run, and how many at once. Fifty pods that start at once make some 600.
const (
	marksPerSecond = 500
	marksAtOnce    = 2 * maxHeld
	mostSenders    = 16384
)

// rates are how much each sender may still send.
type rates struct {
	mu   sync.Mutex
	left map[string]*allowance // by sender
}

type allowance struct {
	marks float64
	at    time.Time
}

// take takes n marks from what name may send, or nothing if that is not enough.
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
