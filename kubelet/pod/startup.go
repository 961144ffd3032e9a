// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// span is a time during which something went on.
type span struct{ from, to time.Time }

// covered returns how long at least one of the spans went on.
func covered(spans []span) time.Duration {
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var sum time.Duration
	var end time.Time
	for _, s := range spans {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			sum += s.to.Sub(s.from)
			end = s.to
		}
	}
	return sum
}

// noteStart counts a pod that has just begun to run. The service level of starts is about pods without state of their
// own, from their creation on, and without the time for images and for what init containers do.
func (l *loop) noteStart(pod *corev1.Pod, status *corev1.PodStatus) {
	now := time.Now()
	l.env.Metrics.PodStarted(now.Sub(l.s.seen))
	if !stateless(pod) {
		return
	}
	apart := l.starter.pulls.spans()
	for i := range status.InitContainerStatuses {
		if end := status.InitContainerStatuses[i].State.Terminated; end != nil {
			apart = append(apart, span{end.StartedAt.Time, end.FinishedAt.Time})
		}
	}
	l.env.Metrics.PodStartLevel(now.Sub(pod.CreationTimestamp.Time) - covered(apart))
}

// stateless reports whether all volumes of a pod come from the API or begin empty.
func stateless(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
}

// pulls are when images were pulled for a pod. The actions of its containers add to it.
type pulls struct {
	mu  sync.Mutex
	all []span
}

// maxPulls bounds what is kept of a pod that restarts with new images.
const maxPulls = 100

// add adds a pull that ends now.
func (p *pulls) add(from time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) < maxPulls {
		p.all = append(p.all, span{from, time.Now()})
	}
}

// spans returns a copy.
func (p *pulls) spans() []span {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}
