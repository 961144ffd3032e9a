// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"encoding/binary"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// memory keeps what victims found out about nodes, by class of preemptors: identical pods that come one after the other try only those nodes
// again on which something has changed since. It belongs to the scheduling loop; nil: nothing is kept.
type memory struct {
	classes map[string]*tried
	clock   int64
	key     []byte
}

// tried is what is known for a class, by place in the snapshot's Nodes.
type tried struct {
	used, epoch int64
	at          []answer
}

// answer is what victims said of a node in that version, with those pods to come.
type answer struct {
	version int64
	first   *state.PodInfo
	coming  int
	found   *framework.Preemption
	why     *framework.Status
}

// maxTried bounds the classes that are kept; the one unused for longest goes.
const maxTried = 8

// of returns what is known for the attempt's pod. nil: nothing can be kept, because a filter does not rest on the node alone.
func (m *memory) of(a *framework.Attempt) *tried {
	if m == nil {
		return nil
	}
	for i := range a.Filters {
		if _, ok := a.Filters[i].NodeFilter.(framework.Local); !ok {
			return nil
		}
	}
	m.key = a.Pod.AppendClass(binary.AppendVarint(m.key[:0], int64(a.Pod.Priority)))
	m.clock++
	t := m.classes[string(m.key)]
	if t == nil {
		if len(m.classes) >= maxTried {
			oldest := ""
			for key, o := range m.classes {
				if oldest == "" || o.used < m.classes[oldest].used {
					oldest = key
				}
			}
			delete(m.classes, oldest)
		}
		t = &tried{}
		m.classes[string(m.key)] = t
	}
	t.used = m.clock
	if n := len(a.Snapshot.Nodes); t.epoch != a.Snapshot.Epoch || len(t.at) != n {
		t.epoch, t.at = a.Snapshot.Epoch, make([]answer, n)
	}
	return t
}

// victims is the function of that name without budgets, from what is known of the node at a place where nothing has changed. What it returns is
// shared: never modified.
func (t *tried) victims(a *framework.Attempt, place int) (*framework.Preemption, *framework.Status) {
	n := a.Snapshot.Nodes[place]
	now := answer{version: a.Snapshot.Versions[place]}
	if a.Nominations != nil {
		coming := a.Nominations(n.Name)
		for _, p := range coming {
			if p.Pod.UID == a.Pod.Pod.UID { // for it alone the list is another one
				return victims(a, n, nil)
			}
		}
		if now.coming = len(coming); now.coming > 0 {
			now.first = coming[0]
		}
	}
	known := &t.at[place]
	if known.version != now.version || known.coming != now.coming || known.first != now.first {
		now.found, now.why = victims(a, n, nil)
		*known = now
	}
	return known.found, known.why
}
