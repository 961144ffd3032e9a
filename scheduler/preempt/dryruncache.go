// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"encoding/binary"

	"keelson/scheduler/framework"
)

// dryRunCache keeps the results of dry runs on nodes, by class of preemptors: for the next pod of a class only those
// nodes are tried again that have changed since. It belongs to the scheduling loop; nil: nothing is kept.
type dryRunCache struct {
	classes map[string]*classDryRuns
	clock   int64
	key     []byte
}

// classDryRuns are the cached results for a class, by place in the snapshot's Nodes.
type classDryRuns struct {
	used, epoch int64
	byPlace     []dryRunResult
}

// dryRunResult is the result of selectVictims for a node in that version.
type dryRunResult struct {
	version int64
	// selectorVersion and pdbVersion are those of the budgets then; pdbsMatter: a budget matches a potential victim, so
	// that the result depends on the number of allowed disruptions.
	selectorVersion, pdbVersion int64
	pdbsMatter                  bool
	candidate                   *framework.Preemption
	cost                        cost
	status                      *framework.Status
}

// maxClasses is the maximum number of classes; the least recently used one is removed.
const maxClasses = 8

// forPod returns the cached results for the attempt's pod. nil: nothing can be cached, because the result of a filter
// does not depend on the node alone.
func (m *dryRunCache) forPod(attempt *framework.Attempt) *classDryRuns {
	if m == nil {
		return nil
	}
	for i := range attempt.Filters {
		if !attempt.Filters[i].NodeLocal {
			return nil
		}
	}
	m.key = attempt.Pod.AppendClass(binary.AppendVarint(m.key[:0], int64(attempt.Pod.Priority)))
	m.clock++
	t := m.classes[string(m.key)]
	if t == nil {
		if len(m.classes) >= maxClasses {
			oldest := ""
			for key, o := range m.classes {
				if oldest == "" || o.used < m.classes[oldest].used {
					oldest = key
				}
			}
			delete(m.classes, oldest)
		}
		t = &classDryRuns{}
		m.classes[string(m.key)] = t
	}
	t.used = m.clock
	if n := len(attempt.Snapshot.Nodes); t.epoch != attempt.Snapshot.Epoch || len(t.byPlace) != n {
		t.epoch = attempt.Snapshot.Epoch
		t.byPlace = make([]dryRunResult, n)
	}
	return t
}

// dryRun returns the cached result for the node at a place, or computes it if something has changed. The result is
// shared: it must not be modified.
func (t *classDryRuns) dryRun(a *framework.Attempt, place int, budgets *pdbs, groups *groupUnits) *dryRunResult {
	result := &t.byPlace[place]
	if result.version == a.Snapshot.Versions[place] && result.selectorVersion == budgets.selectorVersion &&
		(!result.pdbsMatter || result.pdbVersion == budgets.version) {
		return result
	}
	*result = *dryRunOn(a, place, budgets, groups)
	return result
}

// dryRunOn calls selectVictims for the node at a place. The result for a node with pods of groups depends on other
// nodes too, and has no version.
func dryRunOn(attempt *framework.Attempt, place int, budgets *pdbs, groups *groupUnits) *dryRunResult {
	info := attempt.Snapshot.Nodes[place]
	out := &dryRunResult{version: -1}
	if groups.hasGroupPods(info) {
		out.candidate, out.status = groups.selectVictims(info, budgets)
	} else {
		victims := lowerPriorityPods(attempt, info)
		out = &dryRunResult{
			version:         attempt.Snapshot.Versions[place],
			selectorVersion: budgets.selectorVersion,
			pdbVersion:      budgets.version,
			pdbsMatter:      budgets.matchAny(victims),
		}
		out.candidate, out.status = selectVictims(attempt, info, victims, budgets)
	}
	if out.candidate != nil {
		out.cost = costOf(out.candidate)
	}
	return out
}
