// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
	"keelson/event"
	"keelson/lib/keyed"
)

// Annotations of a pod that control its simulated containers.
const (
	// AnnotationRunFor is how long the containers run (a Go duration); without it they run until the pod is deleted.
	AnnotationRunFor = "keelson.dev/fake-run-for"
	// AnnotationExitCode is their exit code; default 0.
	AnnotationExitCode = "keelson.dev/fake-exit-code"
)

type stepKind int

const (
	nothing stepKind = iota
	start            // Pending: set Running and Ready
	end              // the run time is over: set Succeeded or Failed
	later            // run end after step.wait
	remove           // in deletion: delete the object
	ready            // Running, but set to not ready by another client: set Ready again
)

// step is the next action of a simulated kubelet for a pod.
type step struct {
	what stepKind
	wait time.Duration
	code int32 // exit code of end
}

// next returns the next step of a pod on a fake node.
func next(pod *corev1.Pod, now time.Time) step {
	switch {
	case pod.DeletionTimestamp != nil:
		return step{what: remove}
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		return step{what: start}
	case pod.Status.Phase == corev1.PodRunning && podkind.Condition(pod, corev1.PodReady) != nil && !podkind.Ready(pod):
		return step{what: ready}
	case pod.Status.Phase != corev1.PodRunning || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		pod.Status.StartTime == nil:
		return step{}
	}
	d, err := time.ParseDuration(pod.Annotations[AnnotationRunFor])
	if err != nil {
		return step{} // no annotation, or no duration: it keeps running
	}
	if left := pod.Status.StartTime.Add(d).Sub(now); left > 0 {
		return step{what: later, wait: left}
	}
	code, err := strconv.ParseInt(pod.Annotations[AnnotationExitCode], 10, 32)
	if err != nil || code != 0 && pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		code = 0 // a failed container would be restarted until it succeeds
	}
	return step{what: end, code: int32(code)}
}

// running is the status of a pod on node i that has just become ready.
func running(pod *corev1.Pod, i int, ip string, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now)
	st := *pod.Status.DeepCopy()
	st.Phase = corev1.PodRunning
	st.StartTime = &at
	st.HostIP = nodeIP(i)
	st.HostIPs = []corev1.HostIP{{IP: nodeIP(i)}}
	if pod.Spec.HostNetwork {
		ip = nodeIP(i)
	}
	st.PodIP = ip
	st.PodIPs = []corev1.PodIP{{IP: ip}}
	for _, t := range []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
		corev1.PodScheduled,
	} {
		st.Conditions = withCondition(st.Conditions, corev1.PodCondition{
			Type:               t,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: at,
			ObservedGeneration: pod.Generation,
		})
	}
	st.ObservedGeneration = pod.Generation
	yes := true
	st.InitContainerStatuses = nil
	st.ContainerStatuses = nil
	for k := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[k]
		status := containerStatus(pod, c)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			status.Started = &yes
			status.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		} else {
			status.State.Terminated = &corev1.ContainerStateTerminated{
				Reason:      "Completed",
				StartedAt:   at,
				FinishedAt:  at,
				ContainerID: status.ContainerID,
			}
		}
		st.InitContainerStatuses = append(st.InitContainerStatuses, status)
	}
	for k := range pod.Spec.Containers {
		s := containerStatus(pod, &pod.Spec.Containers[k])
		s.Started = &yes
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		st.ContainerStatuses = append(st.ContainerStatuses, s)
	}
	return st
}

func containerStatus(p *corev1.Pod, c *corev1.Container) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name:        c.Name,
		Ready:       true,
		Image:       c.Image,
		ImageID:     "fake://" + c.Image,
		ContainerID: "fake://" + string(p.UID) + "/" + c.Name,
	}
}

func withCondition(conds []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	for k := range conds {
		if conds[k].Type == c.Type {
			if conds[k].Status == c.Status {
				c.LastTransitionTime = conds[k].LastTransitionTime
			}
			conds[k] = c
			return conds
		}
	}
	return append(conds, c)
}

// again is the status of a running pod that becomes ready again.
func again(p *corev1.Pod, now time.Time) corev1.PodStatus {
	st := *p.Status.DeepCopy()
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		st.Conditions = withCondition(st.Conditions, corev1.PodCondition{
			Type:               t,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now),
			ObservedGeneration: p.Generation,
		})
	}
	return st
}

// ended is the status of a pod whose containers have exited with code.
func ended(p *corev1.Pod, code int32, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now)
	st := *p.Status.DeepCopy()
	reason := "Completed"
	st.Phase = corev1.PodSucceeded
	if code != 0 {
		st.Phase = corev1.PodFailed
		reason = "Error"
	}
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, LastTransitionTime: at}
		if code == 0 {
			c.Reason = "PodCompleted"
		}
		st.Conditions = withCondition(st.Conditions, c)
	}
	no := false
	for k := range st.ContainerStatuses {
		status := &st.ContainerStatuses[k]
		status.Ready = false
		status.Started = &no
		began := at
		if status.State.Running != nil {
			began = status.State.Running.StartedAt
		}
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode:    code,
			Reason:      reason,
			StartedAt:   began,
			FinishedAt:  at,
			ContainerID: status.ContainerID,
		}}
	}
	return st
}

// step works on one pod. After a conflict it is called again: the informer brings the newer version.
func (s *Simulator) step(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	again, err = s.move(ctx, key)
	if apierrors.IsConflict(err) {
		err = keyed.ErrAgain
	}
	return again, err
}

// move applies the next step of a pod. wait above 0 is the time until the one after it.
func (s *Simulator) move(ctx context.Context, key types.NamespacedName) (wait time.Duration, err error) {
	pod, err := s.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	i, ok := s.index(pod.Spec.NodeName)
	if !ok || s.silent(i) {
		return 0, nil
	}
	//exhaustive:enforce
	switch now := time.Now(); next(pod, now).what {
	case nothing:
	case remove:
		uid := pod.UID
		zero := int64(0)
		err := s.cfg.Client.PodWrites(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero,
			Preconditions:      &metav1.Preconditions{UID: &uid},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("delete: %w", err)
		}
	case later:
		return next(pod, now).wait, nil
	case end:
		return 0, s.write(ctx, pod, ended(pod, next(pod, now).code, now))
	case ready:
		return 0, s.write(ctx, pod, again(pod, now))
	case start:
		ip := s.ips.take(i)
		if err := s.write(ctx, pod, running(pod, i, ip, now)); err != nil {
			s.ips.release(i, ip)
			return 0, err
		}
	}
	return 0, nil
}

// write updates a pod's status.
func (s *Simulator) write(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	n := *pod // shallow copy: the rest is only encoded
	n.Status = st
	if _, err := s.cfg.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, &n, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write status: %w", err)
	}
	ready := st.Phase == corev1.PodRunning
	d := &event.Status{From: string(pod.Status.Phase), To: string(st.Phase), Ready: ready}
	s.emit(pod, event.StepStatus, d)
	if ready {
		s.emit(pod, event.StepReady, d)
	}
	return nil
}
