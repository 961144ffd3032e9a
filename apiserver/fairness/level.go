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
	queuing   bool // else requests without a free seat are rejected
	// nominal is the number of its own seats, and lowerLimit the number of those that it does not lend. upperLimit is
	// the maximum that it may use.
	nominal, lowerLimit, upperLimit int
	executing                       int
	waiting                         int

	queues           []queue
	handSize         int
	queueLengthLimit int // maximum length of a queue
	lastQueue        int // index of the queue served last
	// virtualTime is the level's virtual time: the service of the queue served last.
	virtualTime float64
}

// queue is a FIFO of requests. virtualTime is the number of seats that its requests have received so far; the queue
// with the least is served next.
type queue struct {
	waiters     []*waiter
	virtualTime float64
}

type waiter struct {
	cost  int
	queue int
	stat  *SchemaStat
	seat  chan struct{}
}

// The API's defaults.
const (
	defaultQueues           = 64
	defaultHandSize         = 8
	defaultQueueLengthLimit = 50
	noBorrowingLimit        = math.MaxInt32
)

func (l *level) configure(configuration *flowcontrolv1.PriorityLevelConfiguration, total, shares int) {
	l.uid = string(configuration.UID)
	l.exempt = configuration.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	l.nominal = 0
	if own := sharesOf(configuration); own > 0 && shares > 0 {
		l.nominal = int(math.Ceil(float64(total) * float64(own) / float64(shares)))
	}
	l.upperLimit = noBorrowingLimit
	l.queuing = false
	if l.exempt {
		lend := 0
		if configuration.Spec.Exempt != nil {
			lend = percentOf(configuration.Spec.Exempt.LendablePercent, l.nominal, 0)
		}
		l.lowerLimit = l.nominal - lend
		return
	}
	lim := configuration.Spec.Limited
	if lim == nil {
		l.lowerLimit = l.nominal
		return
	}
	l.lowerLimit = l.nominal - percentOf(lim.LendablePercent, l.nominal, 0)
	if lim.BorrowingLimitPercent != nil {
		l.upperLimit = l.nominal + percentOf(lim.BorrowingLimitPercent, l.nominal, 0)
	}
	if lim.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue {
		return
	}
	queues := defaultQueues
	hand := defaultHandSize
	lengthLimit := defaultQueueLengthLimit
	if q := lim.LimitResponse.Queuing; q != nil {
		queues = orDefault(q.Queues, queues)
		hand = orDefault(q.HandSize, hand)
		lengthLimit = orDefault(q.QueueLengthLimit, lengthLimit)
	}
	l.queuing = true
	l.handSize = min(hand, queues)
	l.queueLengthLimit = lengthLimit
	if len(l.queues) != queues && l.waiting == 0 {
		l.queues = make([]queue, queues)
	}
}

func orDefault(n int32, fallback int) int {
	if n <= 0 {
		return fallback
	}
	return int(n)
}

// enqueue adds a request to the shortest queue of its flow's hand.
func (l *level) enqueue(flow uint64, cost int) (*waiter, error) {
	if !l.queuing || len(l.queues) == 0 {
		return nil, ErrNoSeats
	}
	at := l.deal(flow)
	q := &l.queues[at]
	if len(q.waiters) >= l.queueLengthLimit {
		return nil, ErrQueueFull
	}
	if len(q.waiters) == 0 {
		q.virtualTime = max(q.virtualTime, l.virtualTime) // time without requests gives a queue no advantage
	}
	w := &waiter{cost: cost, queue: at, seat: make(chan struct{})}
	q.waiters = append(q.waiters, w)
	l.waiting++
	return w, nil
}

// deal computes a flow's hand, which is a set of handSize queues, and returns the shortest one. With shuffle sharding
// two flows rarely have the same hand.
func (l *level) deal(flow uint64) int {
	n := len(l.queues)
	best := -1
	drawn := make([]int, 0, l.handSize)
	for i := range l.handSize {
		card := int(flow % uint64(n-i)) // n is small
		flow /= uint64(n - i)           // n is small
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
		if best < 0 || len(l.queues[card].waiters) < len(l.queues[best].waiters) {
			best = card
		}
	}
	return best
}

// next returns the next request, which is the first in the queue with the least service; nil: none waits. Equal queues
// are served in turn.
func (l *level) next() *waiter {
	if l.waiting == 0 {
		return nil
	}
	best := -1
	for i := range l.queues {
		at := (l.lastQueue + 1 + i) % len(l.queues)
		if q := &l.queues[at]; len(q.waiters) > 0 && (best < 0 || q.virtualTime < l.queues[best].virtualTime) {
			best = at
		}
	}
	if best < 0 {
		return nil
	}
	return l.queues[best].waiters[0]
}

// dequeue removes w, the result of next, from its queue, and counts its service.
func (l *level) dequeue(w *waiter) {
	q := &l.queues[w.queue]
	q.waiters = q.waiters[1:]
	l.virtualTime = q.virtualTime
	q.virtualTime += float64(w.cost)
	l.lastQueue = w.queue
	l.waiting--
}

// remove removes w, whose wait has timed out, from its queue.
func (l *level) remove(w *waiter) {
	q := &l.queues[w.queue]
	for i, o := range q.waiters {
		if o == w {
			q.waiters = append(q.waiters[:i:i], q.waiters[i+1:]...)
			l.waiting--
			return
		}
	}
}
