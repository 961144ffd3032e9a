// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names of the extension points whose times an attempt records. Those of the binding come later.
const (
	PreFilter  = "PreFilter"
	Filter     = "Filter"
	PostFilter = "PostFilter"
	PreScore   = "PreScore"
	Score      = "Score"
)

// Attempt is the fact that the scheduler emits about one attempt (event.StepDecision): the status of the pod's
// PodDecision, as far as it is known when the scheduler decides. Node is the chosen node; Result, Reason and RunnerUp
// are empty, because they depend on the binding too: timeline/story concludes them.
type Attempt struct {
	PodDecisionStatus
	// Reasons counts all refused nodes by reason as users know it.
	Reasons map[string]int
	// PodGroup says how the group of a pod that is tried with others stood.
	PodGroup string
}

// Unplaced returns why the attempt found no node; false: it found one.
func (a *Attempt) Unplaced() (why string, unplaced bool) { return a.Message, a.Node == "" }

// Point returns how long an extension point took; 0: it did not run.
func (s *PodDecisionStatus) Point(name string) time.Duration {
	for _, p := range s.ExtensionPoints {
		if p.Name == name {
			return p.Took.Duration
		}
	}
	return 0
}

// AddPoint records an extension point, unless it did not run.
func (s *PodDecisionStatus) AddPoint(name string, took time.Duration) {
	if took > 0 {
		s.ExtensionPoints = append(s.ExtensionPoints, ExtensionPoint{Name: name, Took: metav1.Duration{Duration: took}})
	}
}

// Filtering is the time of all plugins that refuse nodes, Scoring that of those that rank them.
func (s *PodDecisionStatus) Filtering() time.Duration { return s.Point(PreFilter) + s.Point(Filter) }

// Scoring is described with Filtering.
func (s *PodDecisionStatus) Scoring() time.Duration { return s.Point(PreScore) + s.Point(Score) }

// The JSON form of an Attempt: that of marks, GET /keelson/v1/why and whatif. It is older than PodDecision, and
// schedulers, servers and commands of several versions exchange it: its names do not change. What differs from
// PodDecision's form is here, and nowhere else.
type (
	attemptJSON struct {
		Attempt    int32          `json:"attempt"`
		QueueWait  time.Duration  `json:"queueWait"`
		Nodes      int32          `json:"nodes"`
		Fit        int32          `json:"fit"`
		Filter     time.Duration  `json:"filter"` // with PreFilter
		Score      time.Duration  `json:"score"`  // with PreScore
		PreFilter  time.Duration  `json:"preFilter,omitempty"`
		PostFilter time.Duration  `json:"postFilter,omitempty"`
		PreScore   time.Duration  `json:"preScore,omitempty"`
		Rejected   []refusalJSON  `json:"rejected,omitempty"`
		RejectedBy map[string]int `json:"rejectedBy,omitempty"`
		Scores     []scoreJSON    `json:"scores,omitempty"`
		Chosen     string         `json:"chosen,omitempty"`
		Rules      []Rule         `json:"rules,omitempty"`
		Tied       int32          `json:"tied,omitempty"`
		Message    string         `json:"message,omitempty"`
		Waits      string         `json:"waits,omitempty"`
		Groups     []RefusalGroup `json:"groups,omitempty"`
		Fixes      []string       `json:"fixes,omitempty"`
		Preemption *Preemption    `json:"preemption,omitempty"`
		PodGroup   string         `json:"podGroup,omitempty"`
	}

	refusalJSON struct {
		Node     string `json:"node"`
		Plugin   string `json:"plugin"`
		Reason   string `json:"reason"`
		Shortage string `json:"short,omitempty"`
		Taint    *Taint `json:"taint,omitempty"`
		Nearest  bool   `json:"nearest,omitempty"`
		Hint     string `json:"hint,omitempty"`
	}

	scoreJSON struct {
		Node    string            `json:"node"`
		Total   int64             `json:"total"`
		Plugins []pluginScoreJSON `json:"plugins,omitempty"`
		Rules   []ruleScoreJSON   `json:"rules,omitempty"`
	}

	pluginScoreJSON struct {
		Plugin string      `json:"plugin"`
		Raw    int64       `json:"raw"`
		Score  int64       `json:"score"`
		Weight int64       `json:"weight"`
		Facts  *ScoreFacts `json:"facts,omitempty"`
	}

	ruleScoreJSON struct {
		Raw    float64 `json:"raw"`
		Score  int64   `json:"score"`
		Failed bool    `json:"failed,omitempty"`
	}
)

