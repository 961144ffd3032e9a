// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Problem is a problem that only the Service's owner can solve, or one that was solved. It is reported as an event of
// the Service, with Kubernetes' reasons.
type Problem struct {
	Service types.NamespacedName
	UID     types.UID
	Reason  string
	Action  string
	Message string
}

// Report records the event.
type Report func(ctx context.Context, p Problem) error

// The actions of Kubernetes' events.
const (
	portAction = "PortAllocation"
	ipAction   = "ClusterIPAllocation"
)

// maxQueuedProblems limits the queue of problems; the log has the number of further ones.
const maxQueuedProblems = 1000

// problems are the queued problems and the reported ones.
type problems struct {
	reported map[types.UID]map[string]bool // by Service, then by message
	queued   []Problem
	dropped  int                     // not queued
	recheck  map[types.UID]time.Time // Services to check again, and when
}

func newProblems() problems {
	return problems{reported: map[types.UID]map[string]bool{}, recheck: map[types.UID]time.Time{}}
}

// add queues a problem once.
func (q *problems) add(problem Problem) {
	if q.reported[problem.UID][problem.Message] {
		return
	}
	if q.reported[problem.UID] == nil {
		q.reported[problem.UID] = map[string]bool{}
	}
	q.reported[problem.UID][problem.Message] = true
	if len(q.queued) >= maxQueuedProblems {
		q.dropped++
		return
	}
	q.queued = append(q.queued, problem)
}

// retain forgets reported problems of a Service that no longer exist.
func (q *problems) retain(uid types.UID, still []Problem) {
	for message := range q.reported[uid] {
		if !slices.ContainsFunc(still, func(p Problem) bool { return p.Message == message }) {
			delete(q.reported[uid], message)
		}
	}
	if len(q.reported[uid]) == 0 {
		delete(q.reported, uid)
	}
}

func (q *problems) forget(uid types.UID) {
	delete(q.reported, uid)
	delete(q.recheck, uid)
}

// recheckLocked checks a Service again later: another server's changes arrive in several steps.
func (a *Allocator) recheckLocked(uid types.UID) {
	a.problems.recheck[uid] = time.Now().Add(settleTime)
	a.loop.AddAfter(workItem{task: findProblems}, settleTime)
}

// recheckAllLocked is recheckLocked for all Services.
func (a *Allocator) recheckAllLocked() {
	for uid := range a.services {
		a.recheckLocked(uid)
	}
}

// recheck checks the Services that are due, and returns when the next one is; zero: none.
func (a *Allocator) recheck(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	problems := &a.problems
	next := time.Duration(0)
	for uid, at := range problems.recheck {
		if left := at.Sub(now); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		delete(problems.recheck, uid)
		found := a.problemsLocked(uid)
		problems.retain(uid, found)
		for _, p := range found {
			problems.add(p)
		}
	}
	if next == 0 {
		return 0
	}
	return max(next, settleTime/2) // so that several are checked together
}

// problemsLocked are the problems of one Service.
func (a *Allocator) problemsLocked(uid types.UID) []Problem {
	service := a.services[uid]
	if service == nil {
		return nil
	}
	var out []Problem
	add := func(action, reason, format string, args ...any) {
		out = append(out, Problem{
			Service: keyOf(service),
			UID:     uid,
			Reason:  reason,
			Action:  action,
			Message: fmt.Sprintf(format, args...),
		})
	}
	ips, ports := allocationsOf(service)
	for _, ip := range ips {
		if !a.ranges.contain(ip) {
			add(ipAction, "ClusterIPOutOfRange", "Cluster IP [%v]: %s is not within any configured Service CIDR; "+
				"please recreate service", familyOf(ip), ip)
		} else if h, held := a.ips[ip]; held && h.uid != uid {
			add(ipAction, "ClusterIPAlreadyAllocated",
				"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", familyOf(ip), ip)
		}
	}
	for _, port := range ports {
		if held := a.nodePorts[port]; !a.ports.Contains(port) {
			add(portAction, "PortOutOfRange", "Port %d is not within the port range %s; please recreate service", port,
				a.ports)
		} else if len(held) > 1 && held[0].uid != uid {
			add(portAction, "PortAlreadyAllocated",
				"Port %d was assigned to multiple services; please recreate service", port)
		}
	}
	return out
}

// reportAll records the events of the queued problems. A failure is logged and not retried.
func (a *Allocator) reportAll(ctx context.Context, log *slog.Logger) {
	a.mu.Lock()
	waiting := a.problems.queued
	more := a.problems.dropped
	a.problems.queued = nil
	a.problems.dropped = 0
	a.mu.Unlock()
	for _, p := range waiting {
		log.Warn("service has an invalid address or port", "service", p.Service.String(), "reason", p.Reason,
			"message", p.Message)
		if err := a.report(ctx, p); err != nil && ctx.Err() == nil {
			log.Debug("record event about service", "service", p.Service.String(), "error", err)
		}
	}
	if more > 0 {
		log.Warn("more services have invalid addresses or ports", "count", more)
	}
}
