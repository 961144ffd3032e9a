// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// maxNodesSearched is on how many nodes of a domain a pod is looked for that breaks a term.
const maxNodesSearched = 64

// Explain names the term that does not hold, the topology domain, and for anti-affinity one of the pods in it. The hint
// is that one pod to come, or the one to go.
func (f *interPodFilter) Explain(
	_ *state.PodInfo, info *state.NodeInfo, st *framework.Status,
) (short, hint string, distance float64) {
	const far = 1
	switch st {
	case affinityUnmet:
		short, hint = f.explainAffinity(info)
	case antiAffinityUnmet:
		for i := range f.antiAffinity {
			t := &f.antiAffinity[i]
			id := f.antiAffinity[i].ValueID(info)
			if t.count(id) <= 0 {
				continue
			}
			term := f.pod.AntiAffinity[i]
			holder := f.find(t, info, func(p *state.PodInfo) bool { return term.Matches(p.Pod, f.ns[p.Pod.Namespace]) })
			return fmt.Sprintf("%s is in %s, and the pod keeps away from %s", holder, domainText(t, id),
				termText(term, f.pod.Pod)), "", far
		}
	case existingAntiAffinityUnmet:
		for i := range f.existingAntiAffinity {
			topologyCounts := &f.existingAntiAffinity[i]
			id := f.existingAntiAffinity[i].ValueID(info)
			if topologyCounts.count(id) <= 0 {
				continue
			}
			holder := f.find(topologyCounts, info, func(p *state.PodInfo) bool {
				for _, term := range p.AntiAffinity {
					if term.TopologyKey == topologyCounts.Key() && term.Matches(f.pod.Pod, f.ns[f.pod.Pod.Namespace]) {
						return true
					}
				}
				return false
			})
			return fmt.Sprintf("%s is in %s, and keeps pods like this one away", holder,
				domainText(topologyCounts, id)), "", far
		}
	}
	return short, hint, far
}

// explainAffinity reports which pods or which label the node lacks. The hint is a pod that all terms select.
func (f *interPodFilter) explainAffinity(info *state.NodeInfo) (short, hint string) {
	for i := range f.affinity {
		t := &f.affinity[i]
		if id := t.ValueID(info); id < 0 {
			return "node has no label " + t.Key(), ""
		}
	}
	for i := range f.affinity {
		topologyCounts := &f.affinity[i]
		id := topologyCounts.ValueID(info)
		if topologyCounts.count(id) > 0 {
			continue
		}
		var terms []string
		for _, term := range f.pod.Affinity {
			terms = append(terms, termText(term, f.pod.Pod))
		}
		if want, ok := f.companion(); ok && !f.keptAway(info) && int64(len(info.Pods))+2 <= info.Allocatable.Pods {
			hint = fmt.Sprintf("fits on %s when a pod with %s runs there", info.Name, want)
		}
		return fmt.Sprintf("no pod it wants to be near is in %s: it asks for %s", domainText(topologyCounts, id),
			strings.Join(shorten(terms, "terms"), ", which are also ")), hint
	}
	return "", ""
}

// keptAway reports whether an anti-affinity term refuses the node.
func (f *interPodFilter) keptAway(n *state.NodeInfo) bool {
	has := func(t topologyCounts) bool { return t.count(t.ValueID(n)) > 0 }
	return slices.ContainsFunc(f.antiAffinity, has) || slices.ContainsFunc(f.existingAntiAffinity, has)
}

// companion returns labels with which a pod of the same namespace matches all affinity terms.
func (f *interPodFilter) companion() (want string, ok bool) {
	set := map[string]string{}
	var pairs []string
	for _, t := range f.pod.Affinity {
		reqs, selectable := t.Selector.Requirements()
		if !selectable || !t.InNamespace(f.pod.Pod.Namespace, f.ns[f.pod.Pod.Namespace]) {
			return "", false
		}
		for _, requirement := range reqs {
			values := requirement.ValuesUnsorted()
			if op := requirement.Operator(); len(values) != 1 || op != selection.In &&
				op != selection.Equals && op != selection.DoubleEquals {
				return "", false
			}
			if was, there := set[requirement.Key()]; !there {
				pairs = append(pairs, requirement.Key()+"="+values[0])
			} else if was != values[0] {
				return "", false
			}
			set[requirement.Key()] = values[0]
		}
	}
	with := &corev1.Pod{}
	with.Namespace = f.pod.Pod.Namespace
	with.Labels = set
	for _, t := range f.pod.AntiAffinity {
		if t.Matches(with, f.ns[with.Namespace]) { // it would come too near
			return "", false
		}
	}
	for i := range f.pod.Pod.Spec.TopologySpreadConstraints {
		s, err := metav1.LabelSelectorAsSelector(f.pod.Pod.Spec.TopologySpreadConstraints[i].LabelSelector)
		if err != nil || s.Matches(labels.Set(set)) { // it would count
			return "", false
		}
	}
	return strings.Join(pairs, " and "), len(pairs) > 0
}

// find names a pod in the domain of a node for which match is true, from the node itself if there is one.
func (f *interPodFilter) find(t *topologyCounts, info *state.NodeInfo, match func(*state.PodInfo) bool) string {
	on := func(n *state.NodeInfo) string {
		for _, p := range n.Pods {
			if match(p) {
				return p.Key
			}
		}
		return ""
	}
	if name := on(info); name != "" {
		return name
	}
	if id := t.ValueID(info); id >= 0 {
		looked := 0
		for place, other := range t.ValueIDs {
			if other != id {
				continue
			}
			if name := on(f.snap.Nodes[place]); name != "" {
				return name
			}
			if looked++; looked == maxNodesSearched {
				break
			}
		}
	}
	return "a pod"
}

func domainText(t *topologyCounts, id int32) string { return t.Key() + "=" + t.Values[id] }

// termText says which pods a term selects.
func termText(term *state.Term, pod *corev1.Pod) string {
	const most = 160
	text := "pods"
	if s := term.Selector.String(); len(s) > most {
		text = "pods with " + s[:most] + "..."
	} else if s != "" {
		text = "pods with " + s
	}
	switch {
	case term.NamespaceSelector != nil && term.NamespaceSelector.String() == "":
		text += " of any namespace"
	case term.NamespaceSelector != nil:
		text += " of namespaces with " + term.NamespaceSelector.String()
	case len(term.Namespaces) != 1 || term.Namespaces[0] != pod.Namespace:
		text += " of namespace " + strings.Join(term.Namespaces, ", ")
	}
	return text
}
