// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const maxInt32 = math.MaxInt32

// replicas is the set's spec.replicas; nil: the default.
func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// desiredReplicas is the Deployment's spec.replicas.
func desiredReplicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func sum(sets []*appsv1.ReplicaSet, f func(*appsv1.ReplicaSet) int32) int32 {
	n := int32(0)
	for _, rs := range sets {
		n += f(rs)
	}
	return n
}

func specified(sets []*appsv1.ReplicaSet) int32 { return sum(sets, replicas) }

func actual(sets []*appsv1.ReplicaSet) int32 {
	return sum(sets, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas })
}

func available(sets []*appsv1.ReplicaSet) int32 {
	return sum(sets, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas })
}

// limits resolves maxSurge (percentages rounded up) and maxUnavailable (rounded down). If both are zero, one pod may be
// unavailable, or no step would be possible. Both are 0 for Recreate.
func limits(deployment *appsv1.Deployment) (surge, unavailable int32) {
	ru := deployment.Spec.Strategy.RollingUpdate
	if deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || ru == nil {
		return 0, 0
	}
	n := int(desiredReplicas(deployment))
	surge = resolve(ru.MaxSurge, n, true)
	unavailable = resolve(ru.MaxUnavailable, n, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, desiredReplicas(deployment))
}

func resolve(v *intstr.IntOrString, total int, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, total, up)
	if err != nil {
		return 0 // validation rejects other values
	}
	return int32(n)
}

// newReplicas is the number of replicas to which the current set rs may grow now.
func newReplicas(d *appsv1.Deployment, all []*appsv1.ReplicaSet, rs *appsv1.ReplicaSet) int32 {
	surge, _ := limits(d)
	room := desiredReplicas(d) + surge - specified(all)
	if room <= 0 || replicas(rs) >= desiredReplicas(d) {
		return replicas(rs)
	}
	return replicas(rs) + min(room, desiredReplicas(d)-replicas(rs))
}

// remainingAvailable is how many of the set's available pods remain: its status may be older than its scale-down.
func remainingAvailable(rs *appsv1.ReplicaSet) int32 {
	return min(rs.Status.AvailableReplicas, replicas(rs))
}

// scaleDownOld scales old sets down as availability allows: first unavailable pods, then the others, oldest set first.
// It reports whether anything changes.
func (p *plan) scaleDownOld(deployment *appsv1.Deployment) bool {
	old := active(p.old)
	if len(old) == 0 {
		return false
	}
	_, unavailable := limits(deployment)
	atLeast := desiredReplicas(deployment) - unavailable
	lacking := replicas(p.current) - remainingAvailable(p.current)
	room := specified(p.all()) - atLeast - lacking
	if room <= 0 {
		return false
	}
	size := map[*appsv1.ReplicaSet]int32{}
	for _, rs := range old {
		n := min(room, replicas(rs)-remainingAvailable(rs))
		size[rs] = replicas(rs) - n
		room -= n
	}
	spare := sum(p.all(), remainingAvailable) - atLeast
	for _, rs := range old {
		if spare <= 0 {
			break
		}
		n := min(spare, size[rs])
		size[rs] -= n
		spare -= n
	}
	changed := false
	for _, rs := range old {
		if size[rs] != replicas(rs) {
			changed = p.scale(deployment, rs, size[rs]) || changed
		}
	}
	return changed
}

// isScalingEvent reports whether the Deployment's size has changed since the sets were sized.
func isScalingEvent(s snapshot) bool {
	for _, rs := range active(s.sets) {
		if n, ok := intAnnotation(rs, desiredAnnotation); ok && n != int64(desiredReplicas(s.d)) {
			return true
		}
	}
	return false
}

// scaleToSize scales the sets to the Deployment's size without continuing the rollout: a single set gets all, a
// finished rollout scales down the old sets, and one in progress distributes the difference in proportion to the sets'
// sizes.
func (p *plan) scaleToSize(deployment *appsv1.Deployment) {
	if only := p.activeOrLatest(); only != nil {
		p.scale(deployment, only, desiredReplicas(deployment))
		return
	}
	if p.current != nil && saturated(deployment, p.current) {
		for _, rs := range active(p.old) {
			p.scale(deployment, rs, 0)
		}
		return
	}
	if deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		p.scaleProportionally(deployment)
	}
}

// activeOrLatest is the set that gets the whole size: the one active set or, if none is active, the current or latest
// one.
func (p *plan) activeOrLatest() *appsv1.ReplicaSet {
	switch act := active(p.all()); {
	case len(act) == 1:
		return act[0]
	case len(act) > 1:
		return nil
	case p.current != nil:
		return p.current
	case len(p.old) > 0:
		return p.old[len(p.old)-1] // sorted by split
	}
	return nil
}

func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	n, ok := intAnnotation(rs, desiredAnnotation)
	return ok && n == int64(desiredReplicas(d)) && replicas(rs) == desiredReplicas(d) &&
		rs.Status.AvailableReplicas == desiredReplicas(d)
}

// scaleProportionally distributes the difference over all active sets, largest first; the rounding remainder goes to
// the largest.
func (p *plan) scaleProportionally(deployment *appsv1.Deployment) {
	sets := active(p.all())
	if len(sets) == 0 {
		return
	}
	surge, _ := limits(deployment)
	allowed := int32(0)
	if desiredReplicas(deployment) > 0 {
		allowed = desiredReplicas(deployment) + surge
	}
	diff := allowed - specified(sets)
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := byAge(a, b)
		if diff > 0 {
			age = -age // prefer newer sets when growing, older ones when shrinking
		}
		return cmp.Or(cmp.Compare(replicas(b), replicas(a)), age)
	})
	size := make([]int32, len(sets))
	added := int32(0)
	for i, rs := range sets {
		part := proportionOf(deployment, rs, diff, added, desiredReplicas(deployment)+surge)
		size[i] = replicas(rs) + part
		added += part
	}
	size[0] = max(0, size[0]+diff-added)
	for i, rs := range sets {
		p.scale(deployment, rs, size[i])
	}
}

// proportionOf is rs's share of diff, of which added is already distributed.
func proportionOf(d *appsv1.Deployment, rs *appsv1.ReplicaSet, diff, added, most int32) int32 {
	if replicas(rs) == 0 || diff == 0 || diff == added {
		return 0
	}
	part := -replicas(rs)
	if desiredReplicas(d) != 0 {
		before, ok := intAnnotation(rs, maxAnnotation)
		if !ok || before == 0 {
			before = int64(d.Status.Replicas)
		}
		if before == 0 {
			return 0
		}
		part = int32(math.Round(float64(replicas(rs))*float64(most)/float64(before))) - replicas(rs)
	}
	if diff > 0 {
		return min(part, diff-added)
	}
	return max(part, diff-added)
}
