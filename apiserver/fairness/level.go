// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"math"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// level is a priority level. The controller's mu guards it.
type level struct {
	name, uid string
	exempt    bool
	queues    bool // else requests without a free seat are rejected
	// nominal is the number of its own seats, and kept the number of those that it does not lend. most is the maximum that it may use.
	nominal, kept, most int
	executing           int
	waiting             int

	list     []queue
	handSize int
	longest  int // maximum length of a queue
	last     int // index of the queue served last
	// served is the level's virtual time: the service of the queue served last.
	served float64
}

// queue is a FIFO of requests. had is the number of seats that its requests have received so far (virtual time); the queue with the least
// is served next.
type queue struct {
	waiters []*waiter
	had     float64
}

type waiter struct {
	cost  int
	queue int
	flow  *Flow
	seat  chan struct{}
}

// The API's defaults.
const (
	defaultQueues   = 64
	defaultHand     = 8
	defaultLongest  = 50
	withoutBorrowed = math.MaxInt32
)

func (l *level) configure(p *flowcontrolv1.PriorityLevelConfiguration, total, shares int) {
	l.uid = string(p.UID)
	l.exempt = p.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	l.nominal = 0
	if own := sharesOf(p); own > 0 && shares > 0 {
		l.nominal = int(math.Ceil(float64(total) * float64(own) / float64(shares)))
	}
	l.most, l.queues = withoutBorrowed, false
	if l.exempt {
		lend := 0
		if p.Spec.Exempt != nil {
			lend = part(p.Spec.Exempt.LendablePercent, l.nominal, 0)
		}
		l.kept = l.nominal - lend
		return
	}
	lim := p.Spec.Limited
	if lim == nil {
		l.kept = l.nominal
		return
	}
	l.kept = l.nominal - part(lim.LendablePercent, l.nominal, 0)
	if lim.BorrowingLimitPercent != nil {
		l.most = l.nominal + part(lim.BorrowingLimitPercent, l.nominal, 0)
	}
	if lim.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue {
		return
	}
	queues, hand, longest := defaultQueues, defaultHand, defaultLongest
	if q := lim.LimitResponse.Queuing; q != nil {
		queues, hand, longest = orDefault(q.Queues, queues), orDefault(q.HandSize, hand), orDefault(q.QueueLengthLimit, longest)
	}
	l.queues, l.handSize, l.longest = true, min(hand, queues), longest
	if len(l.list) != queues && l.waiting == 0 {
		l.list = make([]queue, queues)
	}
}

func orDefault(n int32, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return int(n)
}

// enqueue adds a request to the shortest queue of its flow's hand.
func (l *level) enqueue(flow uint64, cost int) (*waiter, error) {
	if !l.queues || len(l.list) == 0 {
		return nil, ErrNoSeats
	}
	at := l.deal(flow)
	q := &l.list[at]
	if len(q.waiters) >= l.longest {
		return nil, ErrQueueFull
	}
	if len(q.waiters) == 0 {
		q.had = max(q.had, l.served) // time without requests gives a queue no advantage
	}
	w := &waiter{cost: cost, queue: at, seat: make(chan struct{})}
	q.waiters = append(q.waiters, w)
	l.waiting++
	return w, nil
}

// deal computes a flow's hand, which is a set of handSize queues, and returns the shortest one. With shuffle sharding two flows rarely have
// the same hand.
func (l *level) deal(flow uint64) int {
	n := len(l.list)
	best, drawn := -1, make([]int, 0, l.handSize)
	for i := range l.handSize {
		card := int(flow % uint64(n-i)) //nolint:gosec // n is small
		flow /= uint64(n - i)           //nolint:gosec // n is small
		for _, d := range drawn {       // sorted: skip the cards already drawn
			if card >= d {
				card++
			}
		}
		at := 0
		for at < len(drawn) && drawn[at] < card {
			at++
		}
		drawn = append(drawn, 0)
		copy(drawn[at+1:], drawn[at:])
		drawn[at] = card
		if best < 0 || len(l.list[card].waiters) < len(l.list[best].waiters) {
			best = card
		}
	}
	return best
}

// next returns the next request, which is the first in the queue with the least service; nil: none waits. Equal queues are served in turn.
func (l *level) next() *waiter {
	if l.waiting == 0 {
		return nil
	}
	best := -1
	for i := range l.list {
		at := (l.last + 1 + i) % len(l.list)
		if q := &l.list[at]; len(q.waiters) > 0 && (best < 0 || q.had < l.list[best].had) {
			best = at
		}
	}
	if best < 0 {
		return nil
	}
	return l.list[best].waiters[0]
}

// take removes w, the result of next, from its queue, and counts its service.
func (l *level) take(w *waiter) {
	q := &l.list[w.queue]
	q.waiters = q.waiters[1:]
	l.served = q.had
	q.had += float64(w.cost)
	l.last = w.queue
	l.waiting--
}

// leave removes w, whose wait has timed out, from its queue.
func (l *level) leave(w *waiter) {
	q := &l.list[w.queue]
	for i, o := range q.waiters {
		if o == w {
			q.waiters = append(q.waiters[:i:i], q.waiters[i+1:]...)
			l.waiting--
			return
		}
	}
}
