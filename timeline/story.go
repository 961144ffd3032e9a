// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"keelson/lib/mark"
)

// Story is how one pod came to be. Durations are in nanoseconds.
type Story struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Phase     string `json:"phase"`
	Node      string `json:"node,omitempty"`
	// Owner is the controller ("ReplicaSet my-replicaset"), OwnerRevision the store's revision that led to this pod, 0 if unknown.
	Owner         string `json:"owner,omitempty"`
	OwnerRevision int64  `json:"ownerRevision,omitempty"`
	// Start is when the story begins: with the request that led to the pod, if it is remembered.
	Start time.Time `json:"start"`
	// ReadyAfter is from Start to the first Ready; 0: not yet.
	ReadyAfter time.Duration `json:"readyAfter,omitempty"`
	// ReachableAfter is from Start until a Service leads to the pod; 0: none does yet.
	ReachableAfter time.Duration `json:"reachableAfter,omitempty"`
	// Total is from Start to Ready, or to the end of the last step; Accounted is the part of it that steps cover.
	Total     time.Duration `json:"total"`
	Accounted time.Duration `json:"accounted"`
	// Partial: the pod was made before the server started, or its beginning is not remembered any more. Phase is empty until a
	// status tells it.
	Partial bool `json:"partial,omitempty"`
	// Steps by the time they began.
	Steps []Step `json:"steps"`
	// Dropped counts marks in the middle of a long life that are not remembered any more.
	Dropped int `json:"dropped,omitempty"`
	// DroppedEvents counts the later watch events that are not remembered.
	DroppedEvents int `json:"droppedEvents,omitempty"`
	// Waits is what keeps the pod from its node, as whoever asked the API knows; empty: nothing that is known.
	Waits string `json:"-"`
	// Done: nothing more is to come before the pod is Ready, has ended, or is gone.
	Done bool `json:"done"`
}

// Step is one line: who did what, from At (since Start) on, for Took. Parts are what it was made of.
type Step struct {
	At    time.Duration `json:"at"`
	Took  time.Duration `json:"took"`
	Who   string        `json:"who"`
	What  string        `json:"what"`
	Error string        `json:"error,omitempty"`
	// HandOff is which of the thirteen hand-offs on a pod's way this belongs to, 0: none.
	HandOff int `json:"handOff,omitempty"`
	// ReportedBy is the node whose word this is, which nobody has checked; empty: the control plane itself tells it.
	ReportedBy string `json:"reportedBy,omitempty"`
	Parts      []Step `json:"parts,omitempty"`
}

// Story tells a pod's story; ErrUnknown if there is none.
func (t *Timeline) Story(namespace, name string) (Story, error) {
	pod, owners, err := t.snapshot(namespace, name)
	if err != nil {
		return Story{}, err
	}
	return join(pod, owners), nil
}

// join is a function from marks to a story.
func join(pod *record, owners []*record) Story {
	marks := pod.marks()
	s := Story{Namespace: pod.subject.Namespace, Name: pod.subject.Name, UID: pod.uid, Phase: "Pending", Dropped: pod.dropped, DroppedEvents: pod.left}
	if s.Partial = creation(marks).IsZero(); s.Partial {
		s.Phase = ""
	}
	causes := causesOf(marks, owners, &s)
	all := slices.Concat(causes, marks)
	slices.SortStableFunc(all, func(a, b mark.Mark) int { return a.At.Compare(b.At) })
	s.Start = all[0].At
	if i := slices.IndexFunc(all, func(m mark.Mark) bool { return m.ReportedBy == "" }); i >= 0 {
		s.Start = all[i].At // a node's clock does not say when the story begins
	}
	w := writer{start: s.Start, detailed: detailed(all), plot: plotOf(all, pod, owners), leavesFor: pod.leavesFor}
	for _, m := range all {
		s.note(m)
		w.write(m)
	}
	w.flush()
	w.completeDeliveries()
	s.Steps = w.steps
	slices.SortStableFunc(s.Steps, func(a, b Step) int { return int(a.At - b.At) })
	for _, st := range s.Steps {
		s.Total = max(s.Total, st.At+st.Took)
	}
	if s.ReadyAfter > 0 {
		s.Total = s.ReadyAfter
	}
	s.Accounted = covered(s.Steps, s.Total)
	return s
}

