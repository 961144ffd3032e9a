// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/lib/words"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Explain names for each constraint that does not hold the number of matching pods in the domain, the minimum and
// maxSkew, or the missing label. The hint is a larger maxSkew, and a label that makes the node a domain of its own.
func (f *spreadFilter) Explain(
	pod *state.PodInfo, info *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	var shorts, set, skews []string
	possible := true
	for i := range f.domains {
		d := &f.domains[i]
		id := d.ValueID(info)
		switch {
		case id < 0:
			shorts = append(shorts, "node has no label "+d.key)
			set = append(set, d.key+"="+info.Name)
			possible = possible && d.IDOf(info.Name) < 0 && !asksForLabel(&pod.Pod.Spec, d.key) &&
				!affinityCountsBy(d.key, pod, info) && len(validation.IsValidLabelValue(info.Name)) == 0
		case d.exceedsSkew(id):
			shorts = append(shorts, d.describe(id))
			skews = append(skews, fmt.Sprintf("maxSkew of %s >= %d", d.key, d.count(id)+d.selfMatch-d.minMatch))
		}
	}
	short = strings.Join(shorten(shorts, "constraints"), "; ")
	if len(set) > 0 {
		// With the label the node counts for all constraints, and its pods with it.
		if !possible || f.CountsMore(info, false) {
			return short, "", missingKeyDistance
		}
		hint = "label " + info.Name + " with " + strings.Join(set, " and ")
		distance = missingKeyDistance
	}
	if len(skews) > 0 {
		if hint != "" {
			hint += "; then: "
		}
		hint += "fits on " + info.Name + " if " + strings.Join(skews, " and ")
		distance++
	}
	return short, hint, distance
}

// missingKeyDistance is the distance of a node without the topology key.
const missingKeyDistance = 2

// describe says why a domain cannot have one pod more.
func (d *domain) describe(id int32) string {
	least := fmt.Sprintf("the least is %d", d.minMatch)
	if int64(d.values) < d.minDomains {
		least = fmt.Sprintf("the least counts as 0 because of %s where minDomains is %d",
			words.Count(d.values, "domain"), d.minDomains)
	}
	return fmt.Sprintf("%s=%s has %d of them, %s, maxSkew %d", d.key, d.Values[id], d.count(id), least, d.maxSkew)
}

// CountsMore reports whether the counts may grow, or the minimum fall, when the node is accepted by the filters that
// decide which nodes count: when the node is cordoned no longer, has other labels, or the pod has other tolerations.
func (f *spreadFilter) CountsMore(n *state.NodeInfo, tolerations bool) bool {
	for i := range f.domains {
		if tolerations && f.domains[i].honorTaints || f.domains[i].countsOn(n, f.ns) {
			return true
		}
	}
	return false
}

// countsOn reports whether a node has pods that the constraint selects.
func (d *domain) countsOn(n *state.NodeInfo, ns map[string]labels.Set) bool {
	q := d.query()
	return slices.ContainsFunc(n.Pods, func(p *state.PodInfo) bool { return q.Matches(p.Pod, ns[p.Pod.Namespace]) })
}
