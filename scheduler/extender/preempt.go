// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// ProcessPreemption calls the extenders with a preemptVerb to choose among the candidate nodes and their victims. It
// does not modify found. The error is that of an extender that is not ignorable.
func (s *Set) ProcessPreemption(
	ctx context.Context, attempt *framework.Attempt, found []*framework.Preemption,
) ([]*framework.Preemption, error) {
	if s == nil || attempt.CallExtenders == nil {
		return found, nil
	}
	pod := attempt.Pod.Pod
	on := map[string][]*state.PodInfo{} // attempt.Outside lets the other lane change the snapshot
	for _, c := range found {
		// victims may be on other nodes
		on[c.Node] = append(slices.Clip(attempt.Snapshot.Node(c.Node).Pods), c.Victims...)
	}
	var err error
	attempt.CallExtenders(func() {
		for _, extender := range s.all {
			if extender.cfg.PreemptVerb == "" || len(found) == 0 || !extender.interested(pod) {
				continue
			}
			left, failed := extender.preempt(ctx, attempt.Pod, found, on)
			switch {
			case failed == nil:
				found = left
			case extender.cfg.Ignorable:
				s.log.Warn("extender is ignored", "extender", extender.name, "pod", attempt.Pod.Key, "err", failed)
			default:
				err = fmt.Errorf("%s: %w", extender.name, failed)
				return
			}
		}
	})
	return found, err
}

func (e *Extender) preempt(
	ctx context.Context, pod *state.PodInfo, found []*framework.Preemption, on map[string][]*state.PodInfo,
) ([]*framework.Preemption, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod.Pod}
	if e.cfg.NodeCacheCapable {
		args.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
	} else {
		args.NodeNameToVictims = map[string]*extenderv1.Victims{}
	}
	for _, preemption := range found {
		pods := []*corev1.Pod{}
		uids := []*extenderv1.MetaPod{}
		for _, v := range preemption.Victims {
			pods = append(pods, v.Pod)
			uids = append(uids, &extenderv1.MetaPod{UID: string(v.Pod.UID)})
		}
		if e.cfg.NodeCacheCapable {
			args.NodeNameToMetaVictims[preemption.Node] = &extenderv1.MetaVictims{
				Pods:             uids,
				NumPDBViolations: int64(preemption.PDBViolations),
			}
		} else {
			args.NodeNameToVictims[preemption.Node] = &extenderv1.Victims{
				Pods:             pods,
				NumPDBViolations: int64(preemption.PDBViolations),
			}
		}
	}
	var result extenderv1.ExtenderPreemptionResult
	verb := e.cfg.PreemptVerb
	if err := e.call(ctx, verb, args, &result); err != nil {
		return nil, err
	}
	var out []*framework.Preemption
	for _, c := range found {
		chosen, ok := result.NodeNameToMetaVictims[c.Node]
		if !ok {
			continue
		}
		delete(result.NodeNameToMetaVictims, c.Node)
		victims, err := e.victims(pod, chosen, on[c.Node])
		if errors.Is(err, errNoVictims) && e.cfg.Ignorable {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: node %q: %w", verb, c.Node, err)
		}
		next := *c
		next.Victims = victims
		next.PDBViolations = int(min(max(chosen.NumPDBViolations, 0), int64(len(victims))))
		next.Reprieved = max(c.Reprieved+len(c.Victims)-len(victims), 0)
		out = append(out, &next)
	}
	for name := range result.NodeNameToMetaVictims {
		return nil, fmt.Errorf("%s: the answer has node %q, which was not sent", verb, oneShortLine(name))
	}
	return out, nil
}

var errNoVictims = errors.New("the answer has no victim")

// victims returns the pods of a node that an extender names. Each must be on the node and have a lower priority than
// the pod.
func (e *Extender) victims(
	pod *state.PodInfo, chosen *extenderv1.MetaVictims, on []*state.PodInfo,
) ([]*state.PodInfo, error) {
	if chosen == nil || len(chosen.Pods) == 0 {
		return nil, errNoVictims
	}
	var out []*state.PodInfo
	for _, p := range chosen.Pods {
		if p == nil {
			return nil, errNoVictims
		}
		at := slices.IndexFunc(on, func(o *state.PodInfo) bool { return o.Pod.UID == types.UID(p.UID) })
		switch {
		case at < 0:
			return nil, fmt.Errorf("victim %q is not on the node", oneShortLine(p.UID))
		case on[at].Priority >= pod.Priority:
			return nil, fmt.Errorf("victim %s does not have a lower priority", on[at].Key)
		case !slices.Contains(out, on[at]):
			out = append(out, on[at])
		}
	}
	return out, nil
}