// note takes what a mark says about the pod as a whole.
func (s *Story) note(m mark.Mark) {
	switch d := m.Detail.(type) {
	case *mark.Decision:
		if d.Chosen != "" {
			s.Node = d.Chosen
		}
	case *mark.Bind:
		s.Node = d.Node
	case *mark.Seen:
		if d.Source == "file" {
			s.Node = strings.TrimPrefix(m.Component, "kubelet ")
		}
	case *mark.Reachable:
		if s.ReachableAfter == 0 {
			s.ReachableAfter = m.At.Add(m.Took).Sub(s.Start)
		}
	case *mark.Status:
		if d.To != "" {
			s.Phase = d.To
		}
		s.Done = s.Done || d.To == "Succeeded" || d.To == "Failed"
		switch m.Step {
		case mark.StepReady:
			if s.ReadyAfter == 0 && m.Err == "" {
				s.ReadyAfter = m.At.Add(m.Took).Sub(s.Start)
				s.Done = true
			}
		case mark.StepTerminated:
			s.Phase, s.Done = "Terminated", true
		}
	case *mark.Request:
		if d.Verb == http.MethodDelete && d.Resource == "pods" && d.Subresource == "" && d.Code < 300 && s.Phase != "Terminated" {
			s.Phase = "Terminating"
			s.Done = s.Done || s.Node == ""
		}
	}
}

// A request on an owner that ended this long before its controller saw it led to the reconcile; an older one did not.
const causal = 2 * time.Second

// causesOf returns the owners' marks that led to the pod: the reconcile that created it and the request before it, and so on
// up to the owner's owner.
func causesOf(marks []mark.Mark, owners []*record, s *Story) []mark.Mark {
	var out []mark.Mark
	child, childName, made := creation(marks), s.Name, true
	for i, o := range owners {
		if i == 0 {
			s.Owner = ownerKinds[o.subject.Resource] + " " + o.subject.Name
		}
		if child.IsZero() {
			return out
		}
		all := o.marks()
		r := reconcileOf(all, child, childName, made)
		if r == nil {
			return out
		}
		out = append(out, *r)
		seen := r.At
		if d, ok := r.Detail.(*mark.Reconcile); ok && !d.EventSeen.IsZero() && d.EventSeen.Before(seen) {
			seen = d.EventSeen
		}
		q := requestBefore(all, r.At, seen)
		if q == nil {
			return out
		}
		out = append(out, *q)
		if d, ok := q.Detail.(*mark.Request); ok {
			for _, m := range all {
				if e, ok := m.Detail.(*mark.Delivery); ok && e.Revision == d.Revision {
					out = append(out, m)
				}
			}
			made = d.Verb == http.MethodPost && d.Subresource == ""
			if i == 0 {
				s.OwnerRevision = d.Revision
			}
		}
		child, childName = q.At, o.subject.Name
	}
	return out
}

// creation is when the request that created the object arrived.
func creation(marks []mark.Mark) time.Time {
	for _, m := range marks {
		if d, ok := m.Detail.(*mark.Request); ok && d.Verb == http.MethodPost && d.Subresource == "" && d.Code < 300 {
			return m.At
		}
	}
	return time.Time{}
}

