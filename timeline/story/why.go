// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/decisions"
	"keelson/event"
)

// Why is the last scheduling result of a pod, and why it is not Ready on its node.
type Why struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is the pod's node; empty while it is pending.
	Node string `json:"node,omitempty"`
	// Since is when the scheduler first saw the pod, For how long it has been (or was) pending.
	Since time.Time     `json:"since"`
	For   time.Duration `json:"for"`
	Tries int           `json:"tries"`
	// Next says what triggers the next attempt, BindFailed that the end of its backoff does.
	Next       string `json:"next,omitempty"`
	BindFailed bool   `json:"-"`
	// Reason is why no scheduling decision explains the pod's node or its absence; empty: a decision does.
	Reason string `json:"reason,omitempty"`
	// Pending is Reason of a pod without a node, as the end of a sentence.
	Pending string `json:"-"`
	// NotReady are the reasons why a pod that has a node is not Ready, as its kubelet has reported them; empty: it is,
	// or nothing is known.
	NotReady []string `json:"notReady,omitempty"`
	// BoundBy is the user that wrote pods/binding.
	BoundBy string `json:"boundBy,omitempty"`
	// Partial means that the pod's creation and earlier decisions are not remembered.
	Partial bool `json:"partial,omitempty"`
	// Gone means that the pod does not exist any more.
	Gone bool `json:"gone,omitempty"`
	// PreemptedBy is the pod, namespace/name, for which the scheduler deleted this one.
	PreemptedBy string `json:"preemptedBy,omitempty"`
	// End is how the pod ended or who ends it; nil: unknown. Ended says so: "evicted by ann", "Evicted: The node was
	// low on resource: memory".
	End   *End   `json:"-"`
	Ended string `json:"ended,omitempty"`
	// KilledBy are the probes because of which the kubelet ended the last run of a container.
	KilledBy []ProbeKill `json:"killedBy,omitempty"`
	// Terminating are the reasons why a pod that is being deleted is still there; empty: it is not being deleted.
	Terminating []string `json:"terminating,omitempty"`
	// Fake says that the pod's node is a fake one; empty: it is not, or it may not be read.
	Fake string `json:"fake,omitempty"`
	// Help are commands that help, each with what it does; empty: none is known.
	Help []string `json:"help,omitempty"`
	// Decision is the last attempt; absent: none yet. Brief: only the short form is remembered.
	Decision *decisions.Attempt `json:"decision,omitempty"`
	Brief    bool               `json:"brief,omitempty"`
	// MadeRoom are the preemptions for this pod by attempts before the last one.
	MadeRoom []*decisions.Preemption `json:"madeRoom,omitempty"`
	// Bind is the result of the binding, BindTook its duration since Permit.
	Bind     *event.Bind   `json:"bind,omitempty"`
	BindTook time.Duration `json:"bindTook,omitempty"`
	// Eviction is when a taint of its node evicts the pod; absent: none does. Left is the time until then.
	Eviction *event.Eviction `json:"eviction,omitempty"`
	Left     time.Duration   `json:"left,omitempty"`
}

// ProbeKill is the end of a container's run because of a probe.
type ProbeKill struct {
	Container string       `json:"container"`
	Probe     string       `json:"probe"`  // liveness, startup
	Result    string       `json:"result"` // "http :80/ -> 500": Failed in words
	At        time.Time    `json:"at"`     // when the container had ended
	Failed    *event.Probe `json:"-"`
}

// End is how a pod ended, or who ends it.
type End struct {
	// Failed is the change of its status that ended it; nil: a request did.
	Failed *event.StatusChange
	// User asked for its eviction or, if not Evicted, its deletion.
	User    string
	Evicted bool
	// Owner is what OwnerUser has deleted, so that the garbage collector deletes the pod. OwnerUser is empty where that
	// is not kept.
	Owner     event.Subject
	OwnerUser string
	// NamespaceUser has deleted the namespace with which the pod is deleted; empty: it is not, or that is not kept.
	NamespaceUser string
	// Surplus says why a controller deletes the pod; nil: none does, or it is not kept.
	Surplus *Surplus
}

// Collected reports whether the garbage collector deletes the pod.
func (e *End) Collected() bool { return e.deleted() && e.User == CollectorUser }

