// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// freeVolumes indexes the free volumes by claim class and node: claims of one class (claimClassKey) accept the same
// volumes. Informer events and assumed bindings keep it up to date. So the pods of a workload, whose claims are of one
// class, do not visit all volumes and nodes again.
type freeVolumes struct {
	mu      sync.Mutex
	storage *Storage
	clock   int64
	classes map[string]*claimClass // nil: not used yet
	// reserved are the names of volumes with a claimRef, by claim. Entries may be outdated; reservedLocked checks them.
	reserved            map[string][]string
	changed             map[string]bool // names of volumes, since the last refresh
	provisioningChanged bool            // storage classes, drivers or capacities, since the last refresh
}

// maxClaimClasses bounds the number of claim classes. The least recently used one is dropped.
const maxClaimClasses = 16

// claimClass has the volumes for claims of one class. Slices are indexed by place in the snapshot's Nodes.
type claimClass struct {
	used         int64
	example      *corev1.PersistentVolumeClaim
	snapshot     *state.Snapshot
	epoch        int64
	groups       map[string]*volumeGroup // by node affinity
	groupOf      map[string]*volumeGroup // by volume
	groupsAt     [][]*volumeGroup
	smallest     []*corev1.PersistentVolume // the smallest volume of a node; nil: none
	sizes        []int64                    // the size of that volume
	provisioning provisionability
}

// volumeGroup has the free volumes with one node affinity, the smallest first.
type volumeGroup struct {
	volumes []*corev1.PersistentVolume
	places  []int32
}

// onChange records an informer event for the next refresh.
func (k *freeVolumes) onChange(o any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.classes == nil {
		return
	}
	if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		k.changed[v.Name] = true
		return
	}
	_, claim := client.Delivered[*corev1.PersistentVolumeClaim](o)
	_, node := client.Delivered[*storagev1.CSINode](o)
	k.provisioningChanged = k.provisioningChanged || !claim && !node
}

// volumesChanged records volumes whose assumed binding was added or removed.
func (k *freeVolumes) volumesChanged(names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.classes == nil {
		return
	}
	for _, name := range names {
		k.changed[name] = true
	}
}

// refreshLocked applies the recorded changes.
func (k *freeVolumes) refreshLocked() {
	if k.classes == nil || len(k.changed) > maxPendingChanges {
		k.classes = map[string]*claimClass{}
		k.reserved = map[string][]string{}
		k.changed = map[string]bool{}
		for _, v := range k.storage.allVolumes() {
			k.addReservedLocked(v)
		}
	}
	for name := range k.changed {
		v := k.storage.volume(name)
		if v != nil {
			k.addReservedLocked(v)
		}
		free := v != nil && k.storage.takenBy(name) == ""
		for _, w := range k.classes {
			if w.upToDate(w.snapshot) {
				w.update(name, v, free)
			}
		}
	}
	clear(k.changed)
	if k.provisioningChanged {
		for _, w := range k.classes {
			w.provisioning = provisionability{}
		}
		k.provisioningChanged = false
	}
}

func (k *freeVolumes) addReservedLocked(v *corev1.PersistentVolume) {
	if ref := v.Spec.ClaimRef; ref != nil {
		key := state.ClaimUse(ref.Namespace, ref.Name)
		if !slices.Contains(k.reserved[key], v.Name) {
			k.reserved[key] = append(k.reserved[key], v.Name)
		}
	}
}

// reservedLocked returns the volumes whose claimRef names the claim, without those with an assumed binding to another
// claim.
func (k *freeVolumes) reservedLocked(claim *corev1.PersistentVolumeClaim) (out []*corev1.PersistentVolume) {
	key := claimKey(claim)
	k.reserved[key] = slices.DeleteFunc(k.reserved[key], func(name string) bool {
		v := k.storage.volume(name)
		if v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != claim.Namespace ||
			v.Spec.ClaimRef.Name != claim.Name {
			return true
		}
		if by := k.storage.takenBy(name); (by == "" || by == key) && volume.IsVolumeBoundToClaim(v, claim) {
			out = append(out, v)
		}
		return false
	})
	if len(k.reserved[key]) == 0 {
		delete(k.reserved, key)
	}
	return out
}

