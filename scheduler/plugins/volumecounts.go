// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// volumeCounts are the volumes of CSI drivers by node, and how many more each driver can attach there. They are kept up to date: a node is
// counted again when its pods have changed, or a claim or volume of theirs, or what its drivers say.
type volumeCounts struct {
	mu       sync.Mutex
	snapshot *state.Snapshot // what follows is by place in its Nodes; nil: nothing has been counted
	epoch    int64
	versions []int64 // of the nodes that were counted
	volumes  [][]csiVolume
	free     map[string][]int32 // by driver: how many more volumes
	where    map[csiVolume][]int32
	// named are the nodes to count again when something is heard of a volume, by its name.
	named map[string][]int32
	// What has changed since: claims by their keys, volumes, and nodes whose drivers say something else. again: everything is to be counted.
	claims, heard, nodes map[string]bool
	again                bool
}

const unlimited = math.MaxInt32

// hear takes note of a change of a claim, volume, or anything else of storage.
func (c *volumeCounts) hear(o any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snapshot == nil {
		return
	}
	if claim, ok := client.Delivered[*corev1.PersistentVolumeClaim](o); ok {
		c.claims[claimKey(claim)] = true
	} else if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		if len(c.named[v.Name]) > 0 {
			c.heard[v.Name] = true
		}
	} else if n, ok := client.Delivered[*storagev1.CSINode](o); ok {
		c.nodes[n.Name] = true
	} else if _, ok := client.Delivered[*storagev1.CSIStorageCapacity](o); !ok {
		c.again = true
	}
	c.again = c.again || len(c.claims) > maxNews
}

// maxNews bounds what is remembered while no pod with volumes comes: with more everything is counted anew.
const maxNews = 10_000

// refresh brings the counts up to date with a snapshot. drivers are those that it has to know of.
func (c *volumeCounts) refresh(s *Storage, snapshot *state.Snapshot, drivers map[csiVolume]bool) {
	if n := len(snapshot.Nodes); c.snapshot != snapshot || c.epoch != snapshot.Epoch || c.again || len(c.versions) != n {
		c.snapshot, c.epoch, c.again = snapshot, snapshot.Epoch, false
		c.versions, c.volumes = make([]int64, n), make([][]csiVolume, n)
		c.free, c.where = map[string][]int32{}, map[csiVolume][]int32{}
		c.named, c.claims, c.heard, c.nodes = map[string][]int32{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	}
	c.forgetChanged()
	for place, v := range snapshot.Versions {
		if c.versions[place] != v {
			c.versions[place] = v
			c.count(s, int32(place)) //nolint:gosec // there are fewer nodes
		}
	}
	for v := range drivers {
		if c.free[v.driver] != nil {
			continue
		}
		free := make([]int32, len(snapshot.Nodes))
		for place, n := range snapshot.Nodes {
			free[place] = s.limit(n.Name, v.driver) - countOf(c.volumes[place], v.driver)
		}
		c.free[v.driver] = free
	}
}

// forgetChanged has the nodes counted again of which something was heard.
func (c *volumeCounts) forgetChanged() {
	forget := func(node string) {
		if place := c.snapshot.Place(node); place >= 0 {
			c.versions[place] = 0
		}
	}
	for name := range c.nodes {
		forget(name)
	}
	for key := range c.claims {
		for _, node := range c.snapshot.Users(key) {
			forget(node)
		}
	}
	for name := range c.heard {
		for _, place := range c.named[name] {
			c.versions[place] = 0
		}
		delete(c.named, name)
	}
	clear(c.nodes)
	clear(c.claims)
	clear(c.heard)
}

// count counts a node's volumes anew.
func (c *volumeCounts) count(s *Storage, place int32) {
	var now []csiVolume
	n := c.snapshot.Nodes[place]
	for _, p := range n.Pods {
		if len(p.Uses) > 0 {
			now = s.attached(p.Pod, now, func(volume string) {
				if !slices.Contains(c.named[volume], place) {
					c.named[volume] = append(c.named[volume], place)
				}
			})
		}
	}
	slices.SortFunc(now, func(a, b csiVolume) int {
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.handle, b.handle))
	})
	now = slices.Compact(now)
	if !slices.Equal(now, c.volumes[place]) {
		for _, v := range c.volumes[place] {
			if c.where[v] = slices.DeleteFunc(c.where[v], func(p int32) bool { return p == place }); len(c.where[v]) == 0 {
				delete(c.where, v)
			}
		}
		for _, v := range now {
			c.where[v] = append(c.where[v], place)
		}
		c.volumes[place] = now
	}
	for driver, free := range c.free {
		free[place] = s.limit(n.Name, driver) - countOf(now, driver)
	}
}

func countOf(volumes []csiVolume, driver string) (n int32) {
	for i := range volumes {
		if volumes[i].driver == driver {
			n++
		}
	}
	return n
}

// limit is how many volumes of a driver a node can have.
func (s *Storage) limit(node, driver string) int32 {
	n, err := s.nodes.Get(node)
	if err != nil {
		return unlimited // no driver says anything of the node
	}
	for i := range n.Spec.Drivers {
		if d := &n.Spec.Drivers[i]; d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			return *d.Allocatable.Count
		}
	}
	return unlimited
}

// refuse sets st where out is nil and the wanted volumes would be too many.
func (c *volumeCounts) refuse(out []*framework.Status, wanted map[csiVolume]bool, st *framework.Status) {
	need := map[string]int32{}
	there := map[int32]map[string]int32{} // of the wanted ones, by place and driver
	for v := range wanted {
		need[v.driver]++
		for _, place := range c.where[v] {
			if there[place] == nil {
				there[place] = map[string]int32{}
			}
			there[place][v.driver]++
		}
	}
	for driver, n := range need {
		for place, free := range c.free[driver] {
			if free >= n || out[place] != nil {
				continue
			}
			if more := n - there[int32(place)][driver]; more > 0 && free < more { //nolint:gosec // there are fewer nodes
				out[place] = st
			}
		}
	}
}