// WithNamespace reports whether the pod is deleted with its namespace, or its owner is.
func (e *End) WithNamespace() bool {
	return e.deleted() && (e.User == namespaceUser || e.Collected() && e.OwnerUser == namespaceUser)
}

func (e *End) deleted() bool { return e.Failed == nil && !e.Evicted }

// Surplus is a pass of the controller of Owner that found more pods than it wanted. After is the request on Of that
// led to it; nil: not kept, or a controller's.
type Surplus struct {
	Owner event.Subject
	Wants int
	Has   int
	After *event.Request
	Of    event.Subject
}

// WhyOf makes a Why of the records of a pod and of its owners, nearest first. It has no words yet.
func WhyOf(pod *Record, owners []*Record, now time.Time) Why {
	why := Why{Namespace: pod.Subject.Namespace, Name: pod.Subject.Name, PreemptedBy: pod.LeavesFor}
	until := now
	marks := pod.Marks
	why.Partial = creation(marks).IsZero()
	why.KilledBy = killedBy(marks)
	why.MadeRoom = madeRoom(marks)
	for _, mk := range marks {
		switch d := mk.Detail.(type) {
		case *event.Queued:
			if why.Since.IsZero() {
				why.Since = mk.At
			}
		case *decisions.Attempt:
			if why.Since.IsZero() {
				why.Since = mk.At
			}
			why.Decision = d
			why.Tries = max(int(d.Attempt), why.Tries+1)
			why.Next = d.WaitsFor
			why.BindFailed = false
			if d.Node != "" {
				why.Node = d.Node
				why.Next = ""
				until = mk.At.Add(mk.Took)
			}
		case *event.Request:
			if d.Code < http.StatusBadRequest {
				why.request(d)
			}
		case *event.Bind:
			if mk.Err != "" {
				why.Node = ""
				why.BindFailed = true
				until = now
			}
		case *event.Eviction:
			why.Eviction = d
			why.Left = max(0, d.Deadline.Sub(now))
			if d.Cancelled {
				why.Eviction = nil
				why.Left = 0
			}
		}
	}
	if !why.Since.IsZero() {
		why.For = until.Sub(why.Since)
	}
	if why.End != nil || why.PreemptedBy != "" {
		why.Leaves(now)
	}
	why.behind(marks, owners)
	if why.End != nil && why.End.WithNamespace() {
		why.End.NamespaceUser = namespaceDeleter(pod)
	}
	why.whole(pod.Decided)
	return why
}

