// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// volumesKey is where PreFilter leaves what Filter finds out for Score.
var volumesKey = framework.NewKey[*claimsOfPod](volumeBinding)

// emptyFirst prefers nodes whose storage is least used, as Kubernetes does by default.
var emptyFirst = RequestedToCapacity([]Point{{0, 10}, {100, 0}})

// PreScore ranks nodes by how much of their storage the pod's volumes would take. It has nothing to say where no volume is to be chosen and
// no driver publishes what it has left.
func (b *VolumeBinding) PreScore(c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	if b == nil || !b.Storage.known() {
		return nil
	}
	claims, ok := volumesKey.Read(c)
	if !ok || !claims.measured.Load() {
		return nil
	}
	rank := b.Rank
	if rank == nil {
		rank = emptyFirst
	}
	return &volumeScore{claims, rank}
}

type volumeScore struct {
	claims *claimsOfPod
	rank   func(taken, offers int64) int64
}

// Score is the mean over storage classes: of the volumes that exist, or if there are none of those that would be made.
func (s *volumeScore) Score(n *state.NodeInfo) int64 {
	choices, ok := s.claims.chosenOn(n.Name)
	if !ok {
		return 0
	}
	type use struct{ asks, offers int64 }
	static, made := map[string]use{}, map[string]use{}
	for _, c := range choices {
		asks := c.claim.Spec.Resources.Requests[corev1.ResourceStorage]
		switch {
		case c.volume != nil:
			has := c.volume.Spec.Capacity[corev1.ResourceStorage]
			u := static[c.volume.Spec.StorageClassName]
			static[c.volume.Spec.StorageClassName] = use{plus(u.asks, asks.Value()), plus(u.offers, has.Value())}
		case c.capacity != nil:
			class := volume.GetPersistentVolumeClaimClass(c.claim)
			u := use{asks: plus(made[class].asks, asks.Value())}
			if has := c.capacity.Capacity; has != nil {
				u.offers = has.Value()
			}
			made[class] = u
		}
	}
	classes := static
	if len(classes) == 0 {
		classes = made
	}
	if len(classes) == 0 {
		return 0
	}
	var sum int64
	for _, u := range classes {
		sum += s.ranked(u.asks, u.offers)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

// ScoreAll is Score of many nodes.
func (s *volumeScore) ScoreAll(places []int32, scores []int64) {
	c := s.claims
	if len(c.wants) != 1 || len(c.chosen) > 0 {
		for i, place := range places {
			scores[i] = s.Score(c.snapshot.Nodes[place])
		}
		return
	}
	// Most volumes are of one size.
	w, last, score := c.wants[0], int64(-1), int64(0)
	size := c.late[0].Spec.Resources.Requests[corev1.ResourceStorage]
	asks := size.Value()
	for i, place := range places {
		switch {
		case w.best[place] == nil:
			scores[i] = s.Score(c.snapshot.Nodes[place])
			continue
		case w.offers[place] != last:
			last = w.offers[place]
			score = s.ranked(asks, last)
		}
		scores[i] = score
	}
}

func (s *volumeScore) ranked(asks, offers int64) int64 {
	if offers <= 0 || asks > offers {
		return s.rank(1, 1) // full
	}
	for asks > math.MaxInt64/100 {
		asks, offers = asks>>1, offers>>1
	}
	return s.rank(max(asks, 0), offers)
}

// plus adds amounts that may be as large as they get.
func plus(a, b int64) int64 {
	if sum := a + b; sum >= a || b < 0 {
		return sum
	}
	return math.MaxInt64
}

// Normalize leaves the scores as they are: the shape gives them.
func (*volumeScore) Normalize([]int64) {}
