// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// volumeCounts are the volumes of CSI drivers by node, and how many more each driver can attach there. They are kept up
// to date: a node is counted again when its pods have changed, a claim or volume of theirs, its VolumeAttachments, or
// what its drivers say.
type volumeCounts struct {
	mu       sync.Mutex
	snapshot *state.Snapshot // what follows is by place in its Nodes; nil: nothing has been counted
	epoch    int64
	versions []int64               // of the nodes that were counted
	volumes  [][]csiVolume         // of the pods
	attached [][]csiVolume         // others that are attached, of no pod
	free     map[string][]int32    // by driver: how many more volumes
	lacks    map[string][]bool     // by driver that must be installed: it is not
	where    map[csiVolume][]int32 // the pods' volumes
	// named are the nodes to count again after an event of a volume, by its name.
	named map[string][]int32
	// What has changed since: claims by their keys, volumes, and nodes whose drivers or attachments are others. again:
	// everything is to be counted.
	claims, volumeNames, nodes map[string]bool
	again                      bool
}

const unlimited = math.MaxInt32

// onChange records an informer event for the next refresh.
func (c *volumeCounts) onChange(o any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snapshot == nil {
		return
	}
	if claim, ok := client.Delivered[*corev1.PersistentVolumeClaim](o); ok {
		c.claims[claimKey(claim)] = true
	} else if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		if len(c.named[v.Name]) > 0 {
			c.volumeNames[v.Name] = true
		}
	} else if n, ok := client.Delivered[*storagev1.CSINode](o); ok {
		c.nodes[n.Name] = true
	} else if a, ok := client.Delivered[*storagev1.VolumeAttachment](o); ok {
		c.nodes[a.Spec.NodeName] = true
	} else if _, ok := client.Delivered[*storagev1.CSIStorageCapacity](o); !ok {
		c.again = true
	}
	c.again = c.again || len(c.claims)+len(c.nodes) > maxPendingChanges
}

// maxPendingChanges bounds the recorded changes while no pod with volumes is scheduled. With more, everything is
// counted again.
const maxPendingChanges = 10_000

// refresh brings the counts up to date with a snapshot. It then knows the drivers of the wanted volumes, and of
// required.
func (c *volumeCounts) refresh(
	storage *Storage, snapshot *state.Snapshot, wanted map[csiVolume]bool, required []string,
) {
	if n := len(snapshot.Nodes); c.snapshot != snapshot || c.epoch != snapshot.Epoch || c.again ||
		len(c.versions) != n {
		c.snapshot = snapshot
		c.epoch = snapshot.Epoch
		c.again = false
		c.versions = make([]int64, n)
		c.volumes = make([][]csiVolume, n)
		c.attached = make([][]csiVolume, n)
		c.free = map[string][]int32{}
		c.lacks = map[string][]bool{}
		c.where = map[csiVolume][]int32{}
		c.named = map[string][]int32{}
		c.claims = map[string]bool{}
		c.volumeNames = map[string]bool{}
		c.nodes = map[string]bool{}
	}
	c.forgetChanged()
	for place, v := range snapshot.Versions {
		if c.versions[place] != v {
			c.versions[place] = v
			c.count(storage, int32(place)) // there are fewer nodes
		}
	}
	for v := range wanted {
		if c.free[v.driver] != nil {
			continue
		}
		c.free[v.driver] = make([]int32, len(snapshot.Nodes))
		for place := range snapshot.Nodes {
			c.free[v.driver][place] = c.room(storage, place, v.driver)
		}
	}
	for _, driver := range required {
		if c.lacks[driver] != nil {
			continue
		}
		c.lacks[driver] = make([]bool, len(snapshot.Nodes))
		for place, n := range snapshot.Nodes {
			c.lacks[driver][place] = !storage.installed(n.Name, driver)
		}
	}
}

// room returns how many more volumes a driver can attach on the node at a place.
func (c *volumeCounts) room(s *Storage, place int, driver string) int32 {
	return s.limit(c.snapshot.Nodes[place].Name, driver) - countOf(c.volumes[place], driver) - countOf(
		c.attached[place], driver)
}

// forgetChanged marks the nodes with recorded changes, so that they are counted again.
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
	for name := range c.volumeNames {
		for _, place := range c.named[name] {
			c.versions[place] = 0
		}
		delete(c.named, name)
	}
	clear(c.nodes)
	clear(c.claims)
	clear(c.volumeNames)
}

