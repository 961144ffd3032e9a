// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// volumesKey is the CycleState key by which PreFilter and Filter pass the claims to PreScore.
var volumesKey = framework.NewKey[*claimsOfPod](volumeBinding)

// PreScore returns the scorer of storage utilization. It returns nil if the pod has no delayed claims, or no node has a
// volume or published capacity for them.
func (b *Binding) PreScore(
	c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	if !b.Storage.watching() {
		return framework.NodeScorer{}
	}
	claims, ok := volumesKey.Read(c)
	if !ok || !claims.capacityKnown.Load() {
		return framework.NodeScorer{}
	}
	s := &volumeScorer{claims, b.Rank}
	return framework.NodeScorer{Score: s.Score, ScoreAll: s.ScoreAll}
}

type volumeScorer struct {
	claims *claimsOfPod
	rank   func(taken, offers int64) int64
}

// Score is the mean over storage classes: of the existing volumes, or if there are none of the volumes to be
// provisioned.
func (s *volumeScorer) Score(n *state.NodeInfo) int64 {
	choices, ok := s.claims.chosenOn(n.Name)
	if !ok {
		return 0
	}
	type use struct{ requests, offers int64 }
	static := map[string]use{}
	made := map[string]use{}
	for _, claimChoice := range choices {
		requests := claimChoice.claim.Spec.Resources.Requests[corev1.ResourceStorage]
		switch {
		case claimChoice.volume != nil:
			has := claimChoice.volume.Spec.Capacity[corev1.ResourceStorage]
			u := static[claimChoice.volume.Spec.StorageClassName]
			static[claimChoice.volume.Spec.StorageClassName] = use{
				addCapped(u.requests, requests.Value()), addCapped(u.offers, has.Value()),
			}
		case claimChoice.capacity != nil:
			class := volume.GetPersistentVolumeClaimClass(claimChoice.claim)
			u := use{requests: addCapped(made[class].requests, requests.Value())}
			if has := claimChoice.capacity.Capacity; has != nil {
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
		sum += s.rankCapped(u.requests, u.offers)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

// ScoreAll is Score for the nodes at places.
func (s *volumeScorer) ScoreAll(places []int32, scores []int64) {
	claimsOfPod := s.claims
	if len(claimsOfPod.classes) != 1 || len(claimsOfPod.chosen) > 0 {
		for i, place := range places {
			scores[i] = s.Score(claimsOfPod.snapshot.Nodes[place])
		}
		return
	}
	// Most volumes have the same size, so the last score is reused.
	claimClass := claimsOfPod.classes[0]
	last := int64(-1)
	score := int64(0)
	size := claimsOfPod.delayed[0].Spec.Resources.Requests[corev1.ResourceStorage]
	requests := size.Value()
	for i, place := range places {
		switch {
		case claimClass.smallest[place] == nil:
			scores[i] = s.Score(claimsOfPod.snapshot.Nodes[place])
			continue
		case claimClass.sizes[place] != last:
			last = claimClass.sizes[place]
			score = s.rankCapped(requests, last)
		}
		scores[i] = score
	}
}

func (s *volumeScorer) rankCapped(requests, offers int64) int64 {
	if offers <= 0 || requests > offers {
		return s.rank(1, 1) // as if fully used
	}
	for requests > math.MaxInt64/100 {
		requests = requests >> 1
		offers = offers >> 1
	}
	return s.rank(max(requests, 0), offers)
}

// addCapped adds without overflow.
func addCapped(a, b int64) int64 {
	if sum := a + b; sum >= a || b < 0 {
		return sum
	}
	return math.MaxInt64
}
