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

// departure is when a pod of a tainted node will be evicted, and because of which taint.
type departure struct {
	pod     framework.Key
	at      time.Time
	because string
}

// namedAtMost limits the pods named in an event.
const namedAtMost = 8

// announce records an event of the node with the pods that will be evicted later, and when.
func (c *Controller) announce(node string) error {
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
	taints, now, stay := evicting(n.Spec.Taints), time.Now(), 0
	var leaving []departure
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		stays, because := toleration(taints, p.Spec.Tolerations)
		if because == nil {
			stay++
			continue
		}
		since := c.since(p)
		if since.IsZero() {
			since = began(p, because, now)
		}
		if at := since.Add(stays); at.After(now) { // the others are deleted by now, with their own events
			leaving = append(leaving, departure{framework.KeyOf(p), at, because.ToString()})
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	c.env.Events.Event(ref, corev1.EventTypeNormal, "TaintManagerEviction", notice(leaving, stay, now))
	return nil
}

// since is when the toleration time of a pod started; zero: it is not to be evicted.
func (c *Controller) since(p *corev1.Pod) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.pending[framework.KeyOf(p)]; d.uid == p.UID {
		return d.since
	}
	return time.Time{}
}

// notice describes in one line when pods will be evicted, the first ones first.
func notice(leaving []departure, stay int, now time.Time) string {
	slices.SortFunc(leaving, func(a, b departure) int {
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.because, b.because), strings.Compare(a.pod.String(), b.pod.String()))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "Deleting %s: ", count(len(leaving), "Pod"))
	for i, d := range leaving {
		if i == namedAtMost {
			fmt.Fprintf(&b, " and %d more", len(leaving)-i)
			break
		}
		if i > 0 && d.because == leaving[i-1].because && !d.at.Truncate(time.Second).After(leaving[i-1].at) {
			b.WriteString(", " + d.pod.String())
			continue
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "at %s (in %s) for taint %s: %s", d.at.UTC().Format(time.RFC3339), d.at.Sub(now).Round(time.Second), d.because, d.pod)
	}
	if stay > 0 {
		fmt.Fprintf(&b, "; %s", count(stay, "other"))
		b.WriteString(map[bool]string{true: " stays", false: " stay"}[stay == 1])
	}
	return b.String()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
