// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/core/pod"
)

// burst is the maximum number of pods created in one pass.
const burst = 500

// snapshot is the input of a decision. Nothing in it is modified.
type snapshot struct {
	set *appsv1.StatefulSet
	// pods are the pods that the set controls with valid names, in any state.
	pods []*corev1.Pod
	// claim returns a claim in the set's namespace, nil if it does not exist.
	claim func(name string) *corev1.PersistentVolumeClaim
	// current and update are the revisions before and after a rollout.
	current, update string
	collisions      int32
	// expectationsSatisfied is false while creations or deletions are expected: then only the status is computed.
	expectationsSatisfied bool
	now                   time.Time
}

type verb int

const (
	create          verb = iota // create the pod's claims and the pod
	remove                      // delete the pod
	restoreIdentity             // restore the pod's labels and volumes
	createClaims                // create the missing claims of a pending pod
	setClaimOwners              // set the owners of the claims
)

// action is one action on pod n. revision is the one from which it is created.
type action struct {
	verb     verb
	n        int
	pod      *corev1.Pod // nil for create
	revision string
}

// plan is the result of a pass: stages in order, each only if the one before succeeded.
type plan struct {
	stages [][]action
	// next is when a ready pod becomes available; 0: none will.
	next time.Duration
}

// member is one of the wanted pods: it exists or will be created.
type member struct {
	n   int
	pod *corev1.Pod
}

// decide compares the set with its pods. With OrderedReady the pods are handled one by one, and the first that is not
// as wanted blocks those after it: missing pods come first, then scaling down, then updates. With Parallel no pod waits
// for another, and scaling down comes first: the quota may have room for a missing pod only after that.
func decide(snap snapshot) plan {
	members, condemned := splitPods(snap)
	work := plan{next: nextAvailable(snap)}
	if !snap.expectationsSatisfied || snap.set.DeletionTimestamp != nil {
		return work
	}
	ordered := snap.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	missing := func() bool {
		stage, ok := manageReplicas(snap, members, ordered)
		work.add(stage)
		return ok
	}
	unwanted := func() bool {
		work.add(setOwners(snap, condemned))
		stage, ok := scaleDown(snap, members, condemned, ordered)
		work.add(stage)
		return ok
	}
	steps := []func() bool{missing, unwanted}
	if !ordered {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if !step() {
			return work
		}
	}
	if snap.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		work.add(rollOut(snap, members, ordered))
	}
	return work
}

func (p *plan) add(stage []action) {
	if len(stage) > 0 {
		p.stages = append(p.stages, stage)
	}
}

// splitPods returns the wanted pods in order, and the others, last first. Of missing wanted pods only the first ones
// are included, because spec.replicas may be any number.
func splitPods(snap snapshot) (members, condemned []member) {
	var have []member
	for _, p := range snap.pods {
		if _, n := parseOrdinal(p.Name); inRange(snap.set, n) {
			have = append(have, member{n, p})
		} else {
			condemned = append(condemned, member{n, p})
		}
	}
	slices.SortFunc(have, func(a, b member) int { return cmp.Compare(a.n, b.n) })
	slices.SortFunc(condemned, func(a, b member) int { return cmp.Compare(b.n, a.n) })
	first := start(snap.set)
	missing := min(burst, replicas(snap.set)-len(have))
	for n := first; missing > 0; n++ {
		if len(have) > 0 && have[0].n == n {
			members = append(members, have[0])
			have = have[1:]
			continue
		}
		members = append(members, member{n: n})
		missing--
	}
	return append(members, have...), condemned
}

// manageReplicas creates and repairs the wanted pods. ok is false when the later steps must wait.
func manageReplicas(s snapshot, members []member, ordered bool) (stage []action, ok bool) {
	ok = true
	for _, m := range members {
		acts, done := manageReplica(s, m, ordered)
		stage = append(stage, acts...)
		if !done && ordered {
			return stage, false
		}
	}
	return stage, ok
}