// classLocked returns the class of a claim for the nodes of a snapshot. nil: the claim is invalid.
func (k *freeVolumes) classLocked(claim *corev1.PersistentVolumeClaim, snapshot *state.Snapshot) *claimClass {
	key := claimClassKey(claim)
	w := k.classes[key]
	if w == nil {
		if _, err := volume.FindMatchingVolume(claim, nil, nil, nil, false, true); err != nil {
			return nil
		}
		if len(k.classes) >= maxClaimClasses {
			k.dropOldestLocked()
		}
		w = &claimClass{example: claim}
		k.classes[key] = w
	}
	k.clock++
	w.used = k.clock
	if !w.upToDate(snapshot) {
		n := len(snapshot.Nodes)
		w.snapshot = snapshot
		w.epoch = snapshot.Epoch
		w.provisioning = provisionability{}
		w.groups = map[string]*volumeGroup{}
		w.groupOf = map[string]*volumeGroup{}
		w.groupsAt = make([][]*volumeGroup, n)
		w.smallest = make([]*corev1.PersistentVolume, n)
		w.sizes = make([]int64, n)
		for _, v := range k.storage.allVolumes() {
			w.update(v.Name, v, k.storage.takenBy(v.Name) == "")
		}
	}
	return w
}

// upToDate reports whether w was built for the current nodes of s. If not, classLocked builds it again.
func (w *claimClass) upToDate(s *state.Snapshot) bool {
	return s != nil && w.snapshot == s && w.epoch == s.Epoch && len(w.smallest) == len(s.Nodes)
}

// dropOldestLocked drops the least recently used class.
func (k *freeVolumes) dropOldestLocked() {
	oldest := ""
	for key, w := range k.classes {
		if oldest == "" || w.used < k.classes[oldest].used {
			oldest = key
		}
	}
	delete(k.classes, oldest)
}

// claimClassKey has all fields of a claim that decide which volumes match.
func claimClassKey(claim *corev1.PersistentVolumeClaim) string {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	_, requests := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	mode := ""
	attributes := ""
	selector := ""
	if claim.Spec.VolumeMode != nil {
		mode = string(*claim.Spec.VolumeMode)
	}
	if claim.Spec.VolumeAttributesClassName != nil {
		attributes = *claim.Spec.VolumeAttributesClassName
	}
	if claim.Spec.Selector != nil {
		selector = claim.Spec.Selector.String()
	}
	return fmt.Sprintf("%q %t %s %s %q %q %q", volume.GetPersistentVolumeClaimClass(claim), requests, size.String(),
		claim.Spec.AccessModes, mode, attributes, selector)
}

// accepts reports whether claims of the class match a volume without a claim, whatever its node affinity.
func (w *claimClass) accepts(v *corev1.PersistentVolume) bool {
	if v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable {
		return false
	}
	found, err := volume.FindMatchingVolume(w.example, []*corev1.PersistentVolume{v}, nil, nil, false, true)
	return err == nil && found != nil && volume.CheckAccessModes(w.example, v)
}

// update removes a volume from its group, and adds it again if it is free and matches.
func (w *claimClass) update(name string, pv *corev1.PersistentVolume, free bool) {
	if old := w.groupOf[name]; old != nil {
		old.volumes = slices.DeleteFunc(old.volumes, func(o *corev1.PersistentVolume) bool { return o.Name == name })
		delete(w.groupOf, name)
		w.setSmallest(old)
	}
	if !free || !w.accepts(pv) {
		return
	}
	p := w.groupFor(pv)
	at, _ := slices.BinarySearchFunc(p.volumes, pv, smallerVolume)
	p.volumes = slices.Insert(p.volumes, at, pv)
	w.groupOf[name] = p
	w.setSmallest(p)
}

func smallerVolume(a, b *corev1.PersistentVolume) int {
	x := a.Spec.Capacity[corev1.ResourceStorage]
	y := b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// groupFor returns the group of a volume's node affinity.
func (w *claimClass) groupFor(v *corev1.PersistentVolume) *volumeGroup {
	key := ""
	if v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
		key = affinityKey(v.Spec.NodeAffinity.Required)
	}
	p := w.groups[key]
	if p == nil {
		p = &volumeGroup{places: placesOfVolume(w.snapshot, v)}
		w.groups[key] = p
		for _, place := range p.places {
			w.groupsAt[place] = append(w.groupsAt[place], p)
		}
	}
	return p
}

