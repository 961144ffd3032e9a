// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// filterDelayed filters all nodes for the delayed claims. It uses freeVolumes where the choice depends only on the
// claims' classes, and chooses per node elsewhere.
func (c *claimsOfPod) filterDelayed(out []*framework.Status) {
	freeVolumes := &c.storage.freeVolumes
	freeVolumes.mu.Lock()
	defer freeVolumes.mu.Unlock()
	freeVolumes.refreshLocked()
	classes, byClass := c.classesLocked(freeVolumes)
	if classes == nil { // Filter returns the error of FindMatchingVolume for each node
		for place, n := range c.snapshot.Nodes {
			if out[place] == nil {
				out[place] = c.Filter(n)
			}
		}
		return
	}
	for place := range out {
		if out[place] != nil {
			continue
		}
		st, distinct := c.evaluate(classes, place)
		if distinct && byClass {
			out[place] = st
			continue
		}
		choices, st := c.chooseLocked(freeVolumes, classes, place)
		if out[place] = st; st == nil && c.chosen != nil {
			c.remember(c.snapshot.Nodes[place].Name, choices)
		}
	}
	c.classes = classes
}

// classesLocked returns the classes of the delayed claims. byClass: nothing else decides which volumes they get: no
// selected node, no reserved volume, no assumed binding. nil: a claim is invalid.
func (c *claimsOfPod) classesLocked(k *freeVolumes) (classes []*claimClass, byClass bool) {
	byClass = true
	for _, claim := range c.delayed {
		w := k.classLocked(claim, c.snapshot)
		if w == nil {
			return nil, false
		}
		classes = append(classes, w)
		_, under := c.storage.placementOf(claim)
		byClass = byClass && !under && claim.Annotations[volume.AnnSelectedNode] == "" &&
			len(k.reservedLocked(claim)) == 0
	}
	return classes, byClass
}

// evaluate filters one node by the claims' classes alone. distinct is false if two claims would get the same volume:
// then the result does not hold.
func (c *claimsOfPod) evaluate(classes []*claimClass, place int) (st *framework.Status, distinct bool) {
	known := false
	for i, w := range classes {
		best := w.smallest[place]
		if best == nil {
			capacity, st := w.canProvisionAt(c.storage, place)
			if st != nil {
				return st, true
			}
			known = known || capacity != nil
			continue
		}
		for _, other := range classes[:i] {
			if other.smallest[place] == best {
				return nil, false
			}
		}
		known = true
	}
	if known && !c.capacityKnown.Load() {
		c.capacityKnown.Store(true)
	}
	return nil, true
}

// chooseLocked is choose for the node at a place.
func (c *claimsOfPod) chooseLocked(
	k *freeVolumes, classes []*claimClass, place int,
) ([]claimChoice, *framework.Status) {
	return c.chooseAmong(c.snapshot.Nodes[place].Node, func(
		claim *corev1.PersistentVolumeClaim,
	) []*corev1.PersistentVolume {
		out := k.reservedLocked(claim)
		for i, other := range c.delayed {
			if other == claim {
				out = append(out, classes[i].candidates(int32(place), len(c.delayed))...) // there are fewer nodes
			}
		}
		return out
	})
}

// chooseForReserve is choose with the volumes of freeVolumes if possible.
func (c *claimsOfPod) chooseForReserve(node *state.NodeInfo) ([]claimChoice, *framework.Status) {
	place := int32(-1)
	if c.snapshot != nil {
		place = c.snapshot.Place(node.Name)
	}
	if place < 0 {
		return c.choose(node.Node)
	}
	k := &c.storage.freeVolumes
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	if classes, _ := c.classesLocked(k); classes != nil {
		return c.chooseLocked(k, classes, int(place))
	}
	return c.choose(node.Node)
}

// placeOf returns the place of a node if FilterAll used freeVolumes, else -1.
func (c *claimsOfPod) placeOf(node string) int32 {
	if c.classes == nil {
		return -1
	}
	return c.snapshot.Place(node)
}

// choicesFromClasses returns the choices that evaluate implies.
func (c *claimsOfPod) choicesFromClasses(place int32) []claimChoice {
	out := make([]claimChoice, len(c.delayed))
	for i, w := range c.classes {
		out[i] = claimChoice{claim: c.delayed[i], volume: w.smallest[place]}
		if out[i].volume == nil && w.provisioning.capacities != nil {
			out[i].capacity = w.provisioning.capacities[place]
		}
	}
	return out
}
