// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// evictAll evicts victims on the writers, one job per victim. id is the UID of the preemptor or of its group; node
// returns the node of a victim.
func (p *Plugin) evictAll(ctx context.Context, id types.UID, preemptor *corev1.Pod, victims []*state.PodInfo, node func(
	i int,
) string,
) {
	uids := make([]types.UID, len(victims))
	for i, v := range victims {
		uids[i] = v.Pod.UID
	}
	p.cfg.Evictions.start(id, uids)
	if p.cfg.ObserveVictims != nil {
		p.cfg.ObserveVictims(len(victims))
	}
	for i, v := range victims {
		p.cfg.Later(ctx, func(ctx context.Context) {
			gone, err := p.evict(ctx, v.Pod, preemptor, node(i))
			if err != nil && ctx.Err() == nil {
				p.cfg.Log.Warn("cannot preempt a pod", "pod", v.Key, "for", preemptor.Namespace+"/"+preemptor.Name,
					"err", err)
			}
			if last, err := p.cfg.Evictions.written(id, v.Pod.UID, gone, err); last && p.cfg.EvictionsDone != nil {
				p.cfg.EvictionsDone(preemptor, err)
			}
		})
	}
}

// evict sets the condition DisruptionTarget of a victim and deletes it with its own grace period. A victim that is not
// bound yet goes back to the queue. gone: it has left the node already.
func (p *Plugin) evict(ctx context.Context, victim, preemptor *corev1.Pod, node string) (gone bool, err error) {
	if p.cfg.Unbind != nil && p.cfg.Unbind(victim.UID) {
		p.cfg.RecordPreempted(victim, preemptor, node, false)
		return true, nil
	}
	if p.cfg.NodeOf != nil {
		// An earlier preemption may have unbound it, after the attempt that chose it saw it here.
		if now, _ := p.cfg.NodeOf(victim.UID); now != node {
			return true, nil
		}
	}
	pods := p.cfg.Client.PodWrites(victim.Namespace)
	if !isPreempted(victim) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": victim.UID},
			"status": map[string]any{"conditions": []corev1.PodCondition{{
				Type:               corev1.DisruptionTarget,
				Status:             corev1.ConditionTrue,
				Reason:             corev1.PodReasonPreemptionByScheduler,
				Message:            preemptor.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
				LastTransitionTime: metav1.NewTime(time.Now()),
				ObservedGeneration: victim.Generation,
			}}},
		})
		if err != nil {
			return false, fmt.Errorf("encode condition: %w", err)
		}
		if _, err := pods.PatchStatus(ctx, victim.Name, patch); err != nil {
			return isGone(err), ignoreGone(err)
		}
	}
	if victim.DeletionTimestamp != nil {
		return false, nil // it is terminating already
	}
	if err := pods.Delete(ctx, victim.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}}); err != nil {
		return isGone(err), ignoreGone(err)
	}
	p.cfg.RecordPreempted(victim, preemptor, node, true)
	return false, nil
}

// isGone reports whether an error means that a victim is gone already, or that another pod has its name.
func isGone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

func ignoreGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}
