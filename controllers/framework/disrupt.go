// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
)

// Disruption is the content of a pod's condition DisruptionTarget.
type Disruption struct {
	Reason, Message string
	// Fail also sets the phase Failed, for pods that no kubelet will finish.
	Fail bool
}

// Disrupt sets the condition on the pod, unless the pod is finished or has it already. A deleted pod is no error.
func Disrupt(ctx context.Context, env *Env, pod *corev1.Pod, disruption Disruption) error {
	if podkind.Terminal(pod) {
		return nil
	}
	podCondition := corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		Status:             corev1.ConditionTrue,
		Reason:             disruption.Reason,
		Message:            disruption.Message,
		LastTransitionTime: metav1.NewTime(time.Now()),
	}
	if old := podkind.Condition(pod, corev1.DisruptionTarget); old != nil && old.Status == podCondition.Status {
		if old.Reason == podCondition.Reason && !disruption.Fail {
			return nil
		}
		podCondition.LastTransitionTime = old.LastTransitionTime
	}
	status := map[string]any{"conditions": []corev1.PodCondition{podCondition}}
	if disruption.Fail {
		status["phase"] = corev1.PodFailed
	}
	return PatchPodStatus(ctx, env, pod, status)
}

// PatchPodStatus merges status (with JSON field names) into the status of the pod with this UID. A deleted pod is no
// error.
func PatchPodStatus(ctx context.Context, env *Env, p *corev1.Pod, status map[string]any) error {
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = env.Client.PodWrites(p.Namespace).PatchStatus(ctx, p.Name, b)
	if err == nil || Superseded(ctx, env, p, err) {
		return nil
	}
	return fmt.Errorf("patch status of pod %s/%s: %w", p.Namespace, p.Name, err)
}

// Superseded reports whether err, the result of a write to p by UID, only means that p was deleted or recreated. The
// server returns Invalid for a patch with another UID; Conflict may also mean concurrent writes, and then the write
// must be repeated.
func Superseded(ctx context.Context, env *Env, p *corev1.Pod, err error) bool {
	if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return apierrors.IsNotFound(err)
	}
	live, err := env.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && live.UID != p.UID
}

// DeletePod deletes the pod with this UID; grace nil keeps the pod's grace period. A deleted pod is no error.
func DeletePod(ctx context.Context, env *Env, p *corev1.Pod, grace *int64) error {
	uid := p.UID
	err := env.Client.PodWrites(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
}