// count counts the volumes of a node again.
func (c *volumeCounts) count(storage *Storage, place int32) {
	name := func(volume string) {
		if !slices.Contains(c.named[volume], place) {
			c.named[volume] = append(c.named[volume], place)
		}
	}
	info := c.snapshot.Nodes[place]
	now := storage.ofPods(info.Pods, name)
	if !slices.Equal(now, c.volumes[place]) {
		for _, v := range c.volumes[place] {
			if c.where[v] = slices.DeleteFunc(c.where[v], func(p int32) bool { return p == place }); len(
				c.where[v]) == 0 {
				delete(c.where, v)
			}
		}
		for _, v := range now {
			c.where[v] = append(c.where[v], place)
		}
		c.volumes[place] = now
	}
	c.attached[place] = storage.attachedWithoutPod(info.Name, now, name)
	for driver, free := range c.free {
		free[place] = c.room(storage, int(place), driver)
	}
	for driver, lacks := range c.lacks {
		lacks[place] = !storage.installed(info.Name, driver)
	}
}

// ofPods are the volumes that pods have of CSI drivers, each once, in order. named is as of attached.
func (s *Storage) ofPods(pods []*state.PodInfo, named func(volume string)) (out []csiVolume) {
	for _, p := range pods {
		if len(p.Uses) > 0 {
			out = s.attached(p.Pod, out, named)
		}
	}
	return inOrder(out)
}

// attachedWithoutPod are the volumes that are attached to a node, by its VolumeAttachments, besides those of its pods:
// of pods that have just gone, or attached by hand. named is as of attached.
func (s *Storage) attachedWithoutPod(node string, ofPods []csiVolume, named func(volume string)) (out []csiVolume) {
	all, err := s.attachments.ByIndex(attachmentsByNode, node)
	if err != nil {
		return nil // there is this index
	}
	for _, o := range all {
		attachment, ok := o.(*storagev1.VolumeAttachment)
		if !ok || attachment.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if named != nil {
			named(*attachment.Spec.Source.PersistentVolumeName)
		}
		v := s.volume(*attachment.Spec.Source.PersistentVolumeName)
		if v == nil || v.Spec.CSI == nil {
			continue
		}
		it := csiVolume{attachment.Spec.Attacher, v.Spec.CSI.VolumeHandle}
		if _, known := slices.BinarySearchFunc(ofPods, it, csiVolume.compare); !known {
			out = append(out, it)
		}
	}
	return inOrder(out)
}

// attachmentsOf counts a node's VolumeAttachments.
func (s *Storage) attachmentsOf(node string) int {
	keys, err := s.attachments.IndexKeys(attachmentsByNode, node)
	if err != nil {
		return 0 // there is this index
	}
	return len(keys)
}

func inOrder(volumes []csiVolume) []csiVolume {
	slices.SortFunc(volumes, csiVolume.compare)
	return slices.Compact(volumes)
}

func countOf(volumes []csiVolume, driver string) (n int32) {
	for i := range volumes {
		if volumes[i].driver == driver {
			n++
		}
	}
	return n
}

// limit returns how many volumes of a driver a node can have.
func (s *Storage) limit(node, driver string) int32 {
	if d := s.driverOn(node, driver); d != nil && d.Allocatable != nil && d.Allocatable.Count != nil {
		return *d.Allocatable.Count
	}
	return unlimited
}

// installed reports whether a driver has registered on a node.
func (s *Storage) installed(node, driver string) bool { return s.driverOn(node, driver) != nil }

// driverOn returns the entry of a driver in a node's CSINode; nil: none.
func (s *Storage) driverOn(node, driver string) *storagev1.CSINodeDriver {
	n, err := s.nodes.Get(node)
	if err != nil {
		return nil
	}
	for i := range n.Spec.Drivers {
		if d := &n.Spec.Drivers[i]; d.Name == driver {
			return d
		}
	}
	return nil
}

// refuse sets st for nodes without a status in out on which the wanted volumes would be too many.
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
			if more := n - there[int32(place)][driver]; more > 0 && free < more { // there are fewer nodes
				out[place] = st
			}
		}
	}
}
