// SPDX-License-Identifier: Apache-2.0

package holdback

import (
	"cmp"
	"fmt"
	"time"

	"keelson/lib/words"
)

// holdLocked says why r must wait; nil: it may start, and a suspect has the turn then. wakeOther is of the suspect that
// r waits for, if that is to ask now.
func (k *Keeper) holdLocked(r *record, wake func()) (hold *Hold, wakeOther func()) {
	now := time.Now()
	switch {
	case r.Deaths == 0 || r.count > 0:
		return nil, nil
	case r.isImage():
		if until := r.Last.Add(pause(r.Deaths - 1)); now.Before(until) {
			const text = "Keelson ended %s while it pulled image %q. It tries again at %s."
			message := fmt.Sprintf(text, words.Count(r.Deaths, "time"), r.Name, clock(until))
			return &Hold{Until: until, Message: message}, nil
		}
		return nil, nil
	}
	until, guilty := k.namespaceLocked(r.Namespace)
	if now.Before(until) {
		r.wake = wake
		return &Hold{Until: until, Message: message(r, guilty, until)}, nil
	}
	if k.turn != nil && k.turn != r && now.Before(k.turnEnd) {
		r.wake = wake
		return &Hold{Until: k.turnEnd, Turn: true, Message: turnMessage}, nil
	}
	if other := k.firstLocked(now); other != nil && other != r && k.beforeLocked(other, r) {
		r.wake = wake
		if other.called.IsZero() {
			other.called = now
			wakeOther = other.wake
		}
		return &Hold{Until: other.called.Add(turnLimit), Turn: true, Message: turnMessage}, wakeOther
	}
	k.turn = r
	k.turnEnd = now.Add(turnLimit)
	return nil, nil
}

const turnMessage = "Keelson ended while this pod was starting. " +
	"Such pods start one at a time, and this one waits for its turn."

// message is for the user of a pod that is held back. guilty was under way at more than one death.
func message(r, guilty *record, until time.Time) string {
	if r.Deaths > 1 {
		const text = "Keelson ended %d times while this pod was starting. It tries again at %s. " +
			"Delete the pod if it is the cause."
		return fmt.Sprintf(text, r.Deaths, clock(until))
	}
	const text = "Keelson ended while this pod was starting, and %d times with pod %s/%s. It tries again at %s."
	return fmt.Sprintf(text, guilty.Deaths, guilty.Namespace, guilty.Name, clock(until))
}

func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly) + " UTC" }

// pause is how long to wait after a death, if there were n deaths more than the first; 0: not at all.
func pause(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	return min(pauseMin<<min(n-1, 16), pauseMax)
}

// namespaceLocked is until when suspects of a namespace wait, because of pods of it that were under way at more than
// one death; guilty is the last of these, nil: there are none.
func (k *Keeper) namespaceLocked(namespace string) (until time.Time, guilty *record) {
	more := 0
	for _, r := range k.records {
		if r.isImage() || r.Namespace != namespace || r.Deaths < 2 {
			continue
		}
		more += r.Deaths - 1
		if guilty == nil || r.Last.After(guilty.Last) {
			guilty = r
		}
	}
	if guilty == nil {
		return time.Time{}, nil
	}
	return guilty.Last.Add(pause(more)), guilty
}

// firstLocked is the suspect, of those that wait and may start now, whose turn is next; nil: none waits. One that was
// called turnLimit ago and has not asked since waits no more.
func (k *Keeper) firstLocked(now time.Time) *record {
	var first *record
	for _, r := range k.records {
		if !r.called.IsZero() && now.Sub(r.called) >= turnLimit {
			r.wake = nil
		}
		if r.wake == nil {
			continue
		}
		if until, _ := k.namespaceLocked(r.Namespace); now.Before(until) {
			continue
		}
		if first == nil || k.beforeLocked(r, first) {
			first = r
		}
	}
	return first
}

// beforeLocked reports whether the turn of suspect a is before that of b: the subject that was under
// way at fewer deaths comes first, then the one with fewer suspects in its namespace. So a tenant that starts a hundred
// pods does not delay one that starts a single pod.
func (k *Keeper) beforeLocked(a, b *record) bool {
	return cmp.Or(
		cmp.Compare(a.Deaths, b.Deaths),
		cmp.Compare(k.suspectsLocked(a.Namespace), k.suspectsLocked(b.Namespace)),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.UID, b.UID),
	) < 0
}

// suspectsLocked is how many suspects a namespace has.
func (k *Keeper) suspectsLocked(namespace string) int {
	n := 0
	for _, r := range k.records {
		if !r.isImage() && r.Namespace == namespace && r.Deaths > 0 {
			n++
		}
	}
	return n
}
