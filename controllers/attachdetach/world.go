// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

// createTimeout is how long a created attachment counts before the cache shows it.
const createTimeout = time.Minute

// attachmentsByIndex returns the attachments with an index value.
func (c *Controller) attachmentsByIndex(index, value string) []*storagev1.VolumeAttachment {
	objs, err := c.attachments.ByIndex(index, value)
	if err != nil {
		return nil // the index exists
	}
	var out []*storagev1.VolumeAttachment
	for _, o := range objs {
		if a, ok := o.(*storagev1.VolumeAttachment); ok {
			out = append(out, a)
		}
	}
	return out
}

func (c *Controller) attachableVolumes() []*corev1.PersistentVolume {
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache returns no error
	}
	return all
}

// diskOf returns the volume of a bound claim, if it needs attachment.
func (c *Controller) diskOf(namespace, claim string) (csiVolume, bool) {
	o, err := c.claims.PersistentVolumeClaims(namespace).Get(claim)
	if err != nil || o.Status.Phase != corev1.ClaimBound {
		return csiVolume{}, false
	}
	v, err := c.volumes.Get(o.Spec.VolumeName)
	if err != nil || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != o.UID ||
		!c.attaches(v.Spec.CSI.Driver) {
		return csiVolume{}, false
	}
	return diskFor(v), true
}

func diskFor(v *corev1.PersistentVolume) csiVolume {
	return csiVolume{
		pv:        v.Name,
		driver:    v.Spec.CSI.Driver,
		handle:    v.Spec.CSI.VolumeHandle,
		exclusive: isExclusive(v.Spec.AccessModes),
	}
}

// attaches reports whether a driver's volumes need attachment. A driver without a CSIDriver object attaches.
func (c *Controller) attaches(driver string) bool {
	d, err := c.drivers.Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// managedVolume returns the volume of an attachment if this controller created it.
func (c *Controller) managedVolume(a *storagev1.VolumeAttachment) (csiVolume, bool) {
	name := volumeOf(a)
	if name == "" {
		return csiVolume{}, false
	}
	v, err := c.volumes.Get(name)
	if err != nil || v.Spec.CSI == nil {
		return csiVolume{pv: name, driver: a.Spec.Attacher}, managedName.MatchString(a.Name)
	}
	d := diskFor(v)
	return d, d.driver == a.Spec.Attacher && d.attachment(a.Spec.NodeName) == a.Name
}

// buildView collects the view of a node.
func (c *Controller) buildView(name string) (nodeView, error) {
	v := nodeView{
		name:              name,
		attachedElsewhere: map[string][]string{},
		noForceDetach:     c.cfg.NoForceDetach,
		now:               time.Now(),
	}
	n, err := c.nodes.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return v, err
	}
	if err == nil {
		v.node = n
		v.inUse = n.Status.VolumesInUse
		v.known = true
	}
	if v.wants, err = c.wants(name, v.node); err != nil {
		return v, err
	}
	have := c.attachmentsByIndex(byNode, name)
	slices.SortFunc(have, func(a, b *storagev1.VolumeAttachment) int { return cmp.Compare(a.Name, b.Name) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.node == nil {
		v.inUse, v.known = c.lastInUse[name]
	}
	for _, o := range have {
		if d, ok := c.managedVolume(o); ok {
			v.have = append(v.have, attachment{
				d, o, o.DeletionTimestamp != nil || c.deleting[o.Name] == o.UID, c.unneededSince[o.Name],
			})
		}
	}
	for _, w := range v.wants {
		if w.volume.exclusive {
			nodes, rumour := c.attachedElsewhereLocked(w.volume.pv, name, v.now)
			v.attachedElsewhere[w.volume.pv] = nodes
			v.assumed = v.assumed || rumour
		}
	}
	return v, nil
}

// attachedElsewhereLocked lists the other nodes to which a volume is attached or about to be; assumed is true for the
// latter.
func (c *Controller) attachedElsewhereLocked(pv, node string, now time.Time) (out []string, assumed bool) {
	for _, a := range c.attachmentsByIndex(byVolume, pv) {
		if a.Spec.NodeName != node {
			out = append(out, a.Spec.NodeName)
		}
	}
	for r, at := range c.creating {
		switch {
		case now.Sub(at) >= createTimeout:
			delete(c.creating, r)
		case r.pv == pv && r.node != node:
			out = append(out, r.node)
			assumed = true
		}
	}
	slices.Sort(out)
	return slices.Compact(out), assumed
}

// wants are the volumes that the pods of a node need, ordered by PersistentVolume.
func (c *Controller) wants(node string, n *corev1.Node) ([]wantedVolume, error) {
	pods, err := framework.PodsOn(c.pods, node)
	if err != nil {
		return nil, err
	}
	byVolume := map[string]*wantedVolume{}
	for _, p := range pods {
		if !needs(p, n) {
			continue
		}
		for _, d := range c.disks(p) {
			w := byVolume[d.pv]
			if w == nil {
				w = &wantedVolume{volume: d}
				byVolume[d.pv] = w
			}
			w.pods = append(w.pods, p)
		}
	}
	out := make([]wantedVolume, 0, len(byVolume))
	for _, name := range slices.Sorted(maps.Keys(byVolume)) {
		w := *byVolume[name]
		slices.SortFunc(w.pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
		out = append(out, w)
	}
	return out, nil
}

// disks are the volumes of a pod that need attachment, without duplicates.
func (c *Controller) disks(pod *corev1.Pod) []csiVolume {
	var out []csiVolume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name := podkind.ClaimName(pod, v)
		if name == "" {
			continue
		}
		if v.Ephemeral != nil {
			o, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
			if err != nil || ephemeral.VolumeIsForPod(pod, o) != nil {
				continue
			}
		}
		if d, ok := c.diskOf(pod.Namespace, name); ok && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// users are the pods on a node that use a volume.
func (c *Controller) users(node, pv string) []*corev1.Pod {
	n, err := c.nodes.Get(node)
	if err != nil {
		return nil
	}
	wants, err := c.wants(node, n)
	if err != nil {
		return nil
	}
	for _, w := range wants {
		if w.volume.pv == pv {
			return w.pods
		}
	}
	return nil
}
