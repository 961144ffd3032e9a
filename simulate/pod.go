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
	"keelson/lib/mark"
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
func next(p *corev1.Pod, now time.Time) step {
	switch {
	case p.DeletionTimestamp != nil:
		return step{what: remove}
	case p.Status.Phase == corev1.PodPending || p.Status.Phase == "":
		return step{what: start}
	case p.Status.Phase == corev1.PodRunning && podkind.Condition(p, corev1.PodReady) != nil && !podkind.Ready(p):
		return step{what: ready}
	case p.Status.Phase != corev1.PodRunning || p.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		p.Status.StartTime == nil:
		return step{}
	}
	d, err := time.ParseDuration(p.Annotations[AnnotationRunFor])
	if err != nil {
		return step{} // no annotation, or no duration: it keeps running
	}
	if left := p.Status.StartTime.Add(d).Sub(now); left > 0 {
		return step{what: later, wait: left}
	}
	code, err := strconv.ParseInt(p.Annotations[AnnotationExitCode], 10, 32)
	if err != nil || code != 0 && p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		code = 0 // a failed container would be restarted until it succeeds
	}
	return step{what: end, code: int32(code)}
}

// running is the status of a pod on node i that has just become ready.
func running(p *corev1.Pod, i int, ip string, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now)
	st := *p.Status.DeepCopy()
	st.Phase = corev1.PodRunning
	st.StartTime = &at
	st.HostIP = nodeIP(i)
	st.HostIPs = []corev1.HostIP{{IP: nodeIP(i)}}
	if p.Spec.HostNetwork {
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
			ObservedGeneration: p.Generation,
		})
	}
	st.ObservedGeneration = p.Generation
	yes := true
	st.InitContainerStatuses = nil
	st.ContainerStatuses = nil
	for k := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[k]
		s := containerStatus(p, c)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			s.Started = &yes
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		} else {
			s.State.Terminated = &corev1.ContainerStateTerminated{
				Reason:      "Completed",
				StartedAt:   at,
				FinishedAt:  at,
				ContainerID: s.ContainerID,
			}
		}
		st.InitContainerStatuses = append(st.InitContainerStatuses, s)
	}
	for k := range p.Spec.Containers {
		s := containerStatus(p, &p.Spec.Containers[k])
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
		s := &st.ContainerStatuses[k]
		s.Ready = false
		s.Started = &no
		began := at
		if s.State.Running != nil {
			began = s.State.Running.StartedAt
		}
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode:    code,
			Reason:      reason,
			StartedAt:   began,
			FinishedAt:  at,
			ContainerID: s.ContainerID,
		}}
	}
	return st
}

func (s *Simulator) step(ctx context.Context) bool {
	key, quit := s.queue.Get()
	if quit {
		return false
	}
	defer s.queue.Done(key)
	err := s.move(ctx, key)
	switch {
	case err == nil:
		s.queue.Forget(key)
	case ctx.Err() == nil:
		if !apierrors.IsConflict(err) {
			s.cfg.Log.Warn("fake pod will be retried", "pod", key.String(), "err", err)
		}
		s.queue.AddRateLimited(key)
	}
	return true
}

// move applies the next step of a pod.
func (s *Simulator) move(ctx context.Context, key types.NamespacedName) error {
	p, err := s.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	i, ok := s.index(p.Spec.NodeName)
	if !ok || s.silent(i) {
		return nil
	}
	//exhaustive:enforce
	switch now := time.Now(); next(p, now).what {
	case nothing:
	case remove:
		uid := p.UID
		zero := int64(0)
		err := s.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero,
			Preconditions:      &metav1.Preconditions{UID: &uid},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete: %w", err)
		}
	case later:
		s.queue.AddAfter(key, next(p, now).wait)
	case end:
		return s.write(ctx, p, ended(p, next(p, now).code, now))
	case ready:
		return s.write(ctx, p, again(p, now))
	case start:
		ip := s.ips.take(i)
		if err := s.write(ctx, p, running(p, i, ip, now)); err != nil {
			s.ips.release(i, ip)
			return err
		}
	}
	return nil
}

// write updates a pod's status.
func (s *Simulator) write(ctx context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	n := *p // shallow copy: the rest is only encoded
	n.Status = st
	if _, err := s.cfg.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, &n, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write status: %w", err)
	}
	ready := st.Phase == corev1.PodRunning
	d := &mark.Status{From: string(p.Status.Phase), To: string(st.Phase), Ready: ready}
	s.emit(p, mark.StepStatus, d)
	if ready {
		s.emit(p, mark.StepReady, d)
	}
	return nil
}
