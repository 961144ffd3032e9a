// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// noProvisioner is of classes whose volumes nobody makes; bindCompleted is on claims that have their volume.
const (
	noProvisioner = "kubernetes.io/no-provisioner"
	bindCompleted = "pv.kubernetes.io/bind-completed"
)

// find returns the one of that name, nil: there is none.
func find[T any, P interface {
	*T
	GetName() string
}](all []P, name string) P {
	for _, o := range all {
		if o.GetName() == name {
			return o
		}
	}
	return nil
}

// claims lists the claims that a pod names; nil stands for one that is not there.
func (c *Cluster) claims(p *corev1.Pod) (all []*corev1.PersistentVolumeClaim) {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		var found *corev1.PersistentVolumeClaim
		for _, o := range c.Claims {
			if o.Namespace == p.Namespace && o.Name == v.PersistentVolumeClaim.ClaimName {
				found = o
			}
		}
		all = append(all, found)
	}
	return all
}

// volume is that of a claim; nil: it has none, or it is not there.
func (c *Cluster) volume(o *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return find(c.Volumes, o.Spec.VolumeName)
}

func (c *Cluster) class(o *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if o.Spec.StorageClassName == nil {
		return nil
	}
	return find(c.Classes, *o.Spec.StorageClassName)
}

// isInUse: a disk that this pod or another writes to is on the node already, or a claim for one pod alone has a pod somewhere.
func (c *Cluster) isInUse(p *corev1.Pod, n *corev1.Node) bool {
	for _, o := range c.on(n) {
		for _, want := range p.Spec.Volumes {
			for _, has := range o.Spec.Volumes {
				a, b := want.GCEPersistentDisk, has.GCEPersistentDisk
				if a != nil && b != nil && a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly) {
					return true
				}
			}
		}
	}
	for _, mine := range c.claims(p) {
		if mine == nil || !slices.Contains(mine.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		for _, o := range c.Pods {
			if c.where(o) != nil && slices.Contains(c.claims(o), mine) {
				return true
			}
		}
	}
	return false
}

// csi lists the volumes that a pod has, or will have, of CSI drivers, as "driver/which".
func (c *Cluster) csi(p *corev1.Pod) (all []string) {
	for _, o := range c.claims(p) {
		if o == nil {
			continue
		}
		v := c.volume(o)
		switch {
		case v != nil && v.Spec.CSI != nil:
			all = append(all, v.Spec.CSI.Driver+"/"+v.Spec.CSI.VolumeHandle)
		case v == nil && c.class(o) != nil:
			all = append(all, c.class(o).Provisioner+"/claim "+o.Namespace+" "+o.Name)
		}
	}
	return all
}

// isLoaded: a driver of the pod's volumes must be on the node and is not, or could not attach all of them beside what is there.
func (c *Cluster) isLoaded(p *corev1.Pod, n *corev1.Node) bool {
	wants := c.csi(p)
	var has []string
	for _, o := range c.on(n) {
		has = append(has, c.csi(o)...)
	}
	var attached []string // for no pod
	for _, a := range c.Attachments {
		v := find(c.Volumes, *a.Spec.Source.PersistentVolumeName)
		if a.Spec.NodeName == n.Name && v != nil && v.Spec.CSI != nil && !slices.Contains(has, a.Spec.Attacher+"/"+v.Spec.CSI.VolumeHandle) {
			attached = append(attached, a.Spec.Attacher+"/"+v.Spec.CSI.VolumeHandle)
		}
	}
	said := find(c.CSINodes, n.Name)
	for _, want := range wants {
		name, _, _ := strings.Cut(want, "/")
		var on *storagev1.CSINodeDriver
		if said != nil {
			for i := range said.Spec.Drivers {
				if said.Spec.Drivers[i].Name == name {
					on = &said.Spec.Drivers[i]
				}
			}
		}
		if d := find(c.Drivers, name); on == nil && d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing {
			return true
		}
		if on == nil || on.Allocatable == nil || on.Allocatable.Count == nil {
			continue
		}
		more := different(name, wants, has)
		if more > 0 && different(name, has, nil)+different(name, attached, nil)+more > int(*on.Allocatable.Count) {
			return true
		}
	}
	return false
}

// different counts the different ones of a driver that are not among but.
func different(driver string, all, but []string) (n int) {
	for i, v := range all {
		if strings.HasPrefix(v, driver+"/") && !slices.Contains(all[:i], v) && !slices.Contains(but, v) {
			n++
		}
	}
	return n
}

// reaches reports whether a volume can be used on a node.
func reaches(v *corev1.PersistentVolume, n *corev1.Node) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	for i := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if meets(&v.Spec.NodeAffinity.Required.NodeSelectorTerms[i], n) {
			return true
		}
	}
	return false
}

