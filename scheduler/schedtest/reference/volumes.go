// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// noProvisioner is the provisioner of classes without dynamic provisioning; bindCompleted is an annotation of bound
// claims.
const (
	noProvisioner = "kubernetes.io/no-provisioner"
	bindCompleted = "pv.kubernetes.io/bind-completed"
)

// find returns the object of that name; nil: there is none.
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

// claims returns the claims of a pod; nil stands for one that does not exist.
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

// volume returns the volume of a claim; nil: it has none, or it does not exist.
func (c *Cluster) volume(o *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return find(c.Volumes, o.Spec.VolumeName)
}

func (c *Cluster) class(o *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if o.Spec.StorageClassName == nil {
		return nil
	}
	return find(c.Classes, *o.Spec.StorageClassName)
}

// hasVolumeConflict: a disk of this pod is on the node already and not read-only for both pods, or a ReadWriteOncePod
// claim has another pod.
func (c *Cluster) hasVolumeConflict(pod *corev1.Pod, n *corev1.Node) bool {
	for _, o := range c.podsOn(n) {
		for _, want := range pod.Spec.Volumes {
			for _, has := range o.Spec.Volumes {
				a := want.GCEPersistentDisk
				b := has.GCEPersistentDisk
				if a != nil && b != nil && a.PDName == b.PDName && (!a.ReadOnly || !b.ReadOnly) {
					return true
				}
			}
		}
	}
	for _, mine := range c.claims(pod) {
		if mine == nil || !slices.Contains(mine.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		for _, o := range c.Pods {
			if c.nodeOf(o) != nil && slices.Contains(c.claims(o), mine) {
				return true
			}
		}
	}
	return false
}

// csiVolumes returns the CSI volumes that a pod has, or will have, as "driver/volume".
func (c *Cluster) csiVolumes(p *corev1.Pod) (all []string) {
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

// exceedsVolumeLimits: a required driver of the pod's volumes is not on the node, or the node cannot attach that many
// volumes.
func (c *Cluster) exceedsVolumeLimits(p *corev1.Pod, node *corev1.Node) bool {
	wants := c.csiVolumes(p)
	var has []string
	for _, o := range c.podsOn(node) {
		has = append(has, c.csiVolumes(o)...)
	}
	var attached []string // for none of the pods
	for _, a := range c.Attachments {
		v := find(c.Volumes, *a.Spec.Source.PersistentVolumeName)
		if a.Spec.NodeName == node.Name && v != nil && v.Spec.CSI != nil &&
			!slices.Contains(has, a.Spec.Attacher+"/"+v.Spec.CSI.VolumeHandle) {
			attached = append(attached, a.Spec.Attacher+"/"+v.Spec.CSI.VolumeHandle)
		}
	}
	csiNode := find(c.CSINodes, node.Name)
	for _, want := range wants {
		name, _, _ := strings.Cut(want, "/")
		var on *storagev1.CSINodeDriver
		if csiNode != nil {
			for i := range csiNode.Spec.Drivers {
				if csiNode.Spec.Drivers[i].Name == name {
					on = &csiNode.Spec.Drivers[i]
				}
			}
		}
		if d := find(c.Drivers, name); on == nil && d != nil && d.Spec.PreventPodSchedulingIfMissing != nil &&
			*d.Spec.PreventPodSchedulingIfMissing {
			return true
		}
		if on == nil || on.Allocatable == nil || on.Allocatable.Count == nil {
			continue
		}
		more := countDistinct(name, wants, has)
		if more > 0 && countDistinct(name, has, nil)+countDistinct(name, attached, nil)+more > int(
			*on.Allocatable.Count) {
			return true
		}
	}
	return false
}

// countDistinct counts the distinct volumes of a driver, except some.
func countDistinct(driver string, all, except []string) (n int) {
	for i, v := range all {
		if strings.HasPrefix(v, driver+"/") && !slices.Contains(all[:i], v) && !slices.Contains(except, v) {
			n++
		}
	}
	return n
}

// volumeMatchesNode reports whether the node affinity of a volume matches a node.
func volumeMatchesNode(v *corev1.PersistentVolume, n *corev1.Node) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	for i := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if matchesNodeTerm(&v.Spec.NodeAffinity.Required.NodeSelectorTerms[i], n) {
			return true
		}
	}
	return false
}