// reconcileOf finds the pass that wrote the child: it lasted while the child was written, or, of a child that was made, names it. A child
// that was there before and was changed, as a ReplicaSet is by scaling and by rolling back, was named by a pass of long ago.
func reconcileOf(marks []mark.Mark, child time.Time, name string, made bool) *mark.Mark {
	var during *mark.Mark
	for i := range marks {
		d, ok := marks[i].Detail.(*mark.Reconcile)
		if !ok {
			continue
		}
		if made && slices.Contains(d.Creates, name) {
			return &marks[i]
		}
		if !child.Before(marks[i].At) && !child.After(marks[i].At.Add(marks[i].Took)) {
			during = &marks[i]
		}
	}
	return during
}

// requestBefore finds the last write of the owner's spec that the reconcile can have followed.
func requestBefore(marks []mark.Mark, reconcile, seen time.Time) *mark.Mark {
	var last *mark.Mark
	for i := range marks {
		d, ok := marks[i].Detail.(*mark.Request)
		if !ok || d.Code >= 300 || marks[i].At.After(reconcile) || d.Verb == http.MethodDelete {
			continue
		}
		if seen.Sub(marks[i].At.Add(marks[i].Took)) <= causal {
			last = &marks[i]
		}
	}
	return last
}

// detailed are the requests that are told with what each went through: the first, and those that made an object or bound the pod.
func detailed(all []mark.Mark) map[*mark.Request]bool {
	out := map[*mark.Request]bool{}
	for _, m := range all {
		if d, ok := m.Detail.(*mark.Request); ok && (len(out) == 0 || d.Verb == http.MethodPost && (d.Subresource == "" || d.Subresource == "binding")) {
			out[d] = true
		}
	}
	return out
}

