// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// excluded is the label of nodes that do not count for a zone's health.
const excluded = "node.kubernetes.io/exclude-disruption"

// zones counts the ready and not ready nodes of each zone, so that a decision about a node does not need to read all
// nodes.
type zones struct {
	cfg     Config
	metrics *Metrics

	mu    sync.Mutex
	nodes map[string]zoneMember
	zones map[string]*zoneState
	ready int // in all zones
}

// zoneMember is a counted node.
type zoneMember struct {
	zone  string
	ready bool
}

// zoneState is the state of one zone.
type zoneState struct {
	ready, notReady  int
	lastEviction     time.Time // the last NoExecute taint of a node in it; zero: none
	previousEviction time.Time // the one before
}

func newZones(cfg Config, metrics *Metrics) *zones {
	return &zones{
		cfg:     cfg,
		metrics: metrics,
		nodes:   map[string]zoneMember{},
		zones:   map[string]*zoneState{},
	}
}

// update updates the count of n. It reports whether that changes what may happen to other nodes that are not ready.
func (z *zones) update(n *corev1.Node) bool {
	if _, ok := n.Labels[excluded]; ok {
		return z.remove(n.Name)
	}
	return z.set(n.Name, &zoneMember{zone(n), readiness(n) == corev1.ConditionTrue})
}

// remove removes a node.
func (z *zones) remove(name string) bool { return z.set(name, nil) }

func (z *zones) set(name string, now *zoneMember) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	was, counted := z.nodes[name]
	if counted == (now != nil) && (now == nil || *now == was) {
		return false
	}
	before := z.evictionModesLocked(was.zone, now)
	if counted {
		z.addLocked(was, -1)
		delete(z.nodes, name)
	}
	if now != nil {
		z.addLocked(*now, 1)
		z.nodes[name] = *now
	}
	return before != z.evictionModesLocked(was.zone, now)
}

func (z *zones) addLocked(m zoneMember, d int) {
	t := z.zones[m.zone]
	if t == nil {
		t = &zoneState{}
		z.zones[m.zone] = t
		z.metrics.evictions.WithLabelValues(m.zone).Add(0)
	}
	if m.ready {
		t.ready += d
		z.ready += d
	} else {
		t.notReady += d
	}
	all := t.ready + t.notReady
	if all == 0 { // zones without nodes are dropped, because nodes choose the names
		delete(z.zones, m.zone)
		z.metrics.removeZone(m.zone)
		return
	}
	z.metrics.size.WithLabelValues(m.zone).Set(float64(all))
	z.metrics.unhealthy.WithLabelValues(m.zone).Set(float64(t.notReady))
	z.metrics.health.WithLabelValues(m.zone).Set(100 * float64(t.ready) / float64(all))
}

// evictionModes has what decides about evictions in up to two zones.
type evictionModes struct {
	noneReady bool
	of, to    time.Duration
}

func (z *zones) evictionModesLocked(of string, to *zoneMember) evictionModes {
	m := evictionModes{noneReady: z.ready == 0}
	if t := z.zones[of]; t != nil {
		m.of = z.cfg.evictionInterval(t.ready, t.notReady)
	}
	if to != nil {
		if t := z.zones[to.zone]; t != nil {
			m.to = z.cfg.evictionInterval(t.ready, t.notReady)
		}
	}
	return m
}

// noneReady reports that no node is ready at all: then this server is probably disconnected, and nothing is evicted.
func (z *zones) noneReady() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.ready == 0
}

// allowEviction reports whether a node of a zone may get its NoExecute taint now; if not, how long to wait, 0: until
// update reports a change.
func (z *zones) allowEviction(name string, now time.Time) (wait time.Duration, ok bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ready == 0 {
		return 0, false
	}
	zoneState := z.zones[name]
	if zoneState == nil {
		return 0, true // all nodes of the zone are excluded
	}
	pause := z.cfg.evictionInterval(zoneState.ready, zoneState.notReady)
	if pause == noEvictions {
		return 0, false
	}
	if !zoneState.lastEviction.IsZero() {
		if left := zoneState.lastEviction.Add(pause).Sub(now); left > 0 {
			return left, false
		}
	}
	zoneState.lastEviction, zoneState.previousEviction = now, zoneState.lastEviction
	return 0, true
}

// undoEviction undoes an eviction allowed at now when the node could not be written.
func (z *zones) undoEviction(name string, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if t := z.zones[name]; t != nil && t.lastEviction.Equal(now) {
		t.lastEviction = t.previousEviction
	}
}
