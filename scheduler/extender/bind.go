// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"fmt"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Binder is an extender that binds the pods in which it is interested. It runs before the Bind plugins of the profile.
type Binder struct {
	e   *Extender
	set *Set
}

// Binder returns the one extender with a bindVerb, or nil.
func (s *Set) Binder() *Binder {
	if s == nil {
		return nil
	}
	for _, e := range s.all {
		if e.cfg.BindVerb != "" {
			return &Binder{e, s}
		}
	}
	return nil
}

// Plugin returns what the extender does at the end of an attempt.
func (b *Binder) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:             b.e.name,
		PreBindPreFlight: b.PreBindPreFlight,
		PreBind:          b.PreBind,
		Bind:             b.Bind,
	}
}

// PreBindPreFlight returns true, so that a binding cycle that waits for the extender does not block the shared binding
// writers.
func (b *Binder) PreBindPreFlight(_ *framework.CycleState, pod *state.PodInfo, _ string) bool {
	return b.e.interested(pod.Pod)
}

// PreBind does nothing; it belongs to PreBindPreFlight.
func (*Binder) PreBind(context.Context, *framework.CycleState, *state.PodInfo, string) error {
	return nil
}

// Bind makes the extender write the binding.
func (b *Binder) Bind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	if !b.e.interested(pod.Pod) {
		return framework.ErrSkip
	}
	err := b.e.bind(ctx, pod, node)
	if err != nil && b.e.cfg.Ignorable {
		b.set.log.Warn("extender is ignored", "extender", b.e.name, "pod", pod.Key, "err", err)
		return framework.ErrSkip
	}
	if err != nil {
		return fmt.Errorf("%s: %w", b.e.name, err)
	}
	return nil
}

func (e *Extender) bind(ctx context.Context, pod *state.PodInfo, node string) error {
	var result extenderv1.ExtenderBindingResult
	p := pod.Pod
	args := &extenderv1.ExtenderBindingArgs{
		PodName:      p.Name,
		PodNamespace: p.Namespace,
		PodUID:       p.UID,
		Node:         node,
	}
	if err := e.call(ctx, e.cfg.BindVerb, args, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return fmt.Errorf("%s: the extender returned an error: %s", e.cfg.BindVerb, oneShortLine(result.Error))
	}
	return nil
}