// covered is how much of [0, total] lies within at least one step.
func covered(steps []Step, total time.Duration) time.Duration {
	type span struct{ from, to time.Duration }
	var spans []span
	for _, s := range steps {
		from, to := max(s.At, 0), min(s.At+s.Took, total)
		if to > from {
			spans = append(spans, span{from, to})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	var sum, end time.Duration
	for _, s := range spans {
		if s.from > end {
			end = s.from
		}
		if s.to > end {
			sum += s.to - end
			end = s.to
		}
	}
	return sum
}

// writer turns marks, in order, into steps. Marks of one component that follow each other closely become one line.
type writer struct {
	start    time.Time
	detailed map[*mark.Request]bool
	steps    []Step

	open      *Step // the kubelet's or scheduler's line that is being written
	openKind  string
	decisions int
	plot      *plot
	leavesFor string
	tries     map[string]*tried // of the open line
	failing   map[string]int    // which of its parts tells that a probe fails
	events    map[string]int    // which of steps tells of the event of an object's revision
}

func (w *writer) write(m mark.Mark) {
	switch d := m.Detail.(type) {
	case *mark.Request:
		// Requests are the API server's: a kubelet's line goes on around its own status writes only if they say nothing new.
		if d.Subresource != "status" || d.Change != "" || m.Err != "" {
			w.flush()
		}
		w.steps = append(w.steps, w.request(m, d))
	case *mark.Reconcile:
		w.flush()
		w.steps = append(w.steps, w.reconcile(m, d))
	case *mark.Eviction:
		w.flush()
		w.steps = append(w.steps, Step{At: m.At.Sub(w.start), Who: m.Component, What: evicted(d), HandOff: w.plot.of(m)})
	case *mark.Delivery:
		w.delivery(m, d)
	case *mark.Resolvable:
		w.flush()
		w.steps = append(w.steps, Step{At: m.At.Sub(w.start), Took: m.Took, Who: m.Component, HandOff: w.plot.of(m), What: "name " + d.Name + " leads to it"})
	case *mark.Queued, *mark.Decision, *mark.Bind:
		w.part("scheduler", m)
	default:
		w.part("kubelet", m)
		if m.Step == mark.StepReady || m.Step == mark.StepTerminated {
			w.flush()
		}
	}
}

// part adds a mark to the line of its component.
func (w *writer) part(kind string, m mark.Mark) {
	if w.openKind != kind || w.open != nil && (w.open.Who != m.Component || w.open.ReportedBy != m.ReportedBy) {
		w.flush()
	}
	what := say(m)
	at := m.At.Sub(w.start)
	if w.open == nil {
		w.open, w.openKind = &Step{At: at, Who: m.Component, ReportedBy: m.ReportedBy}, kind
	}
	if d, ok := m.Detail.(*mark.Decision); ok {
		if w.decisions++; w.decisions > 1 {
			what = "try " + strconv.Itoa(d.Attempt) + ": " + what
		}
	}
	w.open.Took = max(w.open.Took, at+m.Took-w.open.At)
	if m.Err != "" && w.open.Error == "" {
		w.open.Error = m.Err
	}
	if what != "" && !w.told(m, what) && !w.again(m, what) {
		w.open.Parts = append(w.open.Parts, Step{At: at, Took: m.Took, Who: m.Component, What: what, Error: m.Err, ReportedBy: m.ReportedBy, HandOff: w.plot.of(m)})
	}
	if d, ok := m.Detail.(*mark.Decision); ok && d.Chosen == "" {
		w.flush() // the next try is a line of its own
	}
}

// again reports whether the open line has this already, as when something is tried until it succeeds: then it is counted.
func (w *writer) again(m mark.Mark, what string) bool {
	key := what
	if d, ok := m.Detail.(*mark.Image); m.Err != "" {
		key = string(m.Step) + m.Err
	} else if !ok || !d.Present {
		return false
	}
	if w.tries == nil {
		w.tries = map[string]*tried{}
	}
	t := w.tries[key]
	if t == nil {
		w.tries[key] = &tried{part: len(w.open.Parts), times: 1, what: what}
		return false
	}
	t.times++
	if t.part < len(w.open.Parts) {
		w.open.Parts[t.part].What = fmt.Sprintf("%s (%d times)", t.what, t.times)
	}
	return true
}

// tried is what an open line says was done, and how often.
type tried struct {
	part, times int
	what        string
}

// told reports whether the open line has this already: a status written without a change once is enough, and of a pull that has
// ended the steps on the way are taken back.
func (w *writer) told(m mark.Mark, what string) bool {
	switch d := m.Detail.(type) {
	case *mark.Status:
		return m.Step == mark.StepStatus && m.Err == "" && slices.ContainsFunc(w.open.Parts, func(p Step) bool { return p.What == what })
	case *mark.Image:
		pulled := "image " + d.Image + " pulled"
		if !d.Done && !d.Present && slices.ContainsFunc(w.open.Parts, func(p Step) bool { return strings.HasPrefix(p.What, pulled) }) {
			return m.Err == "" // the pull's own mark has the time of its beginning, and so comes first
		}
		w.open.Parts = slices.DeleteFunc(w.open.Parts, func(p Step) bool {
			return p.Error == "" && strings.HasPrefix(p.What, "image "+d.Image+" ") && strings.Contains(p.What, " of ")
		})
	case *mark.Probe: // it fails on, and how often is told anew
		key := d.Container + " " + d.Kind
		if i, ok := w.failing[key]; ok && !d.Success && i == len(w.open.Parts)-1 {
			w.open.Parts = w.open.Parts[:i]
		}
		delete(w.failing, key)
		if !d.Success {
			if w.failing == nil {
				w.failing = map[string]int{}
			}
			w.failing[key] = len(w.open.Parts)
		}
	}
	return false
}

func (w *writer) flush() {
	if w.open == nil {
		return
	}
	said := make([]string, 0, len(w.open.Parts))
	for _, p := range w.open.Parts {
		said = append(said, p.What)
	}
	w.open.HandOff = common(w.open.Parts)
	if w.open.What = strings.Join(said, "; "); w.open.What != "" {
		w.steps = append(w.steps, *w.open)
	}
	w.open, w.openKind, w.tries, w.failing = nil, "", nil, nil
}
