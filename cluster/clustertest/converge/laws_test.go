// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	podfacts "keelson/api/core/pod"
	"keelson/cluster/clustertest"
)

// laws hold at every moment, whatever breaks:
//
//  1. No pod has two controllers.
//  2. No pod of a stateful set goes away while its node may still run it: its kubelet has let it go, or the node's
//     object is gone.
//  3. No eviction breaks a budget, as far as the disruption controller could know: there was a moment, not longer ago
//     than news may take to reach it, at which as many pods were healthy as the budget wants in addition to all those
//     that have been evicted since.
type laws struct {
	mu     sync.Mutex
	broken []string
	// removed are the names of pods that a kubelet has let go, lost the nodes whose object was deleted.
	removed, lost map[string]bool
	// unheard are the bodies of creations of pods whose answers were lost: their sender may do it again.
	unheard [][]byte
	// least is what the budget of an app wants, evicted what budgets wanted of the pods that users have had evicted.
	least   map[string]int
	evicted map[types.UID]int
	pods    map[types.UID]health
	past    map[string][]change // by app, oldest first
	since   time.Time           // from when on the past is known; zero: all of it
	// dead: the controllers or the API server are, since blind, with pauses too short to catch up. sees is when they
	// last came back.
	dead        bool
	blind, sees time.Time
}

type health struct {
	app     string
	healthy bool
}

// change of how many pods of an app are healthy.
type change struct {
	at      time.Time
	by      int
	evicted bool // under a budget
}

// news takes no longer to reach a controller that lives: watches are late by seconds, and failing passes back off.
const news = 2 * time.Minute

func newLaws() *laws {
	return &laws{
		removed: map[string]bool{},
		lost:    map[string]bool{},
		least:   map[string]int{},
		evicted: map[types.UID]int{},
	}
}

func (l *laws) wrong(format string, args ...any) {
	l.broken = append(l.broken, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// found are the laws that were broken.
func (l *laws) found() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (l *laws) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// deaf reports that the controllers or the API server are dead from now on, or alive again.
func (l *laws) deaf(yes bool) {
	l.note(func() {
		now := time.Now()
		if yes && !l.dead && l.sees.Before(now.Add(-news)) {
			l.blind = now
		}
		if l.dead = yes; !yes {
			l.sees = now
		}
	})
}

// watch looks at all pods until ctx is done.
func (l *laws) watch(ctx context.Context, c *clustertest.Cluster) {
	for first := true; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) { // the API server may be dead
		l.note(func() {
			l.pods = map[types.UID]health{}
			l.past = map[string][]change{}
			if !first {
				l.since = time.Now()
			}
		})
		first = false
		w, err := c.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for ev := range w.ResultChan() {
			if p, is := ev.Object.(*corev1.Pod); is {
				l.note(func() { l.pod(p, ev.Type == watch.Deleted) })
			}
		}
	}
}

func (l *laws) pod(p *corev1.Pod, gone bool) {
	controllers := 0
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			controllers++
		}
	}
	if controllers > 1 {
		l.wrong("pod %s has %d controllers", p.Name, controllers)
	}
	if gone && p.Spec.NodeName != "" && !podfacts.Terminal(p) {
		if o := metav1.GetControllerOf(p); o != nil && o.Kind == "StatefulSet" && !l.removed[p.Name] &&
			!l.lost[p.Spec.NodeName] {
			l.wrong("pod %s was removed while %s may run it", p.Name, p.Spec.NodeName)
		}
		delete(l.removed, p.Name)
	}
	l.count(p, gone)
}

// count keeps the health of an app's pods.
func (l *laws) count(pod *corev1.Pod, gone bool) {
	d := podfacts.Condition(pod, corev1.DisruptionTarget)
	evicted := d != nil && d.Status == corev1.ConditionTrue && d.Reason == "EvictionByEvictionAPI"
	app := pod.Labels["app"]
	was := l.pods[pod.UID]
	is := health{app, !gone && pod.DeletionTimestamp == nil && podfacts.Ready(pod) && !evicted}
	if gone {
		delete(l.pods, pod.UID)
	} else {
		l.pods[pod.UID] = is
	}
	if was.healthy == is.healthy {
		return
	}
	least, protected := l.evicted[pod.UID]
	protected = protected && evicted && was.healthy
	by := 1
	if was.healthy {
		by = -1
	}
	l.past[app] = append(l.past[app], change{time.Now(), by, protected})
	if protected {
		l.judge(pod, app, least)
	}
}

// judge looks for a moment at which the eviction of pod, the last change, was right.
func (l *laws) judge(pod *corev1.Pod, app string, least int) {
	now := 0
	for _, h := range l.pods {
		if h.app == app && h.healthy {
			now++
		}
	}
	from := time.Now().Add(-news)
	if l.dead || l.sees.After(from) {
		if early := l.blind.Add(-news); early.Before(from) {
			from = early
		}
	}
	if l.since.After(from) {
		return // it may have been before anybody looked
	}
	best := now
	left := now
	past := l.past[app]
	for i := len(past) - 1; i >= 0 && best < least && past[i].at.After(from); i-- {
		if !past[i].evicted {
			left -= past[i].by
			best = max(best, left)
		}
	}
	if best < least {
		l.wrong("pod %s was evicted: %d of %s are healthy, its budget wants %d", pod.Name, now, app, least)
	}
}

// budget reports that there is a budget, or with nil that there is none.
func (l *laws) budget(app string, b *policyv1.PodDisruptionBudget) {
	l.note(func() {
		if delete(l.least, app); b != nil {
			l.least[app] = b.Spec.MinAvailable.IntValue()
		}
	})
}

// again is how many of an owner's pods may have been created once more than it wanted.
func (l *laws) again(owner string) (n int32) {
	l.note(func() {
		for _, body := range l.unheard {
			if bytes.Contains(body, []byte(owner+"-")) { // its generateName
				n++
			}
		}
	})
	return n
}

// evict reports that p is to be evicted by way of the API. It may have been refused before, under a budget that is
// gone.
func (l *laws) evict(p *corev1.Pod) {
	l.note(func() {
		delete(l.evicted, p.UID)
		if least, ok := l.least[p.Labels["app"]]; ok {
			l.evicted[p.UID] = least
		}
	})
}
