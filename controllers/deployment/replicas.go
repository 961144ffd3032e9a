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

// replicas is how many pods the set shall have; nil means the default.
func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// wanted is how many pods the Deployment shall have.
func wanted(d *appsv1.Deployment) int32 {
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

// limits resolves maxSurge (a percentage is rounded up) and maxUnavailable (rounded down). Both zero would allow no step, so
// that one pod may then be unavailable. Both are 0 for Recreate.
func limits(d *appsv1.Deployment) (surge, unavailable int32) {
	ru := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || ru == nil {
		return 0, 0
	}
	n := int(wanted(d))
	surge = resolve(ru.MaxSurge, n, true)
	unavailable = resolve(ru.MaxUnavailable, n, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, wanted(d))
}

func resolve(v *intstr.IntOrString, total int, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, total, up)
	if err != nil {
		return 0 // validation refuses what does not parse
	}
	return int32(n)
}

// rolledUp is the size that rs, the current set among all, may grow to now.
func rolledUp(d *appsv1.Deployment, all []*appsv1.ReplicaSet, rs *appsv1.ReplicaSet) int32 {
	surge, _ := limits(d)
	room := wanted(d) + surge - specified(all)
	if room <= 0 || replicas(rs) >= wanted(d) {
		return replicas(rs)
	}
	return replicas(rs) + min(room, wanted(d)-replicas(rs))
}

// staysAvailable is how many of the set's available pods it will keep: its status may be from before it was scaled down.
func staysAvailable(rs *appsv1.ReplicaSet) int32 {
	return min(rs.Status.AvailableReplicas, replicas(rs))
}

// rollDown scales old sets down as far as availability allows: first pods that are not available anyway, then the others,
// oldest set first. It reports whether anything changes.
func (p *plan) rollDown(d *appsv1.Deployment) bool {
	old := active(p.old)
	if len(old) == 0 {
		return false
	}
	_, unavailable := limits(d)
	atLeast := wanted(d) - unavailable
	lacking := replicas(p.current) - staysAvailable(p.current)
	room := specified(p.all()) - atLeast - lacking
	if room <= 0 {
		return false
	}
	size := map[*appsv1.ReplicaSet]int32{}
	for _, rs := range old {
		n := min(room, replicas(rs)-staysAvailable(rs))
		size[rs] = replicas(rs) - n
		room -= n
	}
	spare := sum(p.all(), staysAvailable) - atLeast
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
			changed = p.scale(d, rs, size[rs]) || changed
		}
	}
	return changed
}

// scaled reports whether the Deployment's size has changed since its sets were last sized.
func scaled(s snapshot) bool {
	for _, rs := range active(s.sets) {
		if n, ok := number(rs, desiredAnnotation); ok && n != int64(wanted(s.d)) {
			return true
		}
	}
	return false
}

// resize brings the sets to the Deployment's size without moving on the rollout: one set takes all, a finished rollout drops
// the old, and one under way shares the difference in proportion to the sets' sizes.
func (p *plan) resize(d *appsv1.Deployment) {
	if only := p.only(); only != nil {
		p.scale(d, only, wanted(d))
		return
	}
	if p.current != nil && saturated(d, p.current) {
		for _, rs := range active(p.old) {
			p.scale(d, rs, 0)
		}
		return
	}
	if d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		p.share(d)
	}
}

// only is the set that takes the whole size: the one active set, or, when none is active, the current or latest one.
func (p *plan) only() *appsv1.ReplicaSet {
	switch act := active(p.all()); {
	case len(act) == 1:
		return act[0]
	case len(act) > 1:
		return nil
	case p.current != nil:
		return p.current
	case len(p.old) > 0:
		return p.old[len(p.old)-1] // split sorted them
	}
	return nil
}

func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	n, ok := number(rs, desiredAnnotation)
	return ok && n == int64(wanted(d)) && replicas(rs) == wanted(d) && rs.Status.AvailableReplicas == wanted(d)
}

// share distributes the change of size over all active sets, largest first; what rounding leaves over goes to the largest.
func (p *plan) share(d *appsv1.Deployment) {
	sets := active(p.all())
	if len(sets) == 0 {
		return
	}
	surge, _ := limits(d)
	allowed := int32(0)
	if wanted(d) > 0 {
		allowed = wanted(d) + surge
	}
	diff := allowed - specified(sets)
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := byAge(a, b)
		if diff > 0 {
			age = -age // growing prefers the newer, shrinking the older
		}
		return cmp.Or(cmp.Compare(replicas(b), replicas(a)), age)
	})
	size := make([]int32, len(sets))
	added := int32(0)
	for i, rs := range sets {
		part := proportion(d, rs, diff, added, wanted(d)+surge)
		size[i] = replicas(rs) + part
		added += part
	}
	size[0] = max(0, size[0]+diff-added)
	for i, rs := range sets {
		p.scale(d, rs, size[i])
	}
}

// proportion is rs's share of diff, of which added is taken already.
func proportion(d *appsv1.Deployment, rs *appsv1.ReplicaSet, diff, added, most int32) int32 {
	if replicas(rs) == 0 || diff == 0 || diff == added {
		return 0
	}
	part := -replicas(rs)
	if wanted(d) != 0 {
		before, ok := number(rs, maxAnnotation)
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
