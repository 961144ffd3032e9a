// SPDX-License-Identifier: Apache-2.0

package plugins

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

// stock is the volumes that are free, by what claims ask for and by node. It is kept up to date, so that the pods of a workload, whose claims
// ask for the same, do not look at all volumes and nodes again.
type stock struct {
	mu      sync.Mutex
	storage *Storage
	clock   int64
	wants   map[string]*want // nil: nobody has asked yet
	// reserved are the volumes that say whose they are, by claim. Who uses it looks whether it still holds.
	reserved map[string][]string
	changed  map[string]bool // volumes, since
	again    bool            // what volumes are made of has changed since
}

// maxWants bounds how many kinds of claims are kept; the one unused for longest goes.
const maxWants = 16

// want is what claims that ask for the same can have. Slices are by place in the snapshot's Nodes.
type want struct {
	used     int64
	like     *corev1.PersistentVolumeClaim
	snapshot *state.Snapshot
	epoch    int64
	piles    map[string]*pile // of volumes for which the same nodes can be
	in       map[string]*pile // by volume
	at       [][]*pile
	best     []*corev1.PersistentVolume // the smallest; nil: there is none
	offers   []int64                    // its size
	makes    makes
}

// pile is free volumes with one node affinity, the smallest first.
type pile struct {
	volumes []*corev1.PersistentVolume
	places  []int32
}

// hear takes note of a change.
func (k *stock) hear(o any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wants == nil {
		return
	}
	if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		k.changed[v.Name] = true
		return
	}
	_, claim := client.Delivered[*corev1.PersistentVolumeClaim](o)
	_, node := client.Delivered[*storagev1.CSINode](o)
	k.again = k.again || !claim && !node
}

// touched says that bindings have taken volumes, or given them back.
func (k *stock) touched(names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wants == nil {
		return
	}
	for _, name := range names {
		k.changed[name] = true
	}
}

// refreshLocked brings what is known of volumes up to date.
func (k *stock) refreshLocked() {
	if k.wants == nil || len(k.changed) > maxNews {
		k.wants, k.reserved, k.changed = map[string]*want{}, map[string][]string{}, map[string]bool{}
		for _, v := range k.storage.allVolumes() {
			k.reserveLocked(v)
		}
	}
	for name := range k.changed {
		v := k.storage.volume(name)
		if v != nil {
			k.reserveLocked(v)
		}
		free := v != nil && k.storage.takenBy(name) == ""
		for _, w := range k.wants {
			if w.current(w.snapshot) {
				w.file(name, v, free)
			}
		}
	}
	clear(k.changed)
	if k.again {
		for _, w := range k.wants {
			w.makes = makes{}
		}
		k.again = false
	}
}

func (k *stock) reserveLocked(v *corev1.PersistentVolume) {
	if ref := v.Spec.ClaimRef; ref != nil {
		key := state.ClaimUse(ref.Namespace, ref.Name)
		if !slices.Contains(k.reserved[key], v.Name) {
			k.reserved[key] = append(k.reserved[key], v.Name)
		}
	}
}

