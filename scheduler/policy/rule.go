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

// rule is an expression over a pod and a node, with caches of its values.
type rule struct {
	*expression
	policy *Policy

	mu     sync.Mutex
	caches map[string]*valueCache       // by the pod fields that the expression reads (reads.cacheKey)
	errs   map[string]*framework.Status // refusals by error text
}

// valueCache has the values of an expression for pods with the same cacheKey. byStamp holds the values by
// NodeInfo.Stamp, if the expression reads only what a stamp covers (stable). rows holds all values by place in the
// snapshot.
type valueCache struct {
	stable  bool
	byStamp sync.Map
	size    atomic.Int64

	mu       sync.Mutex
	snapshot *state.Snapshot
	epoch    int64
	versions []int64 // the Snapshot.Versions for which rows are valid
	rows     []value
}

// forEach calls do with the value of each node that want selects. It evaluates the nodes that have changed.
func (t *valueCache) forEach(snapshot *state.Snapshot, want func(place int) bool, find func(
	*state.NodeInfo,
) (value, bool), do func(place int, v value),
) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(snapshot.Nodes); t.snapshot != snapshot || t.epoch != snapshot.Epoch || len(t.rows) != n {
		t.snapshot = snapshot
		t.epoch = snapshot.Epoch
		t.versions = make([]int64, n)
		t.rows = make([]value, n)
	}
	for place, version := range snapshot.Versions {
		if !want(place) {
			continue
		}
		if t.versions[place] == version {
			do(place, t.rows[place])
			continue
		}
		n := snapshot.Nodes[place]
		known := true
		v := cachedValue(t, n, func() (v value, keep bool) {
			v, known = find(n)
			return v, known
		})
		if known {
			t.versions[place] = version
			t.rows[place] = v
		}
		do(place, v)
	}
}

// valueAt returns the value of a node from rows; false: it is missing or outdated.
func (t *valueCache) valueAt(s *state.Snapshot, place int) (value, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snapshot != s || t.epoch != s.Epoch || t.versions[place] != s.Versions[place] {
		return value{}, false
	}
	return t.rows[place], true
}

// Limits of a rule: caches, values in byStamp beyond two for each node, and different error texts.
const (
	maxCaches   = 16
	spareValues = 64
	maxErrs     = 8
)

// cacheFor returns the cache for a pod in a cluster of so many nodes; nil: the values cannot be cached.
func (r *rule) cacheFor(pod podInfo, nodes int) *valueCache {
	key, ok := r.reads.cacheKey(pod)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.caches[key]
	if t != nil && t.size.Load() <= int64(2*nodes+spareValues) {
		return t
	}
	if r.caches == nil || t == nil && len(r.caches) >= maxCaches {
		r.caches = map[string]*valueCache{}
	}
	t = &valueCache{stable: r.reads.stable()}
	r.caches[key] = t
	return t
}

// value is the result of a rule for a node.
type value struct {
	refused *framework.Status // of a filter
	raw     float64           // of a score; NaN: it has none
}

// points returns the score, 0 to MaxScore; 0 without a value.
func (v value) points() int64 {
	if math.IsNaN(v.raw) {
		return 0
	}
	return int64(math.Round(min(max(v.raw, 0), framework.MaxScore)))
}

// cachedValue returns the cached value of a node, or evaluates it.
func cachedValue(t *valueCache, n *state.NodeInfo, find func() (v value, keep bool)) value {
	if t == nil || !t.stable {
		v, _ := find()
		return v
	}
	if v, ok := t.byStamp.Load(n.Stamp); ok {
		return v.(value) // nothing else is in there
	}
	v, keep := find()
	if keep {
		t.byStamp.Store(n.Stamp, v)
		t.size.Add(1)
	}
	return v
}

// reported returns a score's value for the decision that users read.
func (v value) reported() (raw float64, score int64, ok bool) {
	if math.IsNaN(v.raw) {
		return 0, 0, false
	}
	return min(max(v.raw, -math.MaxFloat64), math.MaxFloat64), v.points(), true
}

// refuse returns the status of a refusal.
func (r *rule) refuse(message string) *framework.Status {
	code := framework.Unresolvable
	if r.reads.usage {
		code = framework.Unschedulable // preemption may change the result
	}
	return framework.NewStatus(Plugin, code, fmt.Sprintf("node(s) refused by policy %s: %s", r.policy.Name, message))
}

// failure returns the refusal of a filter that cannot be evaluated. It returns few different ones, since refusals are
// counted by their text.
func (r *rule) failure(err error) *framework.Status {
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
	st := r.refuse(r.field + " cannot be evaluated: " + text)
	if errors.Is(err, errBudget) {
		st = r.refuse(text)
	}
	r.errs[text] = st
	return st
}

// evaluate runs the filter on a node. The bool reports whether the value may be cached.
func (f *filter) evaluate(v *variables, b *budget) (value, bool) {
	out, err := f.eval(v, b)
	switch {
	case err != nil:
		f.policy.reportError(f.field, err, v)
		if f.policy.ignore {
			return value{}, !errors.Is(err, errBudget)
		}
		return value{refused: f.failure(err)}, !errors.Is(err, errBudget)
	case out == celtypes.True:
		return value{}, true
	default:
		return value{refused: f.refusal}, true
	}
}

// evaluate runs the score on a node. The bool reports whether the value may be cached.
func (s *score) evaluate(v *variables, b *budget) (value, bool) {
	out, err := s.eval(v, b)
	if err != nil {
		s.policy.reportError(s.field, err, v)
		return value{raw: math.NaN()}, !errors.Is(err, errBudget)
	}
	return value{raw: number(out)}, true
}

// number converts a result to a number: true is MaxScore.
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