// Choice is the volume that a claim gets; nil: one is made.
type Choice struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// Choose returns what the claims of a pod that have no volume yet get on a node. ok is false if the pod cannot have its volumes there.
func (c *Cluster) Choose(p *corev1.Pod, n *corev1.Node) (choices []Choice, ok bool) {
	var late []*corev1.PersistentVolumeClaim
	for _, o := range c.claims(p) {
		if o == nil || o.Status.Phase == corev1.ClaimLost || o.DeletionTimestamp != nil {
			return nil, false
		}
		class := c.class(o)
		switch {
		case o.Annotations[bindCompleted] != "" && o.Spec.VolumeName != "":
			if v := c.volume(o); v == nil || !reaches(v, n) {
				return nil, false
			}
		case o.Spec.VolumeName == "" && class != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
			if !slices.Contains(late, o) {
				late = append(late, o)
			}
		default:
			return nil, false // it is to be bound without the pod
		}
	}
	slices.SortStableFunc(late, func(a, b *corev1.PersistentVolumeClaim) int {
		return size(a.Spec.Resources.Requests, b.Spec.Resources.Requests)
	})
	var taken []*corev1.PersistentVolume
	for _, o := range late {
		v := c.smallest(o, n, taken)
		if v == nil && c.class(o).Provisioner == noProvisioner {
			return nil, false
		}
		choices, taken = append(choices, Choice{o, v}), append(taken, v)
	}
	return choices, true
}

func size(a, b corev1.ResourceList) int {
	x, y := a[corev1.ResourceStorage], b[corev1.ResourceStorage]
	return x.Cmp(y)
}

// smallest is the volume that a claim gets on a node: the one that says it is the claim's, else the smallest that will do; nil: there is none.
func (c *Cluster) smallest(o *corev1.PersistentVolumeClaim, n *corev1.Node, taken []*corev1.PersistentVolume) (best *corev1.PersistentVolume) {
	for _, v := range c.Volumes {
		if slices.Contains(taken, v) || size(v.Spec.Capacity, o.Spec.Resources.Requests) < 0 {
			continue
		}
		if ref := v.Spec.ClaimRef; ref != nil {
			if ref.Namespace != o.Namespace || ref.Name != o.Name {
				continue
			}
			if !reaches(v, n) {
				return nil
			}
			return v
		}
	}
	for _, v := range c.Volumes {
		if slices.Contains(taken, v) || v.Spec.ClaimRef != nil || size(v.Spec.Capacity, o.Spec.Resources.Requests) < 0 ||
			v.Status.Phase != corev1.VolumeAvailable || v.Spec.StorageClassName != *o.Spec.StorageClassName || !reaches(v, n) {
			continue
		}
		if best == nil || size(v.Spec.Capacity, best.Spec.Capacity) < 0 {
			best = v
		}
	}
	return best
}

// isOutOfReach: the node cannot have the volumes that the pod's claims have or will get.
func (c *Cluster) isOutOfReach(p *corev1.Pod, n *corev1.Node) bool {
	_, ok := c.Choose(p, n)
	return !ok
}

// isOtherZone: a volume's labels name other zones than the node's. A node without any such label is in no zone, which is right for all.
func (c *Cluster) isOtherZone(p *corev1.Pod, n *corev1.Node) bool {
	old := map[string]string{corev1.LabelTopologyZone: corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyRegion: corev1.LabelFailureDomainBetaRegion}
	anywhere := false
	for now, before := range old {
		anywhere = anywhere || n.Labels[now] != "" || n.Labels[before] != ""
	}
	for _, o := range c.claims(p) {
		if o == nil || c.volume(o) == nil || !anywhere {
			continue
		}
		for now := range old {
			if zones, ok := c.volume(o).Labels[now]; ok && !slices.Contains(strings.Split(zones, "__"), n.Labels[now]) {
				return true
			}
		}
	}
	return false
}

// scoreVolumes: the less of the chosen volumes the claims take the better, as a mean over classes. Volumes that are made do not count.
func (c *Cluster) scoreVolumes(p *corev1.Pod, nodes []*corev1.Node) []int64 {
	scores := make([]int64, len(nodes))
	for i, n := range nodes {
		choices, _ := c.Choose(p, n)
		asks, offers := map[string]int64{}, map[string]int64{}
		for _, o := range choices {
			if o.Volume != nil {
				class := o.Volume.Spec.StorageClassName
				asked, offered := o.Claim.Spec.Resources.Requests[corev1.ResourceStorage], o.Volume.Spec.Capacity[corev1.ResourceStorage]
				asks[class], offers[class] = asks[class]+asked.Value(), offers[class]+offered.Value()
			}
		}
		var sum int64
		for class := range asks {
			sum += 100 - asks[class]*100/offers[class]
		}
		if len(asks) > 0 {
			scores[i] = int64(math.Round(float64(sum) / float64(len(asks))))
		}
	}
	return scores
}
