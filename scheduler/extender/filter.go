// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/scheduler/framework"
)

// filterResult is an ExtenderFilterResult of which only the names of nodes are read.
type filterResult struct {
	Nodes *struct {
		Items []struct {
			Metadata struct{ Name string }
		}
	}
	NodeNames                               *[]string
	FailedNodes, FailedAndUnresolvableNodes map[string]string
	Error                                   string
}

// FilterAndPrioritize calls the interested extenders for the nodes that fit. First filter, one extender after another,
// each with the nodes that the previous ones left. Then prioritize, all extenders at the same time. A status is the
// failure of an extender that is not ignorable.
func (s *Set) FilterAndPrioritize(
	ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node,
) (*framework.ExtenderResults, *framework.Status) {
	results := &framework.ExtenderResults{Refused: map[string]*framework.Status{}}
	for _, n := range nodes {
		results.SentNodes = append(results.SentNodes, n.Name)
	}
	begin := time.Now()
	for _, e := range s.all {
		if e.cfg.FilterVerb == "" || len(nodes) == 0 || !e.interested(pod) {
			continue
		}
		left, err := e.filter(ctx, pod, nodes, results.Refused)
		if err != nil && !e.cfg.Ignorable {
			return nil, e.failure(err)
		}
		if err != nil {
			s.recordIgnored(results, e, err)
			continue
		}
		nodes = left
	}
	filtered := time.Now()
	results.FilterTook = filtered.Sub(begin)
	if len(nodes) > 1 {
		s.prioritize(ctx, results, pod, nodes)
		results.ScoreTook = time.Since(filtered)
	}
	return results, nil
}

// recordIgnored records the failure of an ignorable extender.
func (s *Set) recordIgnored(results *framework.ExtenderResults, e *Extender, err error) {
	s.log.Warn("extender is ignored", "extender", e.name, "err", err)
	results.IgnoredErrors = append(results.IgnoredErrors, e.name+": "+err.Error())
}

// args returns the request for filter and prioritize.
func (e *Extender) args(pod *corev1.Pod, nodes []*corev1.Node) *extenderv1.ExtenderArgs {
	out := &extenderv1.ExtenderArgs{Pod: pod}
	if e.cfg.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		out.NodeNames = &names
		return out
	}
	out.Nodes = &corev1.NodeList{Items: make([]corev1.Node, len(nodes))}
	for i, n := range nodes {
		out.Nodes.Items[i] = *n
	}
	return out
}

// filter returns the nodes that the extender accepts, and adds its refusals of the others to refused.
func (e *Extender) filter(
	ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node, refused map[string]*framework.Status,
) ([]*corev1.Node, error) {
	var result filterResult
	verb := e.cfg.FilterVerb
	if err := e.call(ctx, verb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	if result.Error != "" {
		return nil, fmt.Errorf("%s: the extender returned an error: %s", verb, oneShortLine(result.Error))
	}
	left := map[string]bool{}
	switch {
	case e.cfg.NodeCacheCapable && result.NodeNames != nil:
		for _, name := range *result.NodeNames {
			left[name] = true
		}
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			left[result.Nodes.Items[i].Metadata.Name] = true
		}
	}
	keep := make([]*corev1.Node, 0, len(left))
	for _, n := range nodes {
		if left[n.Name] {
			keep = append(keep, n)
			delete(left, n.Name)
		}
	}
	for name := range left {
		return nil, fmt.Errorf("%s: the answer has node %q, which was not sent", verb, oneShortLine(name))
	}
	newStatus := e.refusals()
	next := 0
	for _, n := range nodes {
		switch {
		case next < len(keep) && keep[next] == n:
			next++
		case hasKey(result.FailedAndUnresolvableNodes, n.Name):
			refused[n.Name] = newStatus(framework.Unresolvable, result.FailedAndUnresolvableNodes[n.Name])
		case hasKey(result.FailedNodes, n.Name):
			refused[n.Name] = newStatus(framework.Unschedulable, result.FailedNodes[n.Name])
		default:
			refused[n.Name] = newStatus(framework.Unresolvable, "")
		}
	}
	return keep, nil
}

func hasKey(m map[string]string, name string) bool {
	_, ok := m[name]
	return ok
}

// refusals returns a function that converts an extender's reason to a status. Equal reasons share a status. Their
// number is limited to maxReasons.
func (e *Extender) refusals() func(framework.Code, string) *framework.Status {
	type key struct {
		code framework.Code
		text string
	}
	made := map[key]*framework.Status{}
	return func(code framework.Code, text string) *framework.Status {
		text = oneShortLine(text)
		if text == "" {
			text = "node(s) left out by " + e.name
		}
		k := key{code, text}
		if made[k] == nil && len(made) >= maxReasons {
			k.text = "node(s) refused by " + e.name + " for more reasons"
		}
		if made[k] == nil {
			made[k] = framework.NewStatus(e.name, code, k.text)
		}
		return made[k]
	}
}

// prioritize calls the extenders for scores. A failed extender gives no scores.
func (s *Set) prioritize(
	ctx context.Context, results *framework.ExtenderResults, pod *corev1.Pod, nodes []*corev1.Node,
) {
	scores := make([]framework.ExtenderScores, len(s.all))
	errs := make([]error, len(s.all))
	var wg sync.WaitGroup
	for i, e := range s.all {
		if e.cfg.PrioritizeVerb != "" && e.interested(pod) {
			wg.Go(func() { scores[i], errs[i] = e.prioritize(ctx, pod, nodes) })
		}
	}
	wg.Wait()
	for i, e := range s.all {
		switch {
		case errs[i] != nil:
			s.recordIgnored(results, e, errs[i])
		case scores[i].Raw != nil:
			results.Scores = append(results.Scores, scores[i])
		}
	}
}

func (e *Extender) prioritize(
	ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node,
) (framework.ExtenderScores, error) {
	var result extenderv1.HostPriorityList
	verb := e.cfg.PrioritizeVerb
	out := framework.ExtenderScores{
		By:     framework.Weighted{Plugin: &framework.Plugin{Name: e.name}, Weight: e.cfg.Weight},
		Raw:    map[string]int64{},
		Scores: map[string]int64{},
	}
	if err := e.call(ctx, verb, e.args(pod, nodes), &result); err != nil {
		return out, err
	}
	sent := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		sent[n.Name] = true
	}
	const scale = framework.MaxScore / extenderv1.MaxExtenderPriority
	for _, hostPriority := range result {
		if !sent[hostPriority.Host] {
			return out, fmt.Errorf("%s: a score is for node %q, which was not sent: the scores are ignored", verb,
				oneShortLine(hostPriority.Host))
		}
		if _, twice := out.Raw[hostPriority.Host]; twice {
			return out, fmt.Errorf("%s: node %q has two scores: the scores are ignored", verb, hostPriority.Host)
		}
		if hostPriority.Score < extenderv1.MinExtenderPriority || hostPriority.Score > extenderv1.MaxExtenderPriority {
			return out, fmt.Errorf("%s: node %q has score %d, which is not in the range %d to %d: the scores are "+
				"ignored", verb, hostPriority.Host, hostPriority.Score, extenderv1.MinExtenderPriority,
				extenderv1.MaxExtenderPriority)
		}
		out.Raw[hostPriority.Host] = hostPriority.Score
		out.Scores[hostPriority.Host] = hostPriority.Score * scale
	}
	return out, nil
}
