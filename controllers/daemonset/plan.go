// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/core/pod"
)

// burst is the maximum number of pods created, and deleted, in one pass.
const burst = 250

// snapshot is the input of a decision. Nothing in it is modified.
type snapshot struct {
	set   *appsv1.DaemonSet
	nodes []*corev1.Node
	// pods are the pods that the set controls, in any state.
	pods []*corev1.Pod
	// hash is the hash label of the current template's pods.
	hash       string
	collisions int32
	// expectationsSatisfied is false while creations or deletions are expected: then only the status is computed.
	expectationsSatisfied bool
	// backoffLeft returns how long a failed pod on a node must stay, to delay the next one. 0: no longer.
	backoffLeft func(node string) time.Duration
	now         time.Time
}

// podDeletion is a pod to delete, with the event to record.
type podDeletion struct {
	pod  *corev1.Pod
	kind string // the event's type; "": no event
}

// plan is the result of a pass.
type plan struct {
	create []string // one node per pod
	remove []podDeletion
	// next is when time alone will change something; 0: never.
	next time.Duration
	// byNode are the nodes by name, with the set's pods.
	byNode map[string]*nodePods
	// desired is the number of nodes that should run a pod.
	desired int
}

// nodePods is one node: whether it should run a pod, and the pods on it or pinned to it, oldest first. Nodes known only
// from pods are included.
type nodePods struct {
	exists, run, stay bool
	pods              []*corev1.Pod
}

// decide compares nodes and pods. Missing and surplus pods have priority; a rollout continues only in a pass without
// them.
func decide(snap snapshot) plan {
	steps := groupByNode(snap)
	if !snap.expectationsSatisfied {
		return steps
	}
	names := slices.Sorted(maps.Keys(steps.byNode))
	for _, name := range names {
		steps.manageNode(snap, name)
	}
	if len(steps.create)+len(steps.remove) == 0 &&
		snap.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if surge, unavailable := limits(snap.set, steps.desired); surge == 0 {
			steps.rollingUpdate(snap, names, unavailable)
		} else {
			steps.surgingUpdate(snap, names, surge)
		}
	}
	steps.create = steps.create[:min(len(steps.create), burst)]
	steps.remove = steps.remove[:min(len(steps.remove), burst)]
	return steps
}

// groupByNode groups the pods by node.
func groupByNode(snap snapshot) plan {
	steps := plan{byNode: make(map[string]*nodePods, len(snap.nodes))}
	f := newNodeFit(snap.set)
	for _, n := range snap.nodes {
		run, stay := f.shouldRun(n)
		steps.byNode[n.Name] = &nodePods{exists: true, run: run, stay: stay}
		if run {
			steps.desired++
		}
	}
	for _, x := range snap.pods {
		name := nodeOf(x)
		if name == "" || pod.Terminal(x) && x.DeletionTimestamp != nil {
			continue // without a node, or being deleted
		}
		at := steps.byNode[name]
		if at == nil {
			at = &nodePods{}
			steps.byNode[name] = at
		}
		at.pods = append(at.pods, x)
		steps.requeueAfter(available(snap, x))
	}
	for _, at := range steps.byNode {
		slices.SortFunc(at.pods, oldestFirst)
	}
	return steps
}

func (p *plan) requeueAfter(_ bool, wait time.Duration) {
	if wait > 0 && (p.next == 0 || wait < p.next) {
		p.next = wait
	}
}

