// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeResourcesFit keeps pods off nodes whose free resources do not cover what they ask for, and ranks nodes by how much is taken.
type NodeResourcesFit struct {
	// Strategy ranks nodes; the zero value prefers the least allocated.
	Strategy Strategy
	// Ignored tells which extended resources the filter takes no notice of; nil: none.
	Ignored func(corev1.ResourceName) bool
	// Class names the DeviceClass that serves an extended resource where the node does not offer it, which DynamicResources sees to; "": none.
	// nil: there are none.
	Class func(corev1.ResourceName) string
}

// deviceClasses wake pods that ask for what a class serves.
var deviceClasses = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")

// asks are the pod's requests that count.
func (p NodeResourcesFit) asks(pod *state.PodInfo) *state.Resource {
	if p.Ignored == nil || len(pod.Request.Scalar) == 0 {
		return &pod.Request
	}
	r := pod.Request
	r.Scalar = maps.Clone(r.Scalar)
	maps.DeleteFunc(r.Scalar, func(name corev1.ResourceName, _ int64) bool { return p.Ignored(name) })
	return &r
}

// delegates tells whether some of the pod's requests may be served by devices.
func (p NodeResourcesFit) delegates(asks *state.Resource) bool {
	if p.Class != nil {
		for name := range asks.Scalar {
			if p.Class(name) != "" {
				return true
			}
		}
	}
	return false
}

// asksOf are the requests that the node itself has to meet.
func (p NodeResourcesFit) asksOf(n *state.NodeInfo, asks *state.Resource) *state.Resource {
	if !p.delegates(asks) {
		return asks
	}
	r := *asks
	r.Scalar = maps.Clone(r.Scalar)
	maps.DeleteFunc(r.Scalar, func(name corev1.ResourceName, _ int64) bool {
		return n.Allocatable.Scalar[name] == 0 && p.Class(name) != ""
	})
	return &r
}

// fitsBeside is the filter for pods that may get devices: what it says depends on the DeviceClasses too, so it is not Local.
type fitsBeside struct {
	plugin NodeResourcesFit
	asks   *state.Resource
}

// Filter looks at what the node itself has to offer.
func (f *fitsBeside) Filter(n *state.NodeInfo) *framework.Status {
	return (&fits{asks: f.plugin.asksOf(n, f.asks)}).Filter(n)
}

// Name is the plugin's.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// PreFilter returns the filter.
func (p NodeResourcesFit) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if asks := p.asks(pod); !p.delegates(asks) {
		return &fits{asks: asks}, nil
	}
	return &fitsBeside{p, p.asks(pod)}, nil
}

type fits struct{ asks *state.Resource }

// The quick way out is the common one: no allocation, four comparisons.
func (f *fits) Filter(n *state.NodeInfo) *framework.Status {
	a, r, free := f.asks, &n.Requested, &n.Allocatable
	if int64(len(n.Pods)) < free.Pods && within(a.MilliCPU, r.MilliCPU, free.MilliCPU) && within(a.Memory, r.Memory, free.Memory) &&
		within(a.EphemeralStorage, r.EphemeralStorage, free.EphemeralStorage) && len(a.Scalar) == 0 {
		return nil
	}
	short := Shortages(a, n)
	if len(short) == 0 {
		return nil
	}
	return shortStatus(short)
}

// usual are the resources that pods most often lack, and usualShort the statuses of nodes that lack some of them, by a bit for each, and whether that can
// change: nodes share them, so that they are counted by a glance.
var (
	usual      = []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	usualShort = func() (t [2][16]*framework.Status) {
		for set := 1; set < 16; set++ {
			var short []Shortage
			for i, name := range usual {
				if set&(1<<i) != 0 {
					short = append(short, Shortage{Name: name})
				}
			}
			t[0][set] = newShortStatus(short)
			short[0].Asks = 1 // of 0
			t[1][set] = newShortStatus(short)
		}
		return t
	}()
)

// shortStatus refuses a node for what it lacks.
func shortStatus(short []Shortage) *framework.Status {
	set, never := 0, 0
	for _, s := range short {
		i := slices.Index(usual, s.Name)
		if i < 0 {
			return newShortStatus(short)
		}
		if set |= 1 << i; s.Asks > s.Offers {
			never = 1
		}
	}
	return usualShort[never][set]
}

func newShortStatus(short []Shortage) *framework.Status {
	st := &framework.Status{Plugin: "NodeResourcesFit", Code: framework.Unschedulable, Reasons: make([]string, 0, len(short))}
	for _, s := range short {
		if s.Name == corev1.ResourcePods {
			st.Reasons = append(st.Reasons, "Too many pods")
		} else {
			st.Reasons = append(st.Reasons, "Insufficient "+string(s.Name))
		}
		if s.Asks > s.Offers {
			st.Code = framework.Unresolvable
		}
	}
	return st
}

// Local: see framework.Local.
func (*fits) Local() {}

// within reports whether asks fits; asking for nothing fits even where pods take more than there is.
func within(asks, taken, offers int64) bool { return asks == 0 || asks <= offers-taken }

// Shortage is one resource a node lacks for a pod.
type Shortage struct {
	Name                corev1.ResourceName
	Asks, Taken, Offers int64
}

// Shortages lists what is missing on n: pods, cpu, memory, ephemeral storage, then others by name.
func Shortages(asks *state.Resource, n *state.NodeInfo) []Shortage {
	return appendShortages(nil, asks, n)
}

