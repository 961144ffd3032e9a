// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// change is one write, shared by all watchers. prev is none for a create, cur for a delete; with bookmarkEntry it is a
// bookmark.
type change struct {
	resource      *Resource
	rev           int64
	key           string
	at            time.Time
	prev, cur     objects.Kept
	err           error // why the written value cannot be decoded; cur is none then
	bookmarkEntry *objects.Entry
	marked        atomic.Int32 // watchers for which it was recorded as a mark

	once         sync.Once
	deletedEntry *objects.Entry
	fields       sync.Once
	prevSet      fields.Set
	curSet       fields.Set
}

// deleted is the entry of the DELETED event, created for the first watcher that needs it.
func (c *change) deleted() *objects.Entry {
	c.once.Do(func() { c.deletedEntry = c.prev.Entry().Deleted(c.rev) })
	return c.deletedEntry
}

// sets are the selectable fields before and after, computed for the first watcher with a field selector.
func (c *change) sets() (prev, cur fields.Set) {
	c.fields.Do(func() {
		if !c.prev.None() {
			c.prevSet = c.resource.records.Fields(c.prev.Entry().Object)
		}
		if !c.cur.None() {
			c.curSet = c.resource.records.Fields(c.cur.Entry().Object)
		}
	})
	return c.prevSet, c.curSet
}

// selection holds a watch's selectors.
type selection struct {
	labels labels.Selector
	fields fields.Selector
	all    bool
	// index returns the indexed field if the field selector uses only that, and value is the selected value; nil: no
	// index.
	index func(kind.Object) string
	value string
}

func newSelection(q *objects.ListQuery) selection {
	return selection{labels: q.Labels, fields: q.Fields, all: q.Labels.Empty() && q.Fields.Empty()}
}

// useIndex sets the index of the selection. If the selector needs no other field, the fields of objects need not be
// computed.
func (s *selection) useIndex(index func(kind.Object) string, value string) {
	if len(s.fields.Requirements()) == 1 {
		s.index = index
		s.value = value
	}
}

// eventFor converts a change to the event for one watch: an object that begins to match is ADDED; one that stops
// matching is DELETED, with its last matching state and the change's revision.
func (s *selection) eventFor(c *change) (objects.Event, bool) {
	before := !c.prev.None()
	after := !c.cur.None()
	if !s.all {
		before, after = s.matches(c)
	}
	switch {
	case before && after:
		return objects.Event{
			Type:   watch.Modified,
			Entry:  c.cur.Entry(),
			Prev:   c.prev.Entry(),
			At:     c.at,
			Marked: &c.marked,
		}, true
	case after:
		return objects.Event{
			Type:   watch.Added,
			Entry:  c.cur.Entry(),
			At:     c.at,
			Marked: &c.marked,
		}, true
	case before:
		return objects.Event{
			Type:   watch.Deleted,
			Entry:  c.deleted(),
			At:     c.at,
			Marked: &c.marked,
		}, true
	}
	return objects.Event{}, false
}

func (s *selection) matches(c *change) (before, after bool) {
	before = !c.prev.None() && s.labels.Matches(labels.Set(c.prev.Entry().Object.GetLabels()))
	after = !c.cur.None() && s.labels.Matches(labels.Set(c.cur.Entry().Object.GetLabels()))
	switch {
	case s.index != nil:
		before = before && s.index(c.prev.Entry().Object) == s.value
		after = after && s.index(c.cur.Entry().Object) == s.value
	case (before || after) && !s.fields.Empty():
		prev, cur := c.sets()
		before = before && s.fields.Matches(prev)
		after = after && s.fields.Matches(cur)
	}
	return before, after
}

// window is the history from which watches resume without the store: every change after since, oldest first.
type window struct {
	since   int64
	changes []*change
}

const (
	windowMin = 1024
	windowMax = 16384
	windowAge = 75 * time.Second
)

// add appends c. When the window has doubled it drops half, unless that is young and below the limit.
func (w *window) add(c *change) {
	w.changes = append(w.changes, c)
	n := len(w.changes)
	if n < 2*windowMin {
		return
	}
	half := n / 2
	if n < windowMax && (n%windowMin != 0 || c.at.Sub(w.changes[half].at) < windowAge) {
		return
	}
	w.since = w.changes[half-1].rev
	w.changes = append([]*change(nil), w.changes[half:]...)
}

// expire drops changes older than windowAge, except the newest windowMin. It returns the approximate number of bytes
// that this can free.
func (w *window) expire(now time.Time) (bytes int) {
	old := sort.Search(len(w.changes), func(i int) bool { return now.Sub(w.changes[i].at) < windowAge })
	n := min(old, len(w.changes)-windowMin)
	if n <= 0 {
		return 0
	}
	for _, c := range w.changes[:n] {
		bytes += c.replacedSize()
	}
	w.since = w.changes[n-1].rev
	w.changes = append([]*change(nil), w.changes[n:]...)
	return bytes
}

// replacedSize is the approximate memory of the replaced or deleted object, which only the window holds: several times
// its stored size.
func (c *change) replacedSize() int {
	const inMemory = 4
	return inMemory * c.prev.Size()
}

// after returns the changes after rev, which must not be below since.
func (w *window) after(rev int64) []*change {
	i := sort.Search(len(w.changes), func(i int) bool { return w.changes[i].rev > rev })
	return w.changes[i:]
}