// killedBy finds the containers whose last run ended after a liveness or startup probe had failed for good.
func killedBy(marks []event.Event) []ProbeKill {
	failed := map[string]*event.Probe{} // by container, since its start
	ended := map[string]ProbeKill{}
	for _, m := range marks {
		switch d := m.Detail.(type) {
		case *event.Probe:
			if d.Kind != "readiness" {
				failed[d.Container] = d
			}
		case *event.Container:
			p := failed[d.Name]
			delete(failed, d.Name)
			if m.Step != event.StepContainerExited {
				continue
			}
			delete(ended, d.Name)
			if p != nil && !p.Success {
				ended[d.Name] = ProbeKill{
					Container: d.Name,
					Probe:     p.Kind,
					Failed:    p,
					At:        m.At.Add(m.Took),
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(ended), func(a, b ProbeKill) int {
		return cmp.Compare(a.Container, b.Container)
	})
}

// Leaves drops an eviction that is still to come: the pod is gone, or leaves before.
func (w *Why) Leaves(now time.Time) {
	if w.Eviction != nil && w.Eviction.Deadline.After(now) {
		w.Eviction = nil
		w.Left = 0
	}
}

// Vanished records that the pod does not exist any more.
func (w *Why) Vanished(now time.Time) {
	w.Gone = true
	w.Leaves(now)
}

// madeRoom returns the preemptions of all attempts but the last, each once.
func madeRoom(marks []event.Event) []*decisions.Preemption {
	var all []*decisions.Preemption
	var last *decisions.Preemption
	same := func(p *decisions.Preemption) bool {
		return last != nil && p.Node == last.Node && slices.Equal(p.Victims, last.Victims)
	}
	for _, m := range marks {
		if d, ok := m.Detail.(*decisions.Attempt); ok {
			if last = d.Preemption; last != nil && !slices.ContainsFunc(all, same) {
				all = append(all, last)
			}
		}
	}
	return slices.DeleteFunc(all, same)
}

// request applies a successful request to the pod's binding and end.
func (w *Why) request(req *event.Request) {
	switch {
	case req.Subresource == "binding":
		w.BoundBy = req.User
	case w.End != nil || w.PreemptedBy != "": // the first one ended it
	case req.Status != nil && req.Status.To == string(corev1.PodFailed) && req.Status.Reason != "":
		w.End = &End{Failed: req.Status}
	case req.Subresource == "eviction":
		w.End = &End{User: req.User, Evicted: true}
	case req.Verb == http.MethodDelete && req.Resource == "pods" && req.Subresource == "":
		w.End = &End{User: req.User}
	}
}

// whole replaces the short decision by the complete one.
func (w *Why) whole(d *Decided) {
	switch {
	case w.Decision == nil:
	case d == nil || d.Attempt.Attempt != w.Decision.Attempt || d.Attempt.Node != w.Decision.Node:
		w.Brief = true
	default:
		w.Decision = d.Attempt
		w.Bind = d.Bind
		w.BindTook = d.BindTook
	}
}

// behind finds who is behind a deletion by a controller: the garbage collector deletes what belonged to a deleted
// owner, and a controller what is more than wanted.
func (w *Why) behind(marks []event.Event, owners []*Record) {
	if w.End == nil || !w.End.deleted() || w.End.User == namespaceUser ||
		!strings.HasPrefix(w.End.User, ControllerUser) {
		return
	}
	if !w.End.Collected() {
		w.End.Surplus = surplus(w.Name, marks, owners)
		return
	}
	for _, o := range owners {
		user := deleter(o.Marks)
		if user == "" {
			return
		}
		w.End.Owner = o.Subject
		w.End.OwnerUser = user
		if user != CollectorUser {
			return
		}
	}
}

// deleter is the last user that deleted the object; empty: none is remembered.
func deleter(marks []event.Event) string {
	for _, m := range slices.Backward(marks) {
		if Deletes(m) {
			return user(m)
		}
	}
	return ""
}

// namespaceDeleter is the first user that deleted the pod's namespace while the pod was there; empty: none is
// remembered. Other deletions were of namespaces with the same name.
func namespaceDeleter(pod *Record) string {
	for _, m := range pod.Namespace {
		if m.At.After(creation(pod.Marks)) && m.At.Before(deletion(pod.Marks)) {
			return user(m)
		}
	}
	return ""
}

// Deletes reports whether a mark is a successful request to delete its subject.
func Deletes(m event.Event) bool {
	d, ok := m.Detail.(*event.Request)
	return ok && d.Verb == http.MethodDelete && d.Subresource == "" && d.Code < http.StatusMultipleChoices
}

// user made the request of a mark.
func user(m event.Event) string {
	d, _ := m.Detail.(*event.Request)
	return d.User
}

// surplus finds why a controller deleted the pod: how many its owner wanted, and whose write led to that; nil: it is
// not kept.
func surplus(name string, marks []event.Event, owners []*Record) *Surplus {
	var out *Surplus
	child := deletion(marks)
	for i, o := range owners {
		r := reconcileOf(o.Marks, child, name, false)
		if r == nil {
			return out
		}
		d, _ := r.Detail.(*event.Reconcile)
		if i == 0 {
			out = &Surplus{Owner: o.Subject, Wants: d.Wants, Has: d.Has}
		}
		seen := r.At
		if !d.EventSeen.IsZero() && d.EventSeen.Before(seen) {
			seen = d.EventSeen
		}
		cause := requestBefore(o.Marks, r.At, seen)
		if cause == nil {
			return out
		}
		req, _ := cause.Detail.(*event.Request)
		if !strings.HasPrefix(req.User, ControllerUser) {
			out.After = req
			out.Of = o.Subject
			return out
		}
		child = cause.At
	}
	return out
}

// deletion is when the pod's deletion was requested.
func deletion(marks []event.Event) time.Time {
	for _, m := range marks {
		if Deletes(m) {
			return m.At
		}
	}
	return time.Time{}
}
