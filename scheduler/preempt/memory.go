// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"encoding/binary"

	"keelson/scheduler/framework"
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

// answer is what victims said of a node in that version.
type answer struct {
	version int64
	// rules and now are those of the budgets then; guarded: a budget covers a pod that might leave, so that the answer rests on how many may.
	rules, now int64
	guarded    bool
	found      *framework.Preemption
	hurt       hurt
	why        *framework.Status
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

// victims is the function of that name, from what is known of the node at a place where nothing has changed. What it returns is shared: never
// modified.
func (t *tried) victims(a *framework.Attempt, place int, budgets *guards, whole *together) *answer {
	known := &t.at[place]
	if known.version == a.Snapshot.Versions[place] && known.rules == budgets.rules && (!known.guarded || known.now == budgets.now) {
		return known
	}
	*known = *ask(a, place, budgets, whole)
	return known
}

// ask asks victims about the node at a place. What it finds out of a node with pods of groups rests on other nodes too, and has no version.
func ask(a *framework.Attempt, place int, budgets *guards, whole *together) *answer {
	n := a.Snapshot.Nodes[place]
	out := &answer{version: -1}
	if whole.concerns(n) {
		out.found, out.why = whole.victims(n, budgets)
	} else {
		lower := less(a, n)
		out = &answer{version: a.Snapshot.Versions[place], rules: budgets.rules, now: budgets.now, guarded: budgets.cover(lower)}
		out.found, out.why = victims(a, n, lower, budgets)
	}
	if out.found != nil {
		out.hurt = hurtOf(out.found)
	}
	return out
}
