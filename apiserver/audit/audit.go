// SPDX-License-Identifier: Apache-2.0

// Package audit records who did what, as an audit Policy says: events in
// Kubernetes' form (audit.k8s.io/v1), to a file and to a service. The API server's
// pipeline asks it how much of a request is wanted and hands over the events. It
// reads no request itself.
package audit

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Sink takes events. Write must be fast and may be called from many goroutines; the event is shared and never modified.
type Sink interface {
	Write(e *Event)
	// Run does what a sink does by itself until ctx ends, then what is left to do.
	Run(ctx context.Context) error
}

// Auditor is a policy and where its events go.
type Auditor struct {
	policy *Policy
	sinks  []Sink
}

// New returns an auditor.
func New(p *Policy, sinks ...Sink) *Auditor { return &Auditor{p, sinks} }

// Evaluate tells how much of a request is recorded, and the stages that are left out.
func (a *Auditor) Evaluate(r *Request) Verdict { return a.policy.evaluate(r) }

// Record hands e to all sinks.
func (a *Auditor) Record(e *Event) {
	for _, s := range a.sinks {
		s.Write(e)
	}
}

// Run runs the sinks until ctx ends.
func (a *Auditor) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range a.sinks {
		g.Go(func() error { return s.Run(ctx) })
	}
	return g.Wait()
}

// Verdict is what the policy wants of one request.
type Verdict struct {
	Level             Level
	OmitStages        []Stage
	OmitManagedFields bool
}

// Wants tells whether an event of that stage is recorded.
func (v Verdict) Wants(s Stage) bool {
	return v.Level != LevelNone && !slices.Contains(v.OmitStages, s)
}

// AtLeast tells whether the level includes another one.
func (v Verdict) AtLeast(l Level) bool {
	return slices.Index(levels, v.Level) >= slices.Index(levels, l)
}
