// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
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
func (t *Ledger) deliveredLocked(r *record, mk event.Event, d *event.Delivery) {
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
