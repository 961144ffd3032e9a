// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"

	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
	"keelson/scheduler/policy/objects"
)

// watchPolicies follows SchedulingPolicy objects, if a profile uses policies and there is a client for them.
func (s *Source) watchPolicies(ctx context.Context) (wait func(), err error) {
	if s.client.Dynamic == nil || !s.uses(policy.Plugin) {
		return func() {}, nil
	}
	s.follower = objects.New(objects.Config{
		Client:    s.client.Dynamic,
		Set:       &s.Policies,
		OnChange:  s.policyChanged,
		OnInvalid: s.changes.InvalidPolicy,
		Log:       s.log,
	})
	return s.follower.Start(ctx)
}

func (s *Source) policyChanged(old, now *policy.Policy) {
	e := framework.Event{Kinds: framework.Objects, Resource: policy.Resource}
	if old != nil {
		e.OldObject = old
	}
	if now != nil {
		e.NewObject = now
	}
	s.changes.Object(e)
}

// Report writes the status of SchedulingPolicies until ctx is done.
func (s *Source) Report(ctx context.Context) {
	if s.follower != nil {
		s.follower.Report(ctx)
	}
}
