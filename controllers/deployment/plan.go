// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/meta"
)

// snapshot is the input of a decision. Nothing in it is modified.
type snapshot struct {
	d    *appsv1.Deployment
	sets []*appsv1.ReplicaSet // controlled and selected by the Deployment
	now  time.Time
	// oldPods reports whether sets other than except still have unfinished pods, for which Recreate waits.
	oldPods func(except types.UID) bool
}

// plan is the result of a pass.
type plan struct {
	// current is the set with the Deployment's pod template, nil if there is none; old are all others.
	current *appsv1.ReplicaSet
	old     []*appsv1.ReplicaSet
	// create is a new set; it becomes current.
	create *appsv1.ReplicaSet
	// changes are sets to update.
	changes []*change
	// remove are old sets beyond the history limit.
	remove []*appsv1.ReplicaSet
	// revision is what the Deployment's revision annotation shall say; empty: leave it.
	revision string
	// conditions are the Deployment's as the pass finds them, with pausing, resuming and a new set noted.
	conditions []appsv1.DeploymentCondition
	// rollout says that progress is estimated: neither paused nor merely scaling.
	rollout bool
}

// change is the update of one set: set is a copy with the new values, was its previous replicas.
type change struct {
	set         *appsv1.ReplicaSet
	oldReplicas int32
}

// decide chooses the next step of s.d's rollout. After each step the next pass takes another, until nothing is left to
// do. The same state gives the same decision.
func decide(snap snapshot) plan {
	steps := plan{conditions: slices.Clone(snap.d.Status.Conditions)}
	steps.current, steps.old = split(snap.d, snap.sets)
	if snap.d.DeletionTimestamp != nil {
		return steps
	}
	steps.setPausedCondition(snap)
	steps.refreshCurrent(snap)
	recreate := snap.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	switch {
	case snap.d.Spec.Paused:
		steps.scaleToSize(snap.d)
		steps.cleanup(snap.d)
	case isScalingEvent(snap) && (!recreate || len(active(snap.sets)) <= 1):
		// several sets share the replicas only in a rolling update
		steps.scaleToSize(snap.d)
	case recreate:
		steps.rollout = true
		steps.rolloutRecreate(snap)
	default:
		steps.rollout = true
		steps.rolloutRolling(snap)
	}
	return steps
}

// split finds the set with the Deployment's template: the oldest if there are several.
func split(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) (current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	for _, rs := range slices.SortedFunc(slices.Values(sets), byAge) {
		if current == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			current = rs
		} else {
			old = append(old, rs)
		}
	}
	return current, old
}

// byAge sorts the oldest first.
func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// active returns the sets with replicas > 0.
func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return slices.DeleteFunc(slices.Clone(sets), func(rs *appsv1.ReplicaSet) bool {
		return rs == nil || replicas(rs) == 0
	})
}

func (p *plan) all() []*appsv1.ReplicaSet {
	if p.current == nil {
		return p.old
	}
	return append(slices.Clone(p.old), p.current)
}

// editable returns the copy of rs for changes. Only metadata, replicas and minReadySeconds may be set.
func (p *plan) editable(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	for _, c := range p.changes {
		if c.set.UID == rs.UID {
			return c.set
		}
	}
	next := *rs
	next.Annotations = maps.Clone(rs.Annotations)
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	p.changes = append(p.changes, &change{set: &next, oldReplicas: replicas(rs)})
	return &next
}

// scale plans n replicas for rs and annotates it with the Deployment's size. It reports whether the number changes.
func (p *plan) scale(d *appsv1.Deployment, rs *appsv1.ReplicaSet, n int32) bool {
	if replicas(rs) == n && hasSizeAnnotations(d, rs) {
		return false
	}
	next := p.editable(rs)
	next.Spec.Replicas = &n
	setSizeAnnotations(d, next.Annotations)
	return replicas(rs) != n
}

