// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/core/pod"
)

// The back-off after a failure before the next pod: doubled from the first to the last.
const (
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
)

// backoffRecord counts the failures of a job's pods since the last success.
type backoffRecord struct {
	count int32
	last  time.Time
}

// add returns f after these further finished pods.
func (f backoffRecord) add(succeeded, failed []*corev1.Pod) backoffRecord {
	var success time.Time
	for _, p := range succeeded {
		if t := finished(p); t.After(success) {
			success = t
		}
	}
	if len(succeeded) > 0 {
		f = backoffRecord{}
	}
	for _, p := range failed {
		t := finished(p)
		if len(succeeded) > 0 && !t.After(success) {
			continue
		}
		f.count++
		if t.After(f.last) {
			f.last = t
		}
	}
	return f
}

// wait is how long no pod may be created.
func (f backoffRecord) wait(now time.Time) time.Duration {
	if f.count == 0 {
		return 0
	}
	d := firstBackoff
	for i := int32(1); i < f.count && d < lastBackoff; i++ {
		d *= 2
	}
	return max(0, min(d, lastBackoff)-now.Sub(f.last))
}

// finished is when the pod ended: its last container; else since it is not ready; else its deletion.
func finished(p *corev1.Pod) time.Time {
	if t := lastContainer(p); !t.IsZero() {
		return t
	}
	if c := pod.Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if d := p.DeletionTimestamp; d != nil {
		var grace int64
		if g := p.DeletionGracePeriodSeconds; g != nil {
			grace = *g
		}
		return d.Add(-time.Duration(grace) * time.Second)
	}
	return p.CreationTimestamp.Time
}

// lastContainer is when the last of the containers and sidecars ended; zero if one of them has not.
func lastContainer(p *corev1.Pod) time.Time {
	var last time.Time
	all := p.Status.ContainerStatuses
	for _, s := range p.Status.InitContainerStatuses {
		if slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}) {
			all = append(slices.Clip(all), s)
		}
	}
	for _, s := range all {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			return time.Time{}
		}
		if t := s.State.Terminated.FinishedAt.Time; t.After(last) {
			last = t
		}
	}
	return last
}