func appendShortages(out []Shortage, asks *state.Resource, n *state.NodeInfo) []Shortage {
	check := func(name corev1.ResourceName, asks, taken, offers int64) {
		if !within(asks, taken, offers) {
			out = append(out, Shortage{name, asks, taken, offers})
		}
	}
	r, o := &n.Requested, &n.Allocatable
	check(corev1.ResourcePods, 1, int64(len(n.Pods)), o.Pods)
	check(corev1.ResourceCPU, asks.MilliCPU, r.MilliCPU, o.MilliCPU)
	check(corev1.ResourceMemory, asks.Memory, r.Memory, o.Memory)
	check(corev1.ResourceEphemeralStorage, asks.EphemeralStorage, r.EphemeralStorage, o.EphemeralStorage)
	if len(asks.Scalar) > 0 {
		names := make([]corev1.ResourceName, 0, len(asks.Scalar))
		for name := range asks.Scalar {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			check(name, asks.Scalar[name], r.Scalar[name], o.Scalar[name])
		}
	}
	return out
}

// Distance is the sum of what is missing of each resource, as a part of what is asked.
func (p NodeResourcesFit) Distance(pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (distance float64, fixable bool) {
	var four [4]Shortage
	return distanceOf(appendShortages(four[:0], p.asksOf(n, p.asks(pod)), n))
}

// distanceOf also tells whether the pod would fit if it asked for less.
func distanceOf(missing []Shortage) (distance float64, fixable bool) {
	fixable = len(missing) > 0
	for _, s := range missing {
		free := max(s.Offers-s.Taken, 0)
		distance += float64(s.Asks-free) / float64(max(s.Asks, 1))
		fixable = fixable && free > 0 && s.Name != corev1.ResourcePods
	}
	return distance, fixable
}

// Explain says what is asked, free and there, and how much the pod could ask for instead.
func (p NodeResourcesFit) Explain(pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (short, hint string, far float64) {
	missing := Shortages(p.asksOf(n, p.asks(pod)), n)
	for i, s := range missing {
		if i > 0 {
			short += "; "
			hint += " and "
		}
		if s.Name == corev1.ResourcePods {
			short += fmt.Sprintf("pods: %d of %d", s.Taken, s.Offers)
			continue
		}
		left := Amount(s.Name, max(s.Offers-s.Taken, 0))
		short += string(s.Name) + ": asks " + Amount(s.Name, s.Asks) + ", free " + left + " of " + Amount(s.Name, s.Offers)
		hint += string(s.Name) + " request <= " + left
	}
	far, fixable := distanceOf(missing)
	if !fixable {
		return short, "", far
	}
	return short, "fits on " + n.Name + " if " + hint, far
}

// Amount writes an amount as people do, rounded down to two digits: "2.9Gi", "500m", "4".
func Amount(name corev1.ResourceName, n int64) string {
	switch name {
	case corev1.ResourceCPU:
		if n%1000 == 0 {
			return strconv.FormatInt(n/1000, 10)
		}
		return strconv.FormatInt(n, 10) + "m"
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return bytesText(n)
	default:
		return fmt.Sprint(n)
	}
}

func bytesText(n int64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	whole, rest, u := n, int64(0), 0
	for whole >= 1024 && u < len(units)-1 {
		whole, rest = whole/1024, whole%1024
		u++
	}
	if tenth := rest * 10 / 1024; tenth > 0 && whole < 100 {
		return fmt.Sprintf("%d.%d%s", whole, tenth, units[u])
	}
	return fmt.Sprintf("%d%s", whole, units[u])
}

// PreScore ranks by the strategy.
func (p NodeResourcesFit) PreScore(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	if len(p.Strategy.Resources) == 0 && p.Strategy.Rank == nil {
		return leastAllocated{pod.ScoreCPU, pod.ScoreMemory}
	}
	return &byStrategy{p.Strategy, pod}
}

// EventsToRegister names what may help: room appears when a node comes or grows, a pod leaves or shrinks, or this pod asks for less.
func (p NodeResourcesFit) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{On: framework.NodeAdd | framework.NodeAllocatable, ByClass: true, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			n := state.NewNodeInfo(e.NewNode)
			return len(Shortages(p.asksOf(n, p.asks(pod)), n)) == 0
		}},
		{On: framework.PodDelete | framework.PodShrinks, ByClass: true, Worth: p.freed},
		{On: framework.Self},
		{On: framework.Objects, Resource: deviceClasses, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			return e.NewObject != nil && p.delegates(p.asks(pod))
		}},
	}
}

// freed tells whether room that a pod has left may help another one: it fits now, beside the pods nominated to the node that count for it; or it
// can make room by preemption where it could not before, since the one that left was no less important.
func (p NodeResourcesFit) freed(pod *state.PodInfo, e *framework.Event) bool {
	if e.OldPod == nil || e.Room == nil {
		return e.OldPod != nil
	}
	n := e.Room.Node
	asks := p.asksOf(n, p.asks(pod))
	var coming, lower []*state.PodInfo
	for _, o := range e.Room.Coming {
		if o.Priority >= pod.Priority && o.Pod.UID != pod.Pod.UID {
			coming = append(coming, o)
		}
	}
	if len(coming) > 0 {
		n = n.With(coming, nil)
	}
	if len(Shortages(asks, n)) == 0 {
		return true
	}
	if policy := pod.Pod.Spec.PreemptionPolicy; state.Priority(e.OldPod) < pod.Priority || policy != nil && *policy == corev1.PreemptNever {
		return false
	}
	for _, o := range n.Pods {
		if o.Priority < pod.Priority {
			lower = append(lower, o)
		}
	}
	return len(lower) > 0 && len(Shortages(asks, n.With(nil, lower))) == 0
}
