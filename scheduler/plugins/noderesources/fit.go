// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Fit filters nodes whose free resources do not cover the pod's requests, and scores nodes by utilization.
type Fit struct {
	// Strategy scores nodes; the zero value prefers the least allocated.
	Strategy Strategy
	// Ignored reports whether the filter ignores an extended resource; nil: none.
	Ignored func(corev1.ResourceName) bool
	// DeviceClass returns the DeviceClass that serves an extended resource on nodes that do not offer it themselves;
	// "": none. The plugin DynamicResources allocates the devices. nil: there are no such classes.
	DeviceClass func(corev1.ResourceName) string
	// Devices counts them for the scores; see framework.Handle.
	Devices CountDevices
}

// deviceClasses: a new class may help a pod that requests the extended resource of the class.
var deviceClasses = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")

// requests returns the pod's requests without the ignored ones.
func (p Fit) requests(pod *state.PodInfo) *state.Resource {
	if p.Ignored == nil || len(pod.Request.Scalar) == 0 {
		return &pod.Request
	}
	return pod.Request.Without(p.Ignored)
}

// mayUseDevices reports whether a DeviceClass serves one of the requests.
func (p Fit) mayUseDevices(requests *state.Resource) bool {
	if p.DeviceClass != nil {
		for name := range requests.Scalar {
			if p.DeviceClass(name) != "" {
				return true
			}
		}
	}
	return false
}

// requestsOn returns the requests that n itself has to meet: those without devices.
func (p Fit) requestsOn(n *state.NodeInfo, requests *state.Resource) *state.Resource {
	if !p.mayUseDevices(requests) {
		return requests
	}
	return requests.Without(func(name corev1.ResourceName) bool {
		return n.Allocatable.Scalar[name] == 0 && p.DeviceClass(name) != ""
	})
}

// Plugin returns the descriptor.
func (p Fit) Plugin() *framework.Plugin {
	same := framework.NodeFilter{Explain: p.explain, Distance: p.distance} // made once, not for each pod
	return &framework.Plugin{
		Name: "NodeResourcesFit",
		PreFilter: func(
			_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
		) (framework.NodeFilter, *framework.Status) {
			f := same
			f.Filter, f.NodeLocal = p.filter(p.requests(pod))
			return f, nil
		},
		PreScore: p.PreScore,
		Events:   p.events(),
	}
}

// filter returns the filter for a pod's requests. If devices may serve some of them, the result depends on
// DeviceClasses, so it is not NodeLocal.
func (p Fit) filter(
	requests *state.Resource,
) (filter func(*state.NodeInfo) *framework.Status, nodeLocal bool) {
	if p.mayUseDevices(requests) {
		return func(n *state.NodeInfo) *framework.Status { return fits(p.requestsOn(n, requests), n) }, false
	}
	return func(n *state.NodeInfo) *framework.Status { return fits(requests, n) }, true
}

// fits returns nil if the node has room for the requests. It has a fast path without allocations for the common case.
func fits(a *state.Resource, n *state.NodeInfo) *framework.Status {
	r := &n.Requested
	free := &n.Allocatable
	if int64(len(n.Pods)) < free.Pods && enough(a.MilliCPU, r.MilliCPU, free.MilliCPU) &&
		enough(a.Memory, r.Memory, free.Memory) &&
		enough(a.EphemeralStorage, r.EphemeralStorage, free.EphemeralStorage) && len(a.Scalar) == 0 {
		return nil
	}
	short := Shortages(a, n)
	if len(short) == 0 {
		return nil
	}
	return shortStatus(short)
}

// commonShortages are the statuses for shortages of the commonResources only: first 0 if preemption may help, 1 if not,
// then a bit set of the resources. All nodes share them, so that equal statuses have equal pointers and are cheap to
// count.
var (
	commonResources = []corev1.ResourceName{
		corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	}
	commonShortages = func() (t [2][16]*framework.Status) {
		for set := 1; set < 16; set++ {
			var short []Shortage
			for i, name := range commonResources {
				if set&(1<<i) != 0 {
					short = append(short, Shortage{Name: name})
				}
			}
			t[0][set] = newShortStatus(short)
			short[0].Requested = 1 // of 0
			t[1][set] = newShortStatus(short)
		}
		return t
	}()
)

