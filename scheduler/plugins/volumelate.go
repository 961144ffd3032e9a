// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// filterLate looks at all nodes for the claims that are to be bound for the node.
func (c *claimsOfPod) filterLate(out []*framework.Status) {
	k := &c.storage.stock
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	wants, alike := c.wantsLocked(k)
	if wants == nil { // FindMatchingVolume says of each node why
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
		st, plain := c.judge(wants, place)
		if plain && alike {
			out[place] = st
			continue
		}
		choices, st := c.chooseLocked(k, wants, place)
		if out[place] = st; st == nil && c.chosen != nil {
			c.keep(c.snapshot.Nodes[place].Name, choices)
		}
	}
	c.wants = wants
}

// wantsLocked returns what the claims can have. alike: nothing but what they ask for decides. nil: it cannot be told.
func (c *claimsOfPod) wantsLocked(k *stock) (wants []*want, alike bool) {
	alike = true
	for _, claim := range c.late {
		w := k.wantLocked(claim, c.snapshot)
		if w == nil {
			return nil, false
		}
		wants = append(wants, w)
		_, under := c.storage.where(claim)
		alike = alike && !under && claim.Annotations[volume.AnnSelectedNode] == "" && len(k.reservedLocked(claim)) == 0
	}
	return wants, alike
}

// judge says what is chosen on a node if nothing but what claims ask for decides. plain is false if two claims would take the same volume.
func (c *claimsOfPod) judge(wants []*want, place int) (st *framework.Status, plain bool) {
	known := false
	for i, w := range wants {
		best := w.best[place]
		if best == nil {
			capacity, st := w.made(c.storage, place)
			if st != nil {
				return st, true
			}
			known = known || capacity != nil
			continue
		}
		for _, other := range wants[:i] {
			if other.best[place] == best {
				return nil, false
			}
		}
		known = true
	}
	if known && !c.measured.Load() {
		c.measured.Store(true)
	}
	return nil, true
}

// chooseLocked is choose for the node at a place.
func (c *claimsOfPod) chooseLocked(k *stock, wants []*want, place int) ([]choice, *framework.Status) {
	return c.chooseAmong(c.snapshot.Nodes[place].Node, func(claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
		out := k.reservedLocked(claim)
		for i, other := range c.late {
			if other == claim {
				out = append(out, wants[i].candidates(int32(place), len(c.late))...) //nolint:gosec // there are fewer nodes
			}
		}
		return out
	})
}

// chooseFromStock is choose, for Reserve.
func (c *claimsOfPod) chooseFromStock(node *state.NodeInfo) ([]choice, *framework.Status) {
	place := int32(-1)
	if c.snapshot != nil {
		place = c.snapshot.Place(node.Name)
	}
	if place < 0 {
		return c.choose(node.Node)
	}
	k := &c.storage.stock
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	if wants, _ := c.wantsLocked(k); wants != nil {
		return c.chooseLocked(k, wants, int(place))
	}
	return c.choose(node.Node)
}

// placeOf is where a node is that was judged from stock; -1: none.
func (c *claimsOfPod) placeOf(node string) int32 {
	if c.wants == nil {
		return -1
	}
	return c.snapshot.Place(node)
}

// fromStock is what judge has chosen.
func (c *claimsOfPod) fromStock(place int32) []choice {
	out := make([]choice, len(c.late))
	for i, w := range c.wants {
		out[i] = choice{claim: c.late[i], volume: w.best[place]}
		if out[i].volume == nil && w.makes.from != nil {
			out[i].capacity = w.makes.from[place]
		}
	}
	return out
}
