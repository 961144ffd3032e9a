// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/controllers/framework"
)

// scheduledEviction is when a pod of a tainted node will be evicted, and because of which taint.
type scheduledEviction struct {
	pod   framework.Key
	at    time.Time
	taint string
}

// maxNamedPods limits the pods named in an event.
const maxNamedPods = 8

// recordEvictionEvent records an event of the node with the pods that will be evicted later, and when.
func (c *Controller) recordEvictionEvent(node string) error {
	n, err := c.nodes.Get(node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	pods, err := framework.PodsOn(c.index, node)
	if err != nil {
		return err
	}
	taints := noExecuteTaints(n.Spec.Taints)
	now := time.Now()
	stay := 0
	var leaving []scheduledEviction
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		stays, because := toleration(taints, pod.Spec.Tolerations)
		if because == nil {
			stay++
			continue
		}
		since := c.tolerationStart(pod)
		if since.IsZero() {
			since = tolerationStartOf(pod, because, now)
		}
		if at := since.Add(stays); at.After(now) { // the others are deleted by now, with their own events
			leaving = append(leaving, scheduledEviction{framework.KeyOf(pod), at, because.ToString()})
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	ref := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       n.Name,
		UID:        n.UID,
	}
	c.env.Events.Event(ref, corev1.EventTypeNormal, "TaintManagerEviction", evictionMessage(leaving, stay, now))
	return nil
}

// tolerationStart is when the toleration time of a pod started; zero: it is not to be evicted.
func (c *Controller) tolerationStart(p *corev1.Pod) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.pending[framework.KeyOf(p)]; d.uid == p.UID {
		return d.since
	}
	return time.Time{}
}

// evictionMessage describes in one line when pods will be evicted, the first ones first.
func evictionMessage(evictions []scheduledEviction, stay int, now time.Time) string {
	slices.SortFunc(evictions, func(a, b scheduledEviction) int {
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.taint, b.taint),
			strings.Compare(a.pod.String(), b.pod.String()))
	})
	var out strings.Builder
	fmt.Fprintf(&out, "Deleting %s: ", countText(len(evictions), "Pod"))
	for i, eviction := range evictions {
		if i == maxNamedPods {
			fmt.Fprintf(&out, " and %d more", len(evictions)-i)
			break
		}
		if i > 0 && eviction.taint == evictions[i-1].taint && !eviction.at.Truncate(time.Second).After(
			evictions[i-1].at) {
			out.WriteString(", " + eviction.pod.String())
			continue
		}
		if i > 0 {
			out.WriteString("; ")
		}
		fmt.Fprintf(&out, "at %s (in %s) for taint %s: %s", eviction.at.UTC().Format(time.RFC3339),
			eviction.at.Sub(now).Round(time.Second), eviction.taint, eviction.pod)
	}
	if stay > 0 {
		fmt.Fprintf(&out, "; %s", countText(stay, "other"))
		out.WriteString(map[bool]string{true: " stays", false: " stay"}[stay == 1])
	}
	return out.String()
}

func countText(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