// shortStatus returns the status for shortages.
func shortStatus(short []Shortage) *framework.Status {
	set := 0
	never := 0
	for _, s := range short {
		i := slices.Index(commonResources, s.Name)
		if i < 0 {
			return newShortStatus(short)
		}
		if set |= 1 << i; s.Requested > s.Allocatable {
			never = 1
		}
	}
	return commonShortages[never][set]
}

func newShortStatus(short []Shortage) *framework.Status {
	code := framework.Unschedulable
	reasons := make([]string, 0, len(short))
	for _, s := range short {
		if s.Name == corev1.ResourcePods {
			reasons = append(reasons, "Too many pods")
		} else {
			reasons = append(reasons, "Insufficient "+string(s.Name))
		}
		if s.Requested > s.Allocatable {
			code = framework.Unresolvable
		}
	}
	return framework.NewStatus("NodeResourcesFit", code, reasons...)
}

// enough reports whether a request fits. A request of 0 fits even on an overcommitted node.
func enough(requests, used, allocatable int64) bool {
	return requests == 0 || requests <= allocatable-used
}

// Shortage is a resource of which a node has too little for a pod.
type Shortage struct {
	Name                         corev1.ResourceName
	Requested, Used, Allocatable int64
}

// notOffered reports whether the node has nothing of an extended resource, whatever its pods use.
func (s Shortage) notOffered() bool { return s.Allocatable == 0 && !native(s.Name) }

// Shortages returns the shortages on n in this order: pods, cpu, memory, ephemeral storage, then the others by name.
func Shortages(requests *state.Resource, n *state.NodeInfo) []Shortage {
	return appendShortages(nil, requests, n)
}

func appendShortages(out []Shortage, requests *state.Resource, n *state.NodeInfo) []Shortage {
	check := func(name corev1.ResourceName, requests, used, allocatable int64) {
		if !enough(requests, used, allocatable) {
			out = append(out, Shortage{name, requests, used, allocatable})
		}
	}
	resource := &n.Requested
	o := &n.Allocatable
	check(corev1.ResourcePods, 1, int64(len(n.Pods)), o.Pods)
	check(corev1.ResourceCPU, requests.MilliCPU, resource.MilliCPU, o.MilliCPU)
	check(corev1.ResourceMemory, requests.Memory, resource.Memory, o.Memory)
	check(corev1.ResourceEphemeralStorage, requests.EphemeralStorage, resource.EphemeralStorage, o.EphemeralStorage)
	if len(requests.Scalar) > 0 {
		names := make([]corev1.ResourceName, 0, len(requests.Scalar))
		for name := range requests.Scalar {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			check(name, requests.Scalar[name], resource.Scalar[name], o.Scalar[name])
		}
	}
	return out
}

