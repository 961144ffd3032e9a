// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"keelson/event"
)

// Limits for stored watch events: per object, and of different watchers.
const (
	keepDeliveries = 40
	keepWatchers   = 10000
)

// watcher is the receiver of an event and what it watches.
type watcher struct{ to, watches string }

// delivery is the compact form of a event.Delivery: there are many deliveries and few watchers.
type delivery struct {
	at       int64 // Unix nanoseconds
	took     time.Duration
	revision int64
	event    string // one of eventTypes
	watcher  *watcher
}

// deliveries are the first events of a pod, or the last ones of an owner: the owner's latest change leads to pods.
type deliveries struct {
	list []delivery
	next int // index to overwrite next, of an owner's
	left int // number that was not stored
}

func (d *deliveries) add(n delivery, last bool) {
	switch {
	case len(d.list) < keepDeliveries:
		d.list = append(d.list, n)
	case last:
		d.list[d.next] = n
		d.next = (d.next + 1) % keepDeliveries
	default:
		d.left++
	}
}

// deliveredLocked stores a watch event of a record's object.
func (t *Timeline) deliveredLocked(r *record, mk event.Event, d *event.Delivery) {
	key := watcher{d.To, d.Watches}
	w := t.watchers[key]
	if w == nil {
		if len(t.watchers) >= keepWatchers {
			clear(t.watchers)
		}
		w = &key
		t.watchers[key] = w
	}
	i := max(slices.Index(eventTypes, d.Event), 0)
	r.deliveries.add(delivery{mk.At.UnixNano(), mk.Took, d.Revision, eventTypes[i], w}, r.subject.Resource != "pods")
}

var eventTypes = []string{"MODIFIED", "ADDED", "DELETED"}

// marks returns the deliveries as marks.
func (d *deliveries) marks(about event.Subject) []event.Event {
	out := make([]event.Event, 0, len(d.list))
	for _, delivery := range d.list {
		out = append(out, event.Event{
			Step:      event.StepDelivery,
			Component: "apiserver",
			At:        time.Unix(0, delivery.at),
			Took:      delivery.took,
			Subject:   about,
			Detail: &event.Delivery{
				Event:    delivery.event,
				Revision: delivery.revision,
				To:       delivery.watcher.to,
				Watches:  delivery.watcher.watches,
			},
		})
	}
	return out
}

// delivery adds a watch event: one line for all receivers.
func (w *writer) delivery(mk event.Event, d *event.Delivery) {
	at := mk.At.Sub(w.start)
	to := Step{
		At:      at,
		Took:    mk.Took,
		Who:     watcherOf(d.To),
		What:    d.Watches,
		HandOff: w.handOffs.of(mk),
	}
	key := fmt.Sprint(mk.Subject.UID, d.Revision)
	if i, ok := w.events[key]; ok {
		w.steps[i].Parts = append(w.steps[i].Parts, to)
		w.steps[i].Took = max(w.steps[i].Took, mk.Took)
		return
	}
	if w.events == nil {
		w.events = map[string]int{}
	}
	w.events[key] = len(w.steps)
	what := fmt.Sprintf(eventPrefix+"%s at revision %d", strings.TrimSuffix(mk.Subject.Resource, "s"), d.Revision)
	w.steps = append(w.steps, Step{
		HandOff: w.handOffs.of(mk),
		At:      at,
		Took:    mk.Took,
		Who:     mk.Component,
		What:    what,
		Parts:   []Step{to},
	})
}

// completeDeliveries completes the lines of events when all receivers are known.
func (w *writer) completeDeliveries() {
	for _, i := range w.events {
		s := &w.steps[i]
		slices.SortStableFunc(s.Parts, func(a, b Step) int { return int(a.Took - b.Took) })
		told := make([]string, 0, len(s.Parts))
		for _, p := range s.Parts {
			told = append(told, p.Who+" after "+Took(p.Took))
		}
		s.What += ": to " + some(told)
	}
}

// eventPrefix is the prefix of a watch event's line. Its parts are the receivers and what they watch.
const eventPrefix = "watch event, "

// watcherOf returns the component name for a user name, as the other steps show it.
func watcherOf(user string) string {
	switch user {
	case "system:kube-scheduler":
		return "scheduler"
	case "system:kube-controller-manager":
		return "controllers"
	}
	if node, ok := strings.CutPrefix(user, "system:node:"); ok {
		return "kubelet " + node
	}
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		return strings.TrimPrefix(strings.Replace(account, ":", "/", 1), "kube-system/")
	}
	return strings.TrimPrefix(user, "system:")
}
