// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	"keelson/scheduler/framework"
)

// sampleEvery is one in how many attempts the durations of single plugins are measured, as in kube-scheduler: it costs
// as much as a plugin.
const sampleEvery = 10

// statusSkip is the outcome of a PreFilter or PreScore that has nothing to say about the pod.
const statusSkip = "Skip"

// startOf returns the time if the attempt is sampled.
func startOf(a *framework.Attempt) (t time.Time) {
	if a.Observe != nil {
		t = time.Now()
	}
	return t
}

// observe measures a plugin if the attempt is sampled.
func observe(a *framework.Attempt, plugin, point, status string, begin time.Time) {
	if a.Observe != nil {
		a.Observe(plugin, point, status, time.Since(begin))
	}
}

// observeScores measures the Score of a plugin that has scored n nodes since begin, if the attempt is sampled.
func observeScores(a *framework.Attempt, plugin string, scorer *framework.NodeScorer, begin time.Time, n int) {
	if a.Observe != nil && !scorer.NodeLocal {
		a.Observe(plugin, "Score", framework.StatusName(nil), time.Since(begin)/time.Duration(max(n, 1)))
	}
}

// observeOnNode measures the Filter and Score for one node, of the plugins whose results are shared by attempts or
// found for many nodes at once, and so cannot be measured where they are used.
func observeOnNode(a *framework.Attempt, scorers []framework.Weighted, nodeScorers []framework.NodeScorer) {
	if a.Observe == nil {
		return
	}
	info := a.Chosen
	if info == nil && len(a.Refused) > 0 {
		info = a.Refused[0].Node
	}
	if info == nil {
		return
	}
	for i := range a.Filters {
		// another may cost much, or keep what it has found
		if f := &a.Filters[i]; !f.NodeLocal && f.FilterAll == nil {
			continue
		}
		begin := time.Now()
		st := a.Filters[i].Filter(info)
		if observe(a, a.Filters[i].Plugin, "Filter", framework.StatusName(st), begin); st != nil {
			return
		}
	}
	for i := range nodeScorers {
		if !nodeScorers[i].NodeLocal { // observeScores measures it
			continue
		}
		begin := time.Now()
		nodeScorers[i].Score(info)
		observe(a, scorers[i].Name, "Score", framework.StatusName(nil), begin)
	}
}