// MarshalJSON writes the form of marks.
func (a *Attempt) MarshalJSON() ([]byte, error) {
	return json.Marshal(&attemptJSON{
		Attempt:    a.Attempt,
		QueueWait:  a.Queued.Duration,
		Nodes:      a.Nodes,
		Fit:        a.Feasible,
		Filter:     a.Filtering(),
		Score:      a.Scoring(),
		PreFilter:  a.Point(PreFilter),
		PostFilter: a.Point(PostFilter),
		PreScore:   a.Point(PreScore),
		Rejected:   each(a.Refusals, func(_ int, r Refusal) refusalJSON { return refusalJSON(r) }),
		RejectedBy: a.Reasons,
		Scores: each(a.Scores, func(_ int, s NodeScore) scoreJSON {
			return scoreJSON{
				Node:  s.Node,
				Total: s.Total,
				Plugins: each(s.Plugins, func(_ int, p PluginScore) pluginScoreJSON {
					return pluginScoreJSON{p.Plugin, p.Raw, p.Normalized, p.Weight, p.Facts}
				}),
				Rules: each(s.Rules, func(_ int, r RuleScore) ruleScoreJSON {
					return ruleScoreJSON{r.Raw, r.Normalized, r.Failed}
				}),
			}
		}),
		Chosen:     a.Node,
		Rules:      a.Rules,
		Tied:       a.Tied,
		Message:    a.Message,
		Waits:      a.WaitsFor,
		Groups:     a.RefusedBy,
		Fixes:      a.Fixes,
		Preemption: a.Preemption,
		PodGroup:   a.PodGroup,
	})
}

// UnmarshalJSON reads the form of marks.
func (a *Attempt) UnmarshalJSON(doc []byte) error {
	var in attemptJSON
	if err := json.Unmarshal(doc, &in); err != nil {
		return fmt.Errorf("read an attempt: %w", err)
	}
	*a = Attempt{Reasons: in.RejectedBy, PodGroup: in.PodGroup}
	a.PodDecisionStatus = PodDecisionStatus{
		Node:     in.Chosen,
		Message:  in.Message,
		Attempt:  in.Attempt,
		Nodes:    in.Nodes,
		Feasible: in.Fit,
		Queued:   metav1.Duration{Duration: in.QueueWait},
		Scores: each(in.Scores, func(_ int, s scoreJSON) NodeScore {
			return NodeScore{
				Node:  s.Node,
				Total: s.Total,
				Plugins: each(s.Plugins, func(_ int, p pluginScoreJSON) PluginScore {
					score := NewPluginScore(p.Plugin, p.Raw, p.Score, p.Weight)
					score.Facts = p.Facts
					return score
				}),
				Rules: each(s.Rules, func(i int, r ruleScoreJSON) RuleScore {
					score := RuleScore{Raw: r.Raw, Normalized: r.Score, Failed: r.Failed}
					if i < len(in.Rules) { // what comes from elsewhere may have too few
						score.Weighted = r.Score * in.Rules[i].Weight
					}
					return score
				}),
			}
		}),
		Rules:      in.Rules,
		Tied:       in.Tied,
		Refusals:   each(in.Rejected, func(_ int, r refusalJSON) Refusal { return Refusal(r) }),
		RefusedBy:  in.Groups,
		Fixes:      in.Fixes,
		WaitsFor:   in.Waits,
		Preemption: in.Preemption,
	}
	a.AddPoint(PreFilter, in.PreFilter)
	a.AddPoint(Filter, in.Filter-in.PreFilter)
	a.AddPoint(PostFilter, in.PostFilter)
	a.AddPoint(PreScore, in.PreScore)
	a.AddPoint(Score, in.Score-in.PreScore)
	return nil
}

// each maps a list; nil stays nil.
func each[T, U any](list []T, one func(int, T) U) []U {
	if list == nil {
		return nil
	}
	out := make([]U, len(list))
	for i := range list {
		out[i] = one(i, list[i])
	}
	return out
}
