// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// excluded is the label of nodes that do not count for a zone's health.
const excluded = "node.kubernetes.io/exclude-disruption"

// zones counts the ready and not ready nodes of each zone, so that a decision about a node does not need to read all nodes.
type zones struct {
	cfg Config

	mu    sync.Mutex
	nodes map[string]member
	zones map[string]*tally
	ready int // in all zones
}

// member is a counted node.
type member struct {
	zone  string
	ready bool
}

// tally is the state of one zone.
type tally struct {
	ready, not int
	evicted    time.Time // the last NoExecute taint of a node in it; zero: none
	before     time.Time // the one before
}

func newZones(cfg Config) *zones {
	return &zones{cfg: cfg, nodes: map[string]member{}, zones: map[string]*tally{}}
}

// see updates the count of n. It reports whether that changes what may happen to other nodes that are not ready.
func (z *zones) see(n *corev1.Node) bool {
	if _, ok := n.Labels[excluded]; ok {
		return z.forget(n.Name)
	}
	return z.put(n.Name, &member{zone(n), readiness(n) == corev1.ConditionTrue})
}

// forget removes a node.
func (z *zones) forget(name string) bool { return z.put(name, nil) }

func (z *zones) put(name string, now *member) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	was, counted := z.nodes[name]
	if counted == (now != nil) && (now == nil || *now == was) {
		return false
	}
	before := z.modesLocked(was.zone, now)
	if counted {
		z.addLocked(was, -1)
		delete(z.nodes, name)
	}
	if now != nil {
		z.addLocked(*now, 1)
		z.nodes[name] = *now
	}
	return before != z.modesLocked(was.zone, now)
}

func (z *zones) addLocked(m member, d int) {
	t := z.zones[m.zone]
	if t == nil {
		t = &tally{}
		z.zones[m.zone] = t
		metrics().evictions.WithLabelValues(m.zone).Add(0)
	}
	if m.ready {
		t.ready += d
		z.ready += d
	} else {
		t.not += d
	}
	all := t.ready + t.not
	if all == 0 { // zones without nodes are dropped, because nodes choose the names
		delete(z.zones, m.zone)
		metrics().drop(m.zone)
		return
	}
	metrics().size.WithLabelValues(m.zone).Set(float64(all))
	metrics().unhealthy.WithLabelValues(m.zone).Set(float64(t.not))
	metrics().health.WithLabelValues(m.zone).Set(100 * float64(t.ready) / float64(all))
}

// modes has what decides about evictions in up to two zones.
type modes struct {
	calm   bool
	of, to time.Duration
}

func (z *zones) modesLocked(of string, to *member) modes {
	m := modes{calm: z.ready == 0}
	if t := z.zones[of]; t != nil {
		m.of = z.cfg.pause(t.ready, t.not)
	}
	if to != nil {
		if t := z.zones[to.zone]; t != nil {
			m.to = z.cfg.pause(t.ready, t.not)
		}
	}
	return m
}

// calm reports that no node is ready at all: then this server is probably disconnected, and nothing is evicted.
func (z *zones) calm() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.ready == 0
}

// turn reports whether a node of a zone may get its NoExecute taint now; if not, how long to wait, 0: until see reports a change.
func (z *zones) turn(name string, now time.Time) (wait time.Duration, ok bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ready == 0 {
		return 0, false
	}
	t := z.zones[name]
	if t == nil {
		return 0, true // all nodes of the zone are excluded
	}
	pause := z.cfg.pause(t.ready, t.not)
	if pause == never {
		return 0, false
	}
	if !t.evicted.IsZero() {
		if left := t.evicted.Add(pause).Sub(now); left > 0 {
			return left, false
		}
	}
	t.evicted, t.before = now, t.evicted
	return 0, true
}

// giveBack undoes a turn taken at now when the node could not be written.
func (z *zones) giveBack(name string, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if t := z.zones[name]; t != nil && t.evicted.Equal(now) {
		t.evicted = t.before
	}
}
