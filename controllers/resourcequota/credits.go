// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/quota"
	"keelson/controllers/framework"
)

// creditTracker has, for each quota, the usage of deleted objects that is not yet subtracted from status.used.
//
// Admission charges an object before it is stored. So a recalculation cannot distinguish a charge whose object is about
// to be stored from one whose object was deleted. Only the usage of observed deletions is subtracted, each once
// (decisions/0138).
type creditTracker struct {
	mu      sync.Mutex
	credits map[framework.Key]corev1.ResourceList
	// lastIncrease is the time at which the controller last observed an increase of each quota's usage.
	lastIncrease map[framework.Key]time.Time
	// terminating are terminating pods that will stop being charged while they still exist; expired are those that have
	// stopped.
	terminating map[types.NamespacedName]*corev1.Pod
	expired     map[types.UID]bool
}

func newCreditTracker() *creditTracker {
	return &creditTracker{
		credits:      map[framework.Key]corev1.ResourceList{},
		lastIncrease: map[framework.Key]time.Time{},
		terminating:  map[types.NamespacedName]*corev1.Pod{},
		expired:      map[types.UID]bool{},
	}
}

// measureTime returns the time as of which an object is measured. It is the zero time, at which no grace period is
// over, until expirePods has credited the end of the pod's grace period.
func (l *creditTracker) measureTime(o metav1.Object) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.measureTimeLocked(o)
}

func (l *creditTracker) measureTimeLocked(o metav1.Object) time.Time {
	if l.expired[o.GetUID()] {
		return time.Now()
	}
	return time.Time{}
}

// creditDecrease credits each of quotas with the decrease of usage from old to cur, which is nil after a deletion. It
// reports whether any decreased.
func (l *creditTracker) creditDecrease(quotas []*corev1.ResourceQuota, m *quota.Meter, old, cur object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.measureTimeLocked(old)
	return l.creditLocked(quotas, func(q *corev1.ResourceQuota) corev1.ResourceList {
		before := usageIn(q, m, old, at)
		if cur == nil {
			return before
		}
		return quota.Minus(before, usageIn(q, m, cur, at))
	})
}

func (l *creditTracker) creditLocked(
	quotas []*corev1.ResourceQuota, of func(*corev1.ResourceQuota) corev1.ResourceList,
) bool {
	some := false
	for _, q := range quotas {
		gone := quota.NonZero(quota.Floor(quota.Only(of(q), quota.Names(q.Spec.Hard))))
		if len(gone) > 0 {
			key := framework.KeyOf(q)
			l.credits[key] = quota.Sum(l.credits[key], gone)
			some = true
		}
	}
	return some
}

// usageIn returns the usage of obj for q, measured as of the time at.
func usageIn(q *corev1.ResourceQuota, m *quota.Meter, obj runtime.Object, at time.Time) corev1.ResourceList {
	if in, err := m.In(quota.Scopes(q), obj); err != nil || !in {
		return corev1.ResourceList{}
	}
	return m.Usage(obj, at)
}

// takeCredit removes and returns a quota's credit: the caller uses it or puts it back.
func (l *creditTracker) takeCredit(key framework.Key) corev1.ResourceList {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.credits[key]
	delete(l.credits, key)
	return c
}

func (l *creditTracker) restoreCredit(key framework.Key, c corev1.ResourceList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(c) > 0 {
		l.credits[key] = quota.Sum(l.credits[key], c)
	}
}

// setQuota records a new or changed quota; old is nil for a new one.
func (l *creditTracker) setQuota(old, q *corev1.ResourceQuota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := framework.KeyOf(q)
	if old == nil || old.UID != q.UID {
		delete(l.credits, key)
		l.lastIncrease[key] = time.Now()
		return
	}
	for name, n := range q.Status.Used {
		if was := old.Status.Used[name]; n.Cmp(was) > 0 {
			l.lastIncrease[key] = time.Now()
		}
	}
}

func (l *creditTracker) removeQuota(key framework.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.credits, key)
	delete(l.lastIncrease, key)
}

// sinceIncrease returns the time since a quota's usage last increased.
func (l *creditTracker) sinceIncrease(key framework.Key) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.lastIncrease[key])
}

// setPod records when a terminating pod stops being charged. in is the time until then; ends is false if there is
// nothing to wait for. found: the pod comes from the initial list. If its time is over by then, an earlier run of the
// controller has credited it.
func (l *creditTracker) setPod(pod *corev1.Pod, found bool) (in time.Duration, ends bool) {
	end := quota.Expires(pod)
	if end.IsZero() {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.expired[pod.UID]:
		return 0, false
	case found && time.Now().After(end):
		l.expired[pod.UID] = true
		return 0, false
	}
	l.terminating[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod
	return time.Until(end) + time.Second, true
}

func (l *creditTracker) removePod(p *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.terminating, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	delete(l.expired, p.UID)
}

// expirePods credits the namespace's quotas with the usage of pods whose grace period is over. some: at least one quota
// was credited. next is the time until the next pod's grace period ends; 0: none.
func (l *creditTracker) expirePods(
	namespace string, quotas []*corev1.ResourceQuota, meter *quota.Meter,
) (some bool, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for name, pod := range l.terminating {
		if name.Namespace != namespace {
			continue
		}
		if in := quota.Expires(pod).Sub(now); in >= 0 {
			if in += time.Second; next == 0 || in < next {
				next = in
			}
			continue
		}
		delete(l.terminating, name)
		l.expired[pod.UID] = true
		some = l.creditLocked(quotas, func(q *corev1.ResourceQuota) corev1.ResourceList {
			return quota.Minus(usageIn(q, meter, pod, time.Time{}), usageIn(q, meter, pod, now))
		}) || some
	}
	return some, next
}