// oldestFirst sorts bound pods before unbound ones.
func oldestFirst(a, b *corev1.Pod) int {
	waits := func(p *corev1.Pod) int {
		if p.Spec.NodeName == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(waits(a), waits(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name))
}

func available(s snapshot, p *corev1.Pod) (ok bool, wait time.Duration) {
	return pod.Available(p, time.Duration(s.set.Spec.MinReadySeconds)*time.Second, s.now)
}

func isAvailable(s snapshot, p *corev1.Pod) bool {
	ok, _ := available(s, p)
	return ok
}

func (p *plan) deletePods(pods ...*corev1.Pod) {
	for _, x := range pods {
		p.remove = append(p.remove, podDeletion{pod: x})
	}
}

// manageNode ensures that a node has exactly the pod that it should have.
func (p *plan) manageNode(snap snapshot, name string) {
	at := p.byNode[name]
	switch {
	case !at.exists:
		// The pod garbage collector deletes pods that ran on a lost node; pods that still wait for it must be deleted
		// here.
		p.deletePods(slices.DeleteFunc(slices.Clone(at.pods), func(x *corev1.Pod) bool {
			return x.Spec.NodeName != "" || x.DeletionTimestamp != nil
		})...)
	case at.run && len(at.pods) == 0:
		p.create = append(p.create, name)
	case at.stay:
		p.deleteSurplus(snap, name, at)
	default:
		p.deletePods(slices.DeleteFunc(slices.Clone(at.pods), func(x *corev1.Pod) bool {
			return x.DeletionTimestamp != nil
		})...)
	}
}

// deleteSurplus deletes finished and surplus pods; during a surge each template may have one.
func (p *plan) deleteSurplus(snap snapshot, name string, node *nodePods) {
	var alive []*corev1.Pod
	for _, x := range node.pods {
		switch {
		case x.DeletionTimestamp != nil:
		case x.Status.Phase == corev1.PodFailed:
			if wait := snap.backoffLeft(name); wait > 0 {
				p.requeueAfter(false, wait)
			} else {
				p.remove = append(p.remove, podDeletion{x, corev1.EventTypeWarning})
			}
		case x.Status.Phase == corev1.PodSucceeded:
			p.remove = append(p.remove, podDeletion{x, corev1.EventTypeNormal})
		default:
			alive = append(alive, x)
		}
	}
	if surge, _ := limits(snap.set, p.desired); surge == 0 {
		p.deletePods(alive[min(1, len(alive)):]...)
		return
	}
	failed := slices.ContainsFunc(node.pods, pod.Terminal)
	if len(alive) == 0 && node.run && !failed {
		p.create = append(p.create, name)
	}
	if len(alive) > 1 {
		p.deleteSurplusSurging(snap, alive)
	}
}

// deleteSurplusSurging keeps the oldest pod of the current template and the oldest of another; the latter only until
// the former is available, and while it is available itself.
func (p *plan) deleteSurplusSurging(snap snapshot, alive []*corev1.Pod) {
	var fresh, old *corev1.Pod
	for _, x := range alive {
		switch isNew := x.Labels[appsv1.ControllerRevisionHashLabelKey] == snap.hash; {
		case isNew && fresh == nil:
			fresh = x
		case !isNew && old == nil:
			old = x
		default:
			p.deletePods(x)
		}
	}
	if fresh != nil && old != nil && (!pod.Ready(old) || isAvailable(snap, fresh)) {
		p.deletePods(old)
	}
}

// limits resolves the strategy's numbers, rounded up; if both were 0, one node at a time may be without a pod.
func limits(set *appsv1.DaemonSet, desired int) (surge, unavailable int) {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || r == nil {
		return 0, 0
	}
	surge = scaledValue(r.MaxSurge, desired)
	if unavailable = scaledValue(r.MaxUnavailable, desired); desired > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func scaledValue(v *intstr.IntOrString, of int) int {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, of, true)
	if err != nil {
		return 0
	}
	return n
}

// split returns a node's live pods: the one of the current template and the one of another. ok is false if there are
// more, which manageNode deletes.
func (s snapshot) split(node *nodePods) (fresh, old *corev1.Pod, ok bool) {
	for _, x := range node.pods {
		side := &old
		switch {
		case x.DeletionTimestamp != nil:
			continue
		case current(s.set, s.hash, x):
			side = &fresh
		}
		if *side != nil {
			return nil, nil, false
		}
		*side = x
	}
	return fresh, old, true
}

// rollingUpdate deletes old pods so that at most that many nodes lack an available one. The next pass creates their
// successors.
func (p *plan) rollingUpdate(snap snapshot, names []string, maxUnavailable int) {
	var down int
	var broken, serving []*corev1.Pod
	for _, name := range names {
		at := p.byNode[name]
		if !at.run && len(at.pods) == 0 {
			continue
		}
		fresh, old, ok := snap.split(at)
		switch {
		case !ok || (fresh == nil) == (old == nil):
			down++ // a replacement is in progress
		case fresh != nil:
			if !isAvailable(snap, fresh) {
				down++
			}
		case isAvailable(snap, old):
			serving = append(serving, old)
		default:
			broken = append(broken, old) // deleting it makes nothing worse
			down++
		}
	}
	p.deletePods(broken...)
	p.deletePods(serving[:min(len(serving), max(0, maxUnavailable-down))]...)
}

// surgingUpdate creates new pods next to available old ones, on at most maxSurge nodes at a time, and deletes the old
// ones when the new ones are available. On nodes where the set should not run any more, old pods are deleted as long as
// enough others are available.
func (p *plan) surgingUpdate(snap snapshot, names []string, maxSurge int) {
	var surging, serving int
	var candidates []string
	var leaving []*corev1.Pod
	for _, name := range names {
		at := p.byNode[name]
		fresh, old, ok := snap.split(at)
		if !ok {
			surging++
			continue
		}
		if x := cmp.Or(old, fresh); x != nil && isAvailable(snap, x) {
			serving++
		}
		switch {
		case old == nil:
		case fresh != nil && isAvailable(snap, fresh):
			p.deletePods(old)
		case fresh != nil:
			surging++
		case !isAvailable(snap, old) && at.run:
			p.create = append(p.create, name)
		case !isAvailable(snap, old):
			p.deletePods(old)
		case at.run:
			candidates = append(candidates, name)
		default:
			leaving = append(leaving, old)
		}
	}
	p.deletePods(leaving[:min(len(leaving), max(0, serving-p.desired))]...)
	p.create = append(p.create, candidates[:min(len(candidates), max(0, maxSurge-surging))]...)
}

// status is the set's status from nodes and pods. A pass without actions does not update observedGeneration.
func status(snap snapshot, steps plan) appsv1.DaemonSetStatus {
	st := appsv1.DaemonSetStatus{
		ObservedGeneration: snap.set.Generation,
		CollisionCount:     snap.set.Status.CollisionCount,
		Conditions:         snap.set.Status.Conditions,
	}
	if snap.collisions > 0 {
		st.CollisionCount = &snap.collisions
	}
	if !snap.expectationsSatisfied {
		st.ObservedGeneration = snap.set.Status.ObservedGeneration
	}
	st.DesiredNumberScheduled = int32(steps.desired)
	for _, at := range steps.byNode {
		switch {
		case len(at.pods) == 0 || !at.exists:
			continue
		case !at.run:
			st.NumberMisscheduled++
			continue
		}
		st.CurrentNumberScheduled++
		x := at.pods[0]
		if pod.Ready(x) {
			st.NumberReady++
			if isAvailable(snap, x) {
				st.NumberAvailable++
			}
		}
		if current(snap.set, snap.hash, x) {
			st.UpdatedNumberScheduled++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	return st
}