func affinityKey(s *corev1.NodeSelector) string {
	if only := singleLabel(s); only != nil {
		return only.Key + "=" + strings.Join(only.Values, "|")
	}
	return " " + s.String()
}

// singleLabel returns the only requirement of a selector with one In requirement; nil: the selector is another one.
func singleLabel(s *corev1.NodeSelector) *corev1.NodeSelectorRequirement {
	if !onlyInOperators(s) || len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchExpressions) != 1 {
		return nil
	}
	return &s.NodeSelectorTerms[0].MatchExpressions[0]
}

// placesOfVolume returns the places of the nodes that match a volume's node affinity.
func placesOfVolume(snapshot *state.Snapshot, v *corev1.PersistentVolume) []int32 {
	if v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
		if only := singleLabel(v.Spec.NodeAffinity.Required); only != nil {
			var out []int32
			for _, value := range slices.Compact(slices.Sorted(slices.Values(only.Values))) {
				out = append(out, snapshot.Column(only.Key).Places(value)...)
			}
			return out
		}
	}
	r := nodesOfVolume(snapshot, v)
	var out []int32
	for place := range snapshot.Nodes {
		if r.at(place) {
			out = append(out, int32(place)) // there are fewer nodes
		}
	}
	return out
}

// setSmallest computes smallest and sizes again for the nodes of a group.
func (w *claimClass) setSmallest(p *volumeGroup) {
	for _, place := range p.places {
		var best *corev1.PersistentVolume
		for _, o := range w.groupsAt[place] {
			if len(o.volumes) > 0 && (best == nil || smallerVolume(o.volumes[0], best) < 0) {
				best = o.volumes[0]
			}
		}
		w.smallest[place] = best
		w.sizes[place] = 0
		if best != nil {
			size := best.Spec.Capacity[corev1.ResourceStorage]
			w.sizes[place] = size.Value()
		}
	}
}

// candidates returns enough volumes on a node for n claims.
func (w *claimClass) candidates(place int32, n int) (out []*corev1.PersistentVolume) {
	for _, p := range w.groupsAt[place] {
		out = append(out, p.volumes[:min(n, len(p.volumes))]...)
	}
	return out
}

// provisionability caches on which nodes volumes for a claim class can be provisioned.
type provisionability struct {
	versions   []int64 // the node versions that status is for; nil: none
	status     []*framework.Status
	published  bool // the driver publishes capacities: a node without one has no space
	capacities []*storagev1.CSIStorageCapacity
}

// canProvisionAt is canProvision for the node at a place.
func (w *claimClass) canProvisionAt(storage *Storage, place int) (*storagev1.CSIStorageCapacity, *framework.Status) {
	provisionability := &w.provisioning
	if provisionability.versions == nil {
		n := len(w.snapshot.Nodes)
		provisionability.versions = make([]int64, n)
		provisionability.status = make([]*framework.Status, n)
		provisionability.capacities = make([]*storagev1.CSIStorageCapacity, n)
		var all []*storagev1.CSIStorageCapacity
		if class := storage.class(w.example); class != nil {
			all, provisionability.published = storage.capacitiesFor(class, w.example)
		}
		for _, c := range all {
			for _, at := range placesOfCapacity(w.snapshot, c) {
				provisionability.capacities[at] = c
			}
		}
	}
	if v := w.snapshot.Versions[place]; provisionability.versions[place] != v {
		provisionability.versions[place] = v
		provisionability.status[place] = storage.canProvisionByClass(w.example, w.snapshot.Nodes[place].Node)
	}
	if provisionability.status[place] == nil && provisionability.published &&
		provisionability.capacities[place] == nil {
		return nil, noSpace
	}
	return provisionability.capacities[place], provisionability.status[place]
}

// placesOfCapacity returns the places of the nodes in the topology of a capacity.
func placesOfCapacity(s *state.Snapshot, c *storagev1.CSIStorageCapacity) (out []int32) {
	if t := c.NodeTopology; len(t.MatchExpressions) == 0 && len(t.MatchLabels) == 1 {
		for key, value := range t.MatchLabels {
			return s.Column(key).Places(value)
		}
	}
	for place, n := range s.Nodes {
		if capacityCovers(c, n.Node) {
			out = append(out, int32(place)) // there are fewer nodes
		}
	}
	return out
}
