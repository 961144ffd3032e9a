// SPDX-License-Identifier: Apache-2.0

package queue

import "keelson/scheduler/framework"

const kindsKnown = 32 // as many as framework.Kinds has bits

// maxEvents is the maximum number of events that are kept for pods in flight: with extenders an attempt may take long.
// A pod that has missed more events than that is tried again.
const maxEvents = 50_000

// eventLog keeps the events that pods in flight have missed, and when there was one of each kind. Queue.mu guards it.
type eventLog struct {
	// events holds the events since the oldest pod in flight was popped. The first has number base.
	events   []framework.Event
	base     int64
	inFlight int
	// seq is the number of all cluster events so far. lastOfKind is the value of seq at the last event of each kind.
	seq        int64
	lastOfKind [kindsKnown]int64
}

// begin starts the flight of n pods and returns the number of the first event that they miss.
func (l *eventLog) begin(n int) int64 {
	l.inFlight += n
	return l.base + int64(len(l.events))
}

// end ends the flight of a pod whose first event was number first. It returns the events since, which are valid as
// long as the lock is held, and whether they are all there.
func (l *eventLog) end(first int64) (missed []framework.Event, all bool) {
	all = first >= l.base
	missed = l.events[max(first, l.base)-l.base:]
	if l.inFlight--; l.inFlight == 0 && len(l.events) > 0 {
		l.base += int64(len(l.events))
		l.events = nil // missed still refers to it
	}
	return missed, all
}

// add keeps an event for the pods in flight.
func (l *eventLog) add(e framework.Event) {
	if l.inFlight == 0 {
		return
	}
	if len(l.events) >= maxEvents {
		l.base += int64(len(l.events))
		clear(l.events)
		l.events = l.events[:0]
	}
	l.events = append(l.events, e)
}

// count notes the kinds of a cluster event.
func (l *eventLog) count(kinds framework.EventKinds) {
	l.seq++
	for i := range l.lastOfKind {
		if kinds&(1<<i) != 0 {
			l.lastOfKind[i] = l.seq
		}
	}
}

// kindsSince returns the kinds of the cluster events after number seq.
func (l *eventLog) kindsSince(seq int64) (kinds framework.EventKinds) {
	for i, last := range l.lastOfKind {
		if last > seq {
			kinds |= 1 << i
		}
	}
	return kinds
}