// distance is the sum of what is missing of each resource, as a part of what is asked.
func (p Fit) distance(
	pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (distance float64, fixable bool) {
	var four [4]Shortage
	return distanceOf(appendShortages(four[:0], p.requestsOn(n, p.requests(pod)), n))
}

// distanceOf also reports whether the pod would fit if it asked for less.
func distanceOf(missing []Shortage) (distance float64, fixable bool) {
	fixable = len(missing) > 0
	for _, s := range missing {
		free := max(s.Allocatable-s.Used, 0)
		distance += float64(s.Requested-free) / float64(max(s.Requested, 1))
		fixable = fixable && s.Name != corev1.ResourcePods && (free > 0 || s.notOffered())
	}
	return distance, fixable
}

// explain names requested, free and allocatable amounts, and the requests with which the pod would fit.
func (p Fit) explain(
	pod *state.PodInfo, info *state.NodeInfo, _ *framework.Status,
) (short, hint string, far float64) {
	missing := Shortages(p.requestsOn(info, p.requests(pod)), info)
	for i, shortage := range missing {
		if i > 0 {
			short += "; "
			hint += " and "
		}
		if shortage.Name == corev1.ResourcePods {
			short += fmt.Sprintf("pods: %d of %d", shortage.Used, shortage.Allocatable)
			continue
		}
		left := Amount(shortage.Name, max(shortage.Allocatable-shortage.Used, 0))
		short += string(shortage.Name) + ": asks " + Amount(shortage.Name, shortage.Requested) + ", free " + left +
			" of " + Amount(shortage.Name,
			shortage.Allocatable)
		if shortage.notOffered() {
			hint += string(shortage.Name) + " is not requested"
			continue
		}
		hint += string(shortage.Name) + " request <= " + left
	}
	far, fixable := distanceOf(missing)
	if !fixable {
		return short, "", far
	}
	return short, "fits on " + info.Name + " if " + hint, far
}

// Amount formats an amount for people, rounded down to two digits: "2.9Gi", "500m", "4".
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
	whole := n
	rest := int64(0)
	u := 0
	for whole >= 1024 && u < len(units)-1 {
		whole, rest = whole/1024, whole%1024
		u++
	}
	if tenth := rest * 10 / 1024; tenth > 0 && whole < 100 {
		return fmt.Sprintf("%d.%d%s", whole, tenth, units[u])
	}
	return fmt.Sprintf("%d%s", whole, units[u])
}

// PreScore returns the scorer of the strategy.
func (p Fit) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	if len(p.Strategy.Resources) == 0 && p.Strategy.Rank == nil {
		l := leastAllocatedScorer{pod.ScoreCPU, pod.ScoreMemory}
		return framework.NodeScorer{Score: l.Score, NodeLocal: true}
	}
	var scored []corev1.ResourceName
	for _, r := range p.Strategy.Resources {
		scored = append(scored, r.Name)
	}
	devices := p.Devices.of(pod, scored)
	scorer := strategyScorer{p.Strategy, pod, devices}
	return framework.NodeScorer{Score: scorer.Score, NodeLocal: len(devices) == 0}
}

// events names what may help: a new or larger node, a deleted or shrunk pod, or smaller requests of this pod.
func (p Fit) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{
			Kinds:   framework.NodeAdd | framework.NodeAllocatable,
			ByClass: true,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				n := state.NewNodeInfo(e.NewNode)
				return len(Shortages(p.requestsOn(n, p.requests(pod)), n)) == 0
			},
		},
		{
			Kinds:          framework.AssignedPodDelete | framework.AssignedPodScaleDown,
			ByClass:        true,
			QueueingHintFn: p.isSchedulableAfterPodDelete,
		},
		{Kinds: framework.UnscheduledPodUpdate},
		{
			Kinds:    framework.Objects,
			Resource: deviceClasses,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				return e.NewObject != nil && p.mayUseDevices(p.requests(pod))
			},
		},
	}
}

// isSchedulableAfterPodDelete is the QueueingHint for resources that a pod has freed. They help if the pod fits now
// together with the nominated pods of its priority or higher. They also help if preemption has become possible: the pod
// that left could not be preempted, since its priority was not lower.
func (p Fit) isSchedulableAfterPodDelete(pod *state.PodInfo, event *framework.Event) bool {
	if event.OldPod == nil || event.NodeView == nil {
		return event.OldPod != nil
	}
	info := event.NodeView.Node
	requests := p.requestsOn(info, p.requests(pod))
	var nominated, lower []*state.PodInfo
	for _, o := range event.NodeView.Nominated {
		if o.Priority >= pod.Priority && o.Pod.UID != pod.Pod.UID {
			nominated = append(nominated, o)
		}
	}
	if len(nominated) > 0 {
		info = info.With(nominated, nil)
	}
	if len(Shortages(requests, info)) == 0 {
		return true
	}
	if policy := pod.Pod.Spec.PreemptionPolicy; state.Priority(event.OldPod) < pod.Priority ||
		policy != nil && *policy == corev1.PreemptNever {
		return false
	}
	for _, o := range info.Pods {
		if o.Priority < pod.Priority {
			lower = append(lower, o)
		}
	}
	return len(lower) > 0 && len(Shortages(requests, info.With(nil, lower))) == 0
}
