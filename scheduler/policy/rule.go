// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// rule is an expression over a pod and a node, and what is known of its values.
type rule struct {
	*expression
	policy *Policy

	mu     sync.Mutex
	tables map[string]*table            // by what the expression reads of a pod
	errs   map[string]*framework.Status // refusals by what went wrong
}

// table remembers the values that an expression had for pods that are alike to it: by the stamps of nodes, where it reads no more of a node;
// and all of them, by place in the snapshot.
type table struct {
	stable bool
	values sync.Map
	size   atomic.Int64

	mu       sync.Mutex
	of       *state.Snapshot
	epoch    int64
	versions []int64 // of the nodes (Snapshot.Versions) for which rows hold
	rows     []value
}

// each calls do with the value for each node of a snapshot that want asks for. It finds out what has changed.
func (t *table) each(s *state.Snapshot, want func(place int) bool, find func(*state.NodeInfo) (value, bool), do func(place int, v value)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(s.Nodes); t.of != s || t.epoch != s.Epoch || len(t.rows) != n {
		t.of, t.epoch, t.versions, t.rows = s, s.Epoch, make([]int64, n), make([]value, n)
	}
	for place, version := range s.Versions {
		if !want(place) {
			continue
		}
		if t.versions[place] == version {
			do(place, t.rows[place])
			continue
		}
		n, known := s.Nodes[place], true
		v := remembered(t, n, func() (v value, keep bool) {
			v, known = find(n)
			return v, known
		})
		if known {
			t.versions[place], t.rows[place] = version, v
		}
		do(place, v)
	}
}

// row is the value that each has found, or found again, for a node of the snapshot; false: it could not.
func (t *table) row(s *state.Snapshot, place int) (value, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of != s || t.epoch != s.Epoch || t.versions[place] != s.Versions[place] {
		return value{}, false
	}
	return t.rows[place], true
}

// Bounds of what a rule remembers: tables, values beyond two for each node, and texts of errors.
const (
	maxTables = 16
	spareSize = 64
	maxErrs   = 8
)

// table is the one for a pod in a cluster of so many nodes; nil: there is nothing to remember.
func (r *rule) table(pod podInfo, nodes int) *table {
	key, ok := r.reads.key(pod)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tables[key]
	if t != nil && t.size.Load() <= int64(2*nodes+spareSize) {
		return t
	}
	if r.tables == nil || t == nil && len(r.tables) >= maxTables {
		r.tables = map[string]*table{}
	}
	t = &table{stable: r.reads.stable()}
	r.tables[key] = t
	return t
}

// value is something remembered.
type value struct {
	refused *framework.Status // of a filter
	raw     float64           // of a score; NaN: it has none
}

// points are a score's from 0 to MaxScore; what is none is 0.
func (v value) points() int64 {
	if math.IsNaN(v.raw) {
		return 0
	}
	return int64(math.Round(min(max(v.raw, 0), framework.MaxScore)))
}

// remembered returns what is known for a node, or else finds it out.
func remembered(t *table, n *state.NodeInfo, find func() (v value, keep bool)) value {
	if t == nil || !t.stable {
		v, _ := find()
		return v
	}
	if v, ok := t.values.Load(n.Stamp); ok {
		return v.(value) //nolint:forcetypeassert // nothing else is in there
	}
	v, keep := find()
	if keep {
		t.values.Store(n.Stamp, v)
		t.size.Add(1)
	}
	return v
}

// told is what people read of a score's value.
func (v value) told() (raw float64, score int64, ok bool) {
	if math.IsNaN(v.raw) {
		return 0, 0, false
	}
	return min(max(v.raw, -math.MaxFloat64), math.MaxFloat64), v.points(), true
}

// refuse makes the status of a refusal.
func (r *rule) refuse(message string) *framework.Status {
	code := framework.Unresolvable
	if r.reads.usage {
		code = framework.Unschedulable // with fewer pods there it may be true
	}
	return framework.Refuse(Plugin, code, fmt.Sprintf("node(s) refused by policy %s: %s", r.policy.Name, message))
}

// failed makes the refusal of a rule that cannot be evaluated. It makes few different ones: they are counted by their text.
func (r *rule) failed(err error) *framework.Status {
	text := err.Error()
	r.mu.Lock()
	defer r.mu.Unlock()
	if st, ok := r.errs[text]; ok {
		return st
	}
	if len(r.errs) >= maxErrs {
		text = "for several reasons"
	}
	if r.errs == nil {
		r.errs = map[string]*framework.Status{}
	}
	st := r.refuse(r.at + " cannot be evaluated: " + text)
	if errors.Is(err, errSpent) {
		st = r.refuse(text)
	}
	r.errs[text] = st
	return st
}

// judge tells whether the filter refuses a node.
func (f *filter) judge(v *variables, b *budget) (value, bool) {
	out, err := f.eval(v, b)
	switch {
	case err != nil:
		f.policy.tell(f.at, err, v)
		if f.policy.ignore {
			return value{}, !errors.Is(err, errSpent)
		}
		return value{refused: f.failed(err)}, !errors.Is(err, errSpent)
	case out == celtypes.True:
		return value{}, true
	default:
		return value{refused: f.refusal}, true
	}
}

// give finds out what a node gets.
func (s *score) give(v *variables, b *budget) (value, bool) {
	out, err := s.eval(v, b)
	if err != nil {
		s.policy.tell(s.at, err, v)
		return value{raw: math.NaN()}, !errors.Is(err, errSpent)
	}
	return value{raw: number(out)}, true
}

// number takes a result as a number: true is MaxScore.
func number(out ref.Val) float64 {
	switch x := out.(type) {
	case celtypes.Bool:
		if x {
			return framework.MaxScore
		}
		return 0
	case celtypes.Int:
		return float64(x)
	case celtypes.Uint:
		return float64(x)
	case celtypes.Double:
		return float64(x)
	}
	return math.NaN()
}