func manageReplica(snap snapshot, m member, ordered bool) (acts []action, done bool) {
	p := m.pod
	if p == nil {
		if snap.waitsForClaim(m.n) {
			return nil, false
		}
		return []action{{verb: create, n: m.n, revision: revisionFor(snap, m.n)}}, false
	}
	if pod.Terminal(p) {
		// It is terminating; its successor is created when it is deleted: two pods with one identity never exist.
		if p.DeletionTimestamp == nil {
			return []action{{verb: remove, n: m.n, pod: p}}, false
		}
		return nil, false
	}
	if p.Status.Phase == corev1.PodPending && snap.claimMissing(m.n) {
		acts = append(acts, action{verb: createClaims, n: m.n, pod: p})
	}
	if ordered && (p.DeletionTimestamp != nil || !available(snap, p)) {
		return acts, false
	}
	if !hasIdentity(snap.set, p, m.n) {
		acts = append(acts, action{verb: restoreIdentity, n: m.n, pod: p})
	}
	if claimOwnersDiffer(snap, m) {
		acts = append(acts, action{verb: setClaimOwners, n: m.n, pod: p})
	}
	return acts, true
}

// waitsForClaim reports whether pod n must wait for the deletion of a claim of its predecessor.
func (s snapshot) waitsForClaim(n int) bool {
	for i := range s.set.Spec.VolumeClaimTemplates {
		if c := s.claim(claimName(s.set, &s.set.Spec.VolumeClaimTemplates[i], n)); c != nil &&
			claimWillBeDeleted(c, s.set, n) {
			return true
		}
	}
	return false
}

func (s snapshot) claimMissing(n int) bool {
	for i := range s.set.Spec.VolumeClaimTemplates {
		if s.claim(claimName(s.set, &s.set.Spec.VolumeClaimTemplates[i], n)) == nil {
			return true
		}
	}
	return false
}

// claimOwnersDiffer reports whether a claim of m has other owners than the retention policy requires.
func claimOwnersDiffer(s snapshot, m member) bool {
	for i := range s.set.Spec.VolumeClaimTemplates {
		c := s.claim(claimName(s.set, &s.set.Spec.VolumeClaimTemplates[i], m.n))
		if c != nil && claimOwners(c, s.set, m.n, m.pod.UID).change {
			return true
		}
	}
	return false
}

// setOwners sets the owners of the unwanted pods' claims.
func setOwners(snap snapshot, condemned []member) (stage []action) {
	for _, c := range condemned {
		if claimOwnersDiffer(snap, c) {
			stage = append(stage, action{verb: setClaimOwners, n: c.n, pod: c.pod})
		}
	}
	return stage
}

// scaleDown deletes unwanted pods: all at once or, if ordered, the last one when all others are available.
func scaleDown(snap snapshot, members, condemned []member, ordered bool) (stage []action, ok bool) {
	if !ordered {
		for _, c := range condemned {
			if c.pod.DeletionTimestamp == nil {
				stage = append(stage, action{verb: remove, n: c.n, pod: c.pod})
			}
		}
		return stage, true
	}
	if len(condemned) == 0 {
		return nil, true
	}
	last := condemned[0]
	if last.pod.DeletionTimestamp != nil {
		return nil, false
	}
	// A finished pod never becomes available, so do not wait for it.
	if !available(snap, last.pod) && !pod.Terminal(last.pod) && last.pod != firstUnavailable(snap, members, condemned) {
		return nil, false
	}
	return []action{{verb: remove, n: last.n, pod: last.pod}}, false
}

// firstUnavailable is the unavailable pod with the lowest ordinal, nil if all are available or the first one does not
// exist yet.
func firstUnavailable(s snapshot, members, condemned []member) *corev1.Pod {
	for _, m := range members {
		if m.pod == nil || unavailable(s, m.pod) {
			return m.pod
		}
	}
	for _, c := range slices.Backward(condemned) {
		if unavailable(s, c.pod) {
			return c.pod
		}
	}
	return nil
}