// rolloutRolling is a step of a rolling update: first scale up as maxSurge allows, else scale down as maxUnavailable
// allows.
func (p *plan) rolloutRolling(snap snapshot) {
	if p.current == nil {
		p.createSet(snap, func(rs *appsv1.ReplicaSet) int32 { return newReplicas(snap.d, append(p.all(), rs), rs) })
		return
	}
	up := int32(0)
	if replicas(p.current) > desiredReplicas(snap.d) {
		up = desiredReplicas(snap.d)
	} else {
		up = newReplicas(snap.d, p.all(), p.current)
	}
	if up != replicas(p.current) {
		p.scale(snap.d, p.current, up)
		return
	}
	if p.scaleDownOld(snap.d) {
		return
	}
	if isComplete(snap.d, &snap.d.Status) {
		p.cleanup(snap.d)
	}
}

// rolloutRecreate is a step of a rollout that deletes all old pods before it creates new ones.
func (p *plan) rolloutRecreate(snap snapshot) {
	down := false
	for _, rs := range active(p.old) {
		down = p.scale(snap.d, rs, 0) || down
	}
	if down {
		return
	}
	except := types.UID("")
	if p.current != nil {
		except = p.current.UID
	}
	if actual(p.old) > 0 || snap.oldPods(except) {
		return
	}
	if p.current == nil {
		p.createSet(snap, func(*appsv1.ReplicaSet) int32 { return desiredReplicas(snap.d) })
		return
	}
	if !p.scale(snap.d, p.current, desiredReplicas(snap.d)) && isComplete(snap.d, &snap.d.Status) {
		p.cleanup(snap.d)
	}
}

// cleanup plans the deletion of the oldest sets beyond the revision history limit; sets with pods stay.
func (p *plan) cleanup(d *appsv1.Deployment) {
	if d.Spec.RevisionHistoryLimit == nil || *d.Spec.RevisionHistoryLimit == maxInt32 {
		return
	}
	old := slices.DeleteFunc(slices.Clone(p.old), func(rs *appsv1.ReplicaSet) bool {
		return rs.DeletionTimestamp != nil
	})
	excess := len(old) - int(*d.Spec.RevisionHistoryLimit)
	if excess <= 0 {
		return
	}
	slices.SortFunc(old, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(revision(a), revision(b)), byAge(a, b))
	})
	for _, rs := range old[:excess] {
		if rs.Status.Replicas != 0 || replicas(rs) != 0 || rs.Generation > rs.Status.ObservedGeneration {
			continue
		}
		p.remove = append(p.remove, rs)
	}
}

// createSet plans the set for the Deployment's template, with the number of replicas that size returns.
func (p *plan) createSet(s snapshot, size func(*appsv1.ReplicaSet) int32) {
	rs := newSet(s.d)
	setRevision(rs, maxRevision(p.old)+1)
	setSizeAnnotations(s.d, rs.Annotations)
	zero := int32(0)
	rs.Spec.Replicas = &zero
	n := size(rs)
	rs.Spec.Replicas = &n
	p.create = rs
	p.revision = rs.Annotations[revisionAnnotation]
}

// newSet is the ReplicaSet for deployment's template, with no replicas.
func newSet(deployment *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := templateHash(&deployment.Spec.Template, deployment.Status.CollisionCount)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            meta.ChildName(deployment.Name, "-"+hash),
			Namespace:       deployment.Namespace,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, gvk)},
		},
		Spec: appsv1.ReplicaSetSpec{
			MinReadySeconds: deployment.Spec.MinReadySeconds,
			Selector:        deployment.Spec.Selector.DeepCopy(),
			Template:        *deployment.Spec.Template.DeepCopy(),
		},
	}
	label := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		if m == nil {
			m = map[string]string{}
		}
		m[appsv1.DefaultDeploymentUniqueLabelKey] = hash
		return m
	}
	rs.Spec.Template.Labels = label(rs.Spec.Template.Labels)
	rs.Spec.Selector.MatchLabels = label(rs.Spec.Selector.MatchLabels)
	rs.Labels = maps.Clone(rs.Spec.Template.Labels)
	copyAnnotations(deployment, rs)
	return rs
}
