// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"net/http"
	"strings"
	"time"

	"keelson/api/decisions"
	"keelson/event"
)

// The thirteen hand-offs of a pod that a controller created.
const (
	handRequest = iota + 1
	handStored
	handToController
	handCreate
	handPodStored
	handToScheduler
	handSchedule
	handBind
	handBound
	handToKubelet
	handRun
	handStatus
	handToOthers
	handOffs = handToOthers
)

// classifier assigns marks to hand-offs.
type classifier struct {
	root           *event.Request // the first request of the story
	owner          string         // UID of the pod's controller object
	created, bound int64          // revisions
	ready          time.Time      // zero: not yet
	static         bool
	named          bool // a node has it, and nobody bound it: its spec.nodeName was given
	simulated      bool // by a fake node
}

// nodeUser is the prefix of a kubelet's user name; simulatorUser is the simulator's of fake nodes, and simulator the
// source of what it sees.
const (
	nodeUser      = "system:node:"
	simulatorUser = controllerUser + "simulate-controller"
	simulator     = "simulator"
)

func newClassifier(all []event.Event, pod *record, owners []*record) *classifier {
	p := &classifier{}
	if len(owners) > 0 {
		p.owner = owners[0].uid
	}
	for _, mk := range all {
		switch d := mk.Detail.(type) {
		case *event.Request:
			if p.root == nil {
				p.root = d
			}
			switch {
			case d.Code >= http.StatusMultipleChoices || d.Resource != "pods" || d.Verb != http.MethodPost:
			case d.Subresource == "":
				p.created = d.Revision
			case d.Subresource == "binding":
				p.bound = d.Revision
			}
		case *event.Status:
			if mk.Step == event.StepReady && mk.Err == "" && p.ready.IsZero() {
				p.ready = mk.At.Add(mk.Took)
			}
		}
	}
	p.static = pod.shows != nil
	for _, mk := range all {
		if d, ok := mk.Detail.(*event.Seen); ok && d.Source != "file" {
			p.named = p.bound == 0
			p.simulated = d.Source == simulator
		}
	}
	return p
}

// afterReady is how long after Ready its consequences still belong to the story.
const afterReady = 2 * time.Second

// of returns the hand-off of a mark; 0: none, it came later.
func (p *classifier) of(m event.Event) int {
	n := p.kind(m)
	switch {
	case p.ready.IsZero() || !m.At.After(p.ready):
	case n == handToOthers && !m.At.After(p.ready.Add(afterReady)):
	default:
		return 0
	}
	return n
}

func (p *classifier) kind(mk event.Event) int {
	switch d := mk.Detail.(type) {
	case *event.Request:
		return p.request(d)
	case *event.Delivery:
		return p.event(mk, d)
	case *event.Reconcile:
		if mk.Subject.UID != p.owner {
			return handToController
		}
		return handCreate
	case *event.Queued, *decisions.Attempt:
		return handSchedule
	case *event.Bind:
		return handBind
	case *event.Seen:
		if d.Source == "file" {
			return handRequest
		}
		return handToKubelet
	case *event.Status:
		if mk.Step == event.StepTerminated {
			return 0
		}
		return handStatus
	case *event.Endpoint, *event.Reachable, *event.Resolvable:
		return handToOthers
	case *event.Eviction:
		return 0
	}
	return handRun
}

func (p *classifier) request(req *event.Request) int {
	switch {
	case req.Resource == "pods" && req.Verb == http.MethodDelete:
		return 0
	case p.static:
		return handStatus
	case req == p.root:
		return handRequest
	case req.Resource != "pods":
		return handToController
	case req.Subresource == "binding":
		return handBind
	case req.Subresource != "" && req.User == schedulerUser:
		return handSchedule
	case req.Subresource == "" && req.Verb == http.MethodPost:
		return handCreate
	case req.Subresource == "status" && (p.simulated || strings.HasPrefix(req.User, nodeUser)):
		// only the kubelet's status reports how the pod runs
		return handStatus
	}
	return 0
}

func (p *classifier) event(m event.Event, d *event.Delivery) int {
	switch {
	case m.Subject.Resource != "pods":
		return handToController
	case p.static:
		return handToOthers
	case p.bound == 0 && d.Revision == p.created && (strings.HasPrefix(d.To, nodeUser) || d.To == simulatorUser):
		return handToKubelet // its spec.nodeName was set
	case p.named && d.Revision > p.created:
		return handToOthers
	case p.bound == 0 || d.Revision < p.bound:
		return handToScheduler
	case d.Revision == p.bound:
		return handToKubelet
	}
	return handToOthers
}

// stored returns the hand-off of the store's stage of a request with hand-off handOff.
func stored(handOff int) int {
	switch handOff {
	case handRequest:
		return handStored
	case handCreate:
		return handPodStored
	case handBind:
		return handBound
	}
	return handOff
}

// common is the hand-off of all parts; 0 if they differ.
func common(parts []Step) int {
	n := 0
	for i, p := range parts {
		if i > 0 && p.HandOff != n {
			return 0
		}
		n = p.HandOff
	}
	return n
}
