// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Term is a parsed pod (anti-)affinity term or spread constraint. It matches pods whose labels match Selector, in one
// of Namespaces or in a namespace whose labels match NamespaceSelector (nil: none). Terms with equal Sig match the same
// pods.
type Term struct {
	TopologyKey       string
	Namespaces        []string // sorted
	NamespaceSelector labels.Selector
	Selector          labels.Selector
	Sig               string // without TopologyKey

	// A label that every matching pod must have, as a fast check; empty when there is none.
	pairKey, pairValue string
}

// WeightedTerm is a preferred term.
type WeightedTerm struct {
	*Term
	Weight int64
}

// NewTerm builds a term. A nil selector matches nothing, an empty one everything.
func NewTerm(topologyKey string, namespaces []string, nsSelector, selector labels.Selector) *Term {
	term := &Term{
		TopologyKey:       topologyKey,
		Namespaces:        slices.Clone(namespaces),
		NamespaceSelector: nsSelector,
		Selector:          selector,
	}
	slices.Sort(term.Namespaces)
	term.Namespaces = slices.Compact(term.Namespaces)
	var out strings.Builder
	out.WriteString(strings.Join(term.Namespaces, ","))
	out.WriteByte('|')
	if nsSelector != nil {
		out.WriteString(nsSelector.String())
		out.WriteByte('+')
	}
	out.WriteByte('|')
	reqs, ok := selector.Requirements()
	if !ok {
		out.WriteByte('!') // labels.Nothing and labels.Everything have the same string
	}
	out.WriteString(selector.String())
	term.Sig = out.String()
	if ok {
		for _, r := range reqs {
			if vals := r.ValuesUnsorted(); len(vals) == 1 &&
				(r.Operator() == selection.In || r.Operator() == selection.Equals) {
				term.pairKey = r.Key()
				term.pairValue = vals[0]
				break
			}
		}
	}
	return term
}

// Matches reports whether a pod counts, given its namespace's labels.
func (t *Term) Matches(pod *corev1.Pod, ns labels.Set) bool {
	if t.pairKey != "" && pod.Labels[t.pairKey] != t.pairValue {
		return false
	}
	return t.InNamespace(pod.Namespace, ns) && t.Selector.Matches(labels.Set(pod.Labels))
}

// InNamespace reports whether pods of a namespace can count at all.
func (t *Term) InNamespace(name string, ns labels.Set) bool {
	if slices.Contains(t.Namespaces, name) {
		return true
	}
	return t.NamespaceSelector != nil && t.NamespaceSelector.Matches(ns)
}

func newTerms(pod *corev1.Pod, in []corev1.PodAffinityTerm) ([]*Term, error) {
	out := make([]*Term, 0, len(in))
	for i := range in {
		t, err := newTerm(pod, &in[i])
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func newWeightedTerms(pod *corev1.Pod, in []corev1.WeightedPodAffinityTerm) ([]WeightedTerm, error) {
	out := make([]WeightedTerm, 0, len(in))
	for i := range in {
		t, err := newTerm(pod, &in[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		out = append(out, WeightedTerm{t, int64(in[i].Weight)})
	}
	return out, nil
}

func newTerm(pod *corev1.Pod, in *corev1.PodAffinityTerm) (*Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(in.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("label selector: %w", err)
	}
	selector = WithLabelKeys(selector, pod, in.MatchLabelKeys, selection.In)
	selector = WithLabelKeys(selector, pod, in.MismatchLabelKeys, selection.NotIn)
	namespaces := in.Namespaces
	if len(namespaces) == 0 && in.NamespaceSelector == nil {
		namespaces = []string{pod.Namespace}
	}
	var ns labels.Selector
	if in.NamespaceSelector != nil {
		if ns, err = metav1.LabelSelectorAsSelector(in.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("namespace selector: %w", err)
		}
	}
	return NewTerm(in.TopologyKey, namespaces, ns, selector), nil
}

// WithLabelKeys narrows selector to pods whose value of each key is (or is not) the pod's own. The API server merges
// these keys into the selector of new pods; doing it twice is harmless.
func WithLabelKeys(selector labels.Selector, pod *corev1.Pod, keys []string, op selection.Operator) labels.Selector {
	for _, key := range keys {
		value, ok := pod.Labels[key]
		if !ok {
			continue
		}
		if r, err := labels.NewRequirement(key, op, []string{value}); err == nil {
			selector = selector.Add(*r)
		}
	}
	return selector
}