// rollOut deletes pods of other revisions, the last first, with at most maxUnavailable unavailable pods. Pods below the
// partition are no part of it: a broken one there does not stop it.
func rollOut(s snapshot, members []member, ordered bool) []action {
	partition, most := limits(s.set)
	budget := most
	var ready, broken []action // pods to replace, and the unavailable ones among them
	for _, m := range slices.Backward(members) {
		if m.n-start(s.set) < partition {
			continue
		}
		down := m.pod == nil || unavailable(s, m.pod)
		if down {
			budget--
		}
		if m.pod == nil || m.pod.DeletionTimestamp != nil || pod.Terminal(m.pod) || revisionOf(m.pod) == s.update {
			continue // a finished pod is deleted elsewhere, whatever its revision
		}
		a := action{verb: remove, n: m.n, pod: m.pod}
		if down && !ordered {
			broken = append(broken, a) // deleting it makes nothing worse
		} else {
			ready = append(ready, a)
		}
	}
	return append(broken, ready[:min(len(ready), max(0, budget))]...)
}

// limits are the strategy's partition and maxUnavailable, which is at least 1.
func limits(set *appsv1.StatefulSet) (partition, maxUnavailable int) {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if r == nil {
		return 0, 1
	}
	if r.Partition != nil {
		partition = int(*r.Partition)
	}
	maxUnavailable, err := intstr.GetScaledValueFromIntOrPercent(
		intstr.ValueOrDefault(r.MaxUnavailable, intstr.FromInt32(1)), replicas(set), false)
	if err != nil {
		maxUnavailable = 1
	}
	return partition, max(1, maxUnavailable)
}

// revisionFor is the revision for pod n: below the partition the current one.
func revisionFor(snap snapshot, n int) string {
	st := &snap.set.Spec.UpdateStrategy
	below := start(snap.set)
	switch {
	case st.RollingUpdate != nil:
		partition, _ := limits(snap.set)
		below += partition
	case st.Type == appsv1.RollingUpdateStatefulSetStrategyType:
		below += int(snap.set.Status.CurrentReplicas)
	}
	if n < below {
		return snap.current
	}
	return snap.update
}

func minReady(set *appsv1.StatefulSet) time.Duration {
	return time.Duration(set.Spec.MinReadySeconds) * time.Second
}

// available reports whether a pod runs and has been ready long enough.
func available(s snapshot, p *corev1.Pod) bool {
	ok, _ := pod.Available(p, minReady(s.set), s.now)
	return ok && p.Status.Phase == corev1.PodRunning
}

func unavailable(s snapshot, p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || !available(s, p)
}

func nextAvailable(s snapshot) (next time.Duration) {
	for _, p := range s.pods {
		if _, wait := pod.Available(p, minReady(s.set), s.now); wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// status is the set's status from its pods.
func status(snap snapshot) appsv1.StatefulSetStatus {
	collisions := snap.collisions
	st := appsv1.StatefulSetStatus{
		ObservedGeneration: snap.set.Generation,
		CurrentRevision:    snap.current,
		UpdateRevision:     snap.update,
		CollisionCount:     &collisions,
		Conditions:         snap.set.Status.Conditions,
	}
	for _, p := range snap.pods {
		st.Replicas++
		if p.Status.Phase == corev1.PodRunning && pod.Ready(p) {
			st.ReadyReplicas++
			if available(snap, p) {
				st.AvailableReplicas++
			}
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(p) == snap.current {
			st.CurrentReplicas++
		}
		if revisionOf(p) == snap.update {
			st.UpdatedReplicas++
		}
	}
	all := int32(replicas(snap.set))
	if st.UpdatedReplicas == all && st.ReadyReplicas == all && st.Replicas == all {
		st.CurrentReplicas = st.UpdatedReplicas
		st.CurrentRevision = st.UpdateRevision // the rollout is complete, also one that a person does (OnDelete)
	}
	return st
}