// VolumeChoice is the volume for a claim; nil: one will be provisioned.
type VolumeChoice struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// ChooseVolumes returns the volumes for the unbound claims of a pod on a node. ok is false if the pod cannot have its
// volumes there.
func (c *Cluster) ChooseVolumes(p *corev1.Pod, node *corev1.Node) (choices []VolumeChoice, ok bool) {
	var unbound []*corev1.PersistentVolumeClaim
	for _, claim := range c.claims(p) {
		if claim == nil || claim.Status.Phase == corev1.ClaimLost || claim.DeletionTimestamp != nil {
			return nil, false
		}
		class := c.class(claim)
		switch {
		case claim.Annotations[bindCompleted] != "" && claim.Spec.VolumeName != "":
			if v := c.volume(claim); v == nil || !volumeMatchesNode(v, node) {
				return nil, false
			}
		case claim.Spec.VolumeName == "" && class != nil &&
			*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
			if !slices.Contains(unbound, claim) {
				unbound = append(unbound, claim)
			}
		default:
			return nil, false // it is bound without regard to the pod
		}
	}
	slices.SortStableFunc(unbound, func(a, b *corev1.PersistentVolumeClaim) int {
		return size(a.Spec.Resources.Requests, b.Spec.Resources.Requests)
	})
	var taken []*corev1.PersistentVolume
	for _, o := range unbound {
		v := c.smallest(o, node, taken)
		if v == nil && c.class(o).Provisioner == noProvisioner {
			return nil, false
		}
		choices = append(choices, VolumeChoice{o, v})
		taken = append(taken, v)
	}
	return choices, true
}

func size(a, b corev1.ResourceList) int {
	x := a[corev1.ResourceStorage]
	y := b[corev1.ResourceStorage]
	return x.Cmp(y)
}

// smallest returns the volume for a claim on a node: the one whose claimRef names the claim, else the smallest that
// matches; nil: there is none.
func (c *Cluster) smallest(
	claim *corev1.PersistentVolumeClaim, node *corev1.Node, taken []*corev1.PersistentVolume,
) (best *corev1.PersistentVolume) {
	for _, pv := range c.Volumes {
		if slices.Contains(taken, pv) || size(pv.Spec.Capacity, claim.Spec.Resources.Requests) < 0 {
			continue
		}
		if ref := pv.Spec.ClaimRef; ref != nil {
			if ref.Namespace != claim.Namespace || ref.Name != claim.Name {
				continue
			}
			if !volumeMatchesNode(pv, node) {
				return nil
			}
			return pv
		}
	}
	for _, v := range c.Volumes {
		if slices.Contains(taken, v) || v.Spec.ClaimRef != nil ||
			size(v.Spec.Capacity, claim.Spec.Resources.Requests) < 0 ||
			v.Status.Phase != corev1.VolumeAvailable || v.Spec.StorageClassName != *claim.Spec.StorageClassName ||
			!volumeMatchesNode(v, node) {
			continue
		}
		if best == nil || size(v.Spec.Capacity, best.Spec.Capacity) < 0 {
			best = v
		}
	}
	return best
}

// cannotBindVolumes: the volumes that the pod's claims have or will get cannot be used on the node.
func (c *Cluster) cannotBindVolumes(p *corev1.Pod, n *corev1.Node) bool {
	_, ok := c.ChooseVolumes(p, n)
	return !ok
}

// isOtherVolumeZone: a volume's labels name other zones than the node's. A node without any such label matches all
// volumes.
func (c *Cluster) isOtherVolumeZone(p *corev1.Pod, node *corev1.Node) bool {
	old := map[string]string{
		corev1.LabelTopologyZone:   corev1.LabelFailureDomainBetaZone,
		corev1.LabelTopologyRegion: corev1.LabelFailureDomainBetaRegion,
	}
	anywhere := false
	for now, before := range old {
		anywhere = anywhere || node.Labels[now] != "" || node.Labels[before] != ""
	}
	for _, o := range c.claims(p) {
		if o == nil || c.volume(o) == nil || !anywhere {
			continue
		}
		for now := range old {
			if zones, ok := c.volume(o).Labels[now]; ok && !slices.Contains(strings.Split(zones, "__"),
				node.Labels[now]) {
				return true
			}
		}
	}
	return false
}

// scoreVolumes: the lower the utilization of the chosen volumes, the better, as a mean over classes. Volumes to be
// provisioned do not count.
func (c *Cluster) scoreVolumes(p *corev1.Pod, nodes []*corev1.Node) []int64 {
	scores := make([]int64, len(nodes))
	for i, n := range nodes {
		choices, _ := c.ChooseVolumes(p, n)
		requested := map[string]int64{}
		capacity := map[string]int64{}
		for _, o := range choices {
			if o.Volume != nil {
				class := o.Volume.Spec.StorageClassName
				asked := o.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
				offered := o.Volume.Spec.Capacity[corev1.ResourceStorage]
				requested[class] = requested[class] + asked.Value()
				capacity[class] = capacity[class] + offered.Value()
			}
		}
		var sum int64
		for class := range requested {
			sum += 100 - requested[class]*100/capacity[class]
		}
		if len(requested) > 0 {
			scores[i] = int64(math.Round(float64(sum) / float64(len(requested))))
		}
	}
	return scores
}
