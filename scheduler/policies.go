// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
	"keelson/scheduler/policy/objects"
)

// newPolicies returns the Follower of SchedulingPolicy objects; nil: no profile uses policies, or there is no client
// for them.
func (s *Scheduler) newPolicies() *objects.Follower {
	if s.cfg.Client.Dynamic == nil {
		return nil
	}
	for _, p := range s.profiles {
		if slices.ContainsFunc(p.Plugins, func(w framework.Weighted) bool { return w.Name == policy.Plugin }) {
			return objects.New(objects.Config{
				Client:    s.cfg.Client.Dynamic,
				Set:       &s.activePolicies,
				OnChange:  s.policyChanged,
				OnInvalid: s.policyInvalid,
				Log:       s.log,
			})
		}
	}
	return nil
}

func (s *Scheduler) watchPolicies(ctx context.Context) (wait func(), err error) {
	if s.policies == nil {
		return func() {}, nil
	}
	return s.policies.Start(ctx)
}

func (s *Scheduler) policyChanged(old, now *policy.Policy) {
	e := framework.Event{Kinds: framework.Objects, Resource: policy.Resource}
	if old != nil {
		e.OldObject = old
	}
	if now != nil {
		e.NewObject = now
	}
	s.queue.OnEvent(e)
}

func (s *Scheduler) policyInvalid(obj *unstructured.Unstructured, message string) {
	s.log.Warn("scheduling policy cannot be compiled", "policy", obj.GetName(), "error", message)
	for _, p := range s.profiles {
		if p.events != nil {
			p.events.Eventf(obj, nil, corev1.EventTypeWarning, "InvalidPolicy", "Compiling", "%s",
				truncateNote(message))
			return
		}
	}
}
