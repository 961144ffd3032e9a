// SPDX-License-Identifier: Apache-2.0

package story

import (
	"net/http"
	"strings"
	"time"

	"keelson/api/decisions"
	"keelson/event"
)

// The thirteen hand-offs of a pod that a controller created.
const (
	HandRequest = iota + 1
	HandStored
	HandToController
	HandCreate
	HandPodStored
	HandToScheduler
	HandSchedule
	HandBind
	HandBound
	HandToKubelet
	HandRun
	HandStatus
	HandToOthers
	HandOffs = HandToOthers
)

// classifier assigns marks to hand-offs.
type classifier struct {
	root           *event.Request // the first request of the story
	owner          string         // UID of the pod's controller object
	created, bound int64          // revisions
	ready          time.Time      // zero: not yet
	static         bool
	named          bool // created with spec.nodeName, without a binding
	simulated      bool // by a fake node
}

// SchedulerUser is the user of Keelson's scheduler, ControllerUser the prefix of those of the controllers, nodeUser of
// those of the kubelets; CollectorUser is the garbage collector, namespaceUser the namespace controller, SimulatorUser
// the simulator of fake nodes.
const (
	SchedulerUser  = "system:kube-scheduler"
	ControllerUser = "system:serviceaccount:kube-system:"
	CollectorUser  = ControllerUser + "generic-garbage-collector"
	namespaceUser  = ControllerUser + "namespace-controller"
	SimulatorUser  = ControllerUser + "simulate-controller"
	nodeUser       = "system:node:"
)

// Sources of what a kubelet, or the simulator of fake nodes, sees.
const (
	sourceFile      = "file"
	SourceSimulator = "simulator"
)

func newClassifier(all []event.Event, pod *Record, owners []*Record) *classifier {
	p := &classifier{}
	if len(owners) > 0 {
		p.owner = owners[0].Subject.UID
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
	p.static = pod.Static
	for _, mk := range all {
		if d, ok := mk.Detail.(*event.Seen); ok && d.Source != sourceFile {
			p.named = p.bound == 0
			p.simulated = d.Source == SourceSimulator
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
	case n == HandToOthers && !m.At.After(p.ready.Add(afterReady)):
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
			return HandToController
		}
		return HandCreate
	case *event.Queued, *decisions.Attempt:
		return HandSchedule
	case *event.Bind:
		return HandBind
	case *event.Seen:
		if d.Source == sourceFile {
			return HandRequest
		}
		return HandToKubelet
	case *event.Status:
		if mk.Step == event.StepTerminated {
			return 0
		}
		return HandStatus
	case *event.Endpoint, *event.Reachable, *event.Resolvable:
		return HandToOthers
	case *event.Eviction:
		return 0
	}
	return HandRun
}

func (p *classifier) request(req *event.Request) int {
	switch {
	case req.Resource == "pods" && req.Verb == http.MethodDelete:
		return 0
	case p.static:
		return HandStatus
	case req == p.root:
		return HandRequest
	case req.Resource != "pods":
		return HandToController
	case req.Subresource == "binding":
		return HandBind
	case req.Subresource != "" && req.User == SchedulerUser:
		return HandSchedule
	case req.Subresource == "" && req.Verb == http.MethodPost:
		return HandCreate
	case req.Subresource == "status" && (p.simulated || strings.HasPrefix(req.User, nodeUser)):
		// only the kubelet's status reports how the pod runs
		return HandStatus
	}
	return 0
}

func (p *classifier) event(m event.Event, d *event.Delivery) int {
	switch {
	case m.Subject.Resource != "pods":
		return HandToController
	case p.static:
		return HandToOthers
	case p.bound == 0 && d.Revision == p.created && (strings.HasPrefix(d.To, nodeUser) || d.To == SimulatorUser):
		return HandToKubelet // its spec.nodeName was set
	case p.named && d.Revision > p.created:
		return HandToOthers
	case p.bound == 0 || d.Revision < p.bound:
		return HandToScheduler
	case d.Revision == p.bound:
		return HandToKubelet
	}
	return HandToOthers
}

// stored returns the hand-off of the store's stage of a request with hand-off handOff.
func stored(handOff int) int {
	switch handOff {
	case HandRequest:
		return HandStored
	case HandCreate:
		return HandPodStored
	case HandBind:
		return HandBound
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