// reservedLocked are the volumes that say they are the claim's, but for those that another claim is about to get.
func (k *stock) reservedLocked(claim *corev1.PersistentVolumeClaim) (out []*corev1.PersistentVolume) {
	key := claimKey(claim)
	k.reserved[key] = slices.DeleteFunc(k.reserved[key], func(name string) bool {
		v := k.storage.volume(name)
		if v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != claim.Namespace || v.Spec.ClaimRef.Name != claim.Name {
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

// wantLocked is what claims like this one can have of a snapshot's nodes. nil: it cannot be told.
func (k *stock) wantLocked(claim *corev1.PersistentVolumeClaim, s *state.Snapshot) *want {
	key := wantKey(claim)
	w := k.wants[key]
	if w == nil {
		if _, err := volume.FindMatchingVolume(claim, nil, nil, nil, false, true); err != nil {
			return nil
		}
		if len(k.wants) >= maxWants {
			k.dropLocked()
		}
		w = &want{like: claim}
		k.wants[key] = w
	}
	k.clock++
	w.used = k.clock
	if !w.current(s) {
		n := len(s.Nodes)
		w.snapshot, w.epoch, w.makes = s, s.Epoch, makes{}
		w.piles, w.in = map[string]*pile{}, map[string]*pile{}
		w.at, w.best, w.offers = make([][]*pile, n), make([]*corev1.PersistentVolume, n), make([]int64, n)
		for _, v := range k.storage.allVolumes() {
			w.file(v.Name, v, k.storage.takenBy(v.Name) == "")
		}
	}
	return w
}

// current tells whether w is about the nodes that s has now. If it is not, wantLocked makes it anew.
func (w *want) current(s *state.Snapshot) bool {
	return s != nil && w.snapshot == s && w.epoch == s.Epoch && len(w.best) == len(s.Nodes)
}

// dropLocked makes room for another kind of claims.
func (k *stock) dropLocked() {
	oldest := ""
	for key, w := range k.wants {
		if oldest == "" || w.used < k.wants[oldest].used {
			oldest = key
		}
	}
	delete(k.wants, oldest)
}

// wantKey names all that decides which volumes a claim can have.
func wantKey(c *corev1.PersistentVolumeClaim) string {
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	_, asks := c.Spec.Resources.Requests[corev1.ResourceStorage]
	mode, attributes, selector := "", "", ""
	if c.Spec.VolumeMode != nil {
		mode = string(*c.Spec.VolumeMode)
	}
	if c.Spec.VolumeAttributesClassName != nil {
		attributes = *c.Spec.VolumeAttributesClassName
	}
	if c.Spec.Selector != nil {
		selector = c.Spec.Selector.String()
	}
	return fmt.Sprintf("%q %t %s %s %q %q %q", volume.GetPersistentVolumeClaimClass(c), asks, size.String(), c.Spec.AccessModes, mode, attributes, selector)
}

// fits reports whether claims like w's may take a volume that nobody has, wherever it is.
func (w *want) fits(v *corev1.PersistentVolume) bool {
	if v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable {
		return false
	}
	found, err := volume.FindMatchingVolume(w.like, []*corev1.PersistentVolume{v}, nil, nil, false, true)
	return err == nil && found != nil && volume.CheckAccessModes(w.like, v)
}

// file puts a volume where it belongs, and takes it from where it was.
func (w *want) file(name string, v *corev1.PersistentVolume, free bool) {
	if old := w.in[name]; old != nil {
		old.volumes = slices.DeleteFunc(old.volumes, func(o *corev1.PersistentVolume) bool { return o.Name == name })
		delete(w.in, name)
		w.choose(old)
	}
	if !free || !w.fits(v) {
		return
	}
	p := w.pileOf(v)
	at, _ := slices.BinarySearchFunc(p.volumes, v, smallerVolume)
	p.volumes = slices.Insert(p.volumes, at, v)
	w.in[name] = p
	w.choose(p)
}

func smallerVolume(a, b *corev1.PersistentVolume) int {
	x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// pileOf returns the pile of a volume's node affinity.
func (w *want) pileOf(v *corev1.PersistentVolume) *pile {
	key := ""
	if v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
		key = affinityKey(v.Spec.NodeAffinity.Required)
	}
	p := w.piles[key]
	if p == nil {
		p = &pile{places: placesOf(w.snapshot, v)}
		w.piles[key] = p
		for _, place := range p.places {
			w.at[place] = append(w.at[place], p)
		}
	}
	return p
}

func affinityKey(s *corev1.NodeSelector) string {
	if only := onlyLabel(s); only != nil {
		return only.Key + "=" + strings.Join(only.Values, "|")
	}
	return " " + s.String()
}

// onlyLabel is the label that a selector asks for, if that is all.
func onlyLabel(s *corev1.NodeSelector) *corev1.NodeSelectorRequirement {
	if !simple(s) || len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchExpressions) != 1 {
		return nil
	}
	return &s.NodeSelectorTerms[0].MatchExpressions[0]
}

// placesOf are the nodes that can have a volume.
func placesOf(s *state.Snapshot, v *corev1.PersistentVolume) []int32 {
	if v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
		if only := onlyLabel(v.Spec.NodeAffinity.Required); only != nil {
			var out []int32
			for _, value := range slices.Compact(slices.Sorted(slices.Values(only.Values))) {
				out = append(out, s.Column(only.Key).Places(value)...)
			}
			return out
		}
	}
	r := reachOf(s, v)
	var out []int32
	for place := range s.Nodes {
		if r.at(place) {
			out = append(out, int32(place)) //nolint:gosec // there are fewer nodes
		}
	}
	return out
}

// choose looks anew for the best volume of a pile's nodes.
func (w *want) choose(p *pile) {
	for _, place := range p.places {
		var best *corev1.PersistentVolume
		for _, o := range w.at[place] {
			if len(o.volumes) > 0 && (best == nil || smallerVolume(o.volumes[0], best) < 0) {
				best = o.volumes[0]
			}
		}
		w.best[place], w.offers[place] = best, 0
		if best != nil {
			size := best.Spec.Capacity[corev1.ResourceStorage]
			w.offers[place] = size.Value()
		}
	}
}

// candidates are enough volumes of a node for n claims.
func (w *want) candidates(place int32, n int) (out []*corev1.PersistentVolume) {
	for _, p := range w.at[place] {
		out = append(out, p.volumes[:min(n, len(p.volumes))]...)
	}
	return out
}

// makes tells where volumes for claims that ask for the same can be made.
type makes struct {
	versions []int64 // of the nodes that were judged; nil: none
	status   []*framework.Status
	told     bool // capacities are published: without one there is no room
	from     []*storagev1.CSIStorageCapacity
}

// made is canProvision for the node at a place.
func (w *want) made(s *Storage, place int) (*storagev1.CSIStorageCapacity, *framework.Status) {
	m := &w.makes
	if m.versions == nil {
		n := len(w.snapshot.Nodes)
		m.versions, m.status, m.from = make([]int64, n), make([]*framework.Status, n), make([]*storagev1.CSIStorageCapacity, n)
		var all []*storagev1.CSIStorageCapacity
		if class := s.class(w.like); class != nil {
			all, m.told = s.capacitiesFor(class, w.like)
		}
		for _, c := range all {
			for _, at := range placesOfCapacity(w.snapshot, c) {
				m.from[at] = c
			}
		}
	}
	if v := w.snapshot.Versions[place]; m.versions[place] != v {
		m.versions[place], m.status[place] = v, s.canMake(w.like, w.snapshot.Nodes[place].Node)
	}
	if m.status[place] == nil && m.told && m.from[place] == nil {
		return nil, noSpace
	}
	return m.from[place], m.status[place]
}

// placesOfCapacity are the nodes that a capacity is about.
func placesOfCapacity(s *state.Snapshot, c *storagev1.CSIStorageCapacity) (out []int32) {
	if t := c.NodeTopology; len(t.MatchExpressions) == 0 && len(t.MatchLabels) == 1 {
		for key, value := range t.MatchLabels {
			return s.Column(key).Places(value)
		}
	}
	for place, n := range s.Nodes {
		if isOf(c, n.Node) {
			out = append(out, int32(place)) //nolint:gosec // there are fewer nodes
		}
	}
	return out
}
