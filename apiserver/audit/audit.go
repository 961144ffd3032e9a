// SPDX-License-Identifier: Apache-2.0

// Package audit records requests as an audit Policy says: events in Kubernetes' format (audit.k8s.io/v1) are written to
// a file and to a webhook. The API server's pipeline asks it how much of a request to record and passes the events. It
// never reads a request itself.
package audit

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Sink receives events. Write must be fast and is called concurrently; events are shared and never modified.
type Sink interface {
	Write(e *Event)
	// Run works until ctx ends, then writes what is pending.
	Run(ctx context.Context) error
}

// Auditor is a policy with its sinks.
type Auditor struct {
	policy *Policy
	sinks  []Sink
}

// New returns an auditor.
func New(p *Policy, sinks ...Sink) *Auditor { return &Auditor{p, sinks} }

// Evaluate returns how much of a request is recorded, and the omitted stages.
func (a *Auditor) Evaluate(r *Request) RequestAuditConfig { return a.policy.evaluate(r) }

// Record passes e to all sinks.
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

// RequestAuditConfig is the policy's decision about one request.
type RequestAuditConfig struct {
	Level             Level
	OmitStages        []Stage
	OmitManagedFields bool
}

// Wants reports whether an event of that stage is recorded.
func (v RequestAuditConfig) Wants(s Stage) bool {
	return v.Level != LevelNone && !slices.Contains(v.OmitStages, s)
}

// AtLeast reports whether the level includes l.
func (v RequestAuditConfig) AtLeast(l Level) bool {
	return slices.Index(levels, v.Level) >= slices.Index(levels, l)
}
