// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	podkind "keelson/api/core/pod"
	"keelson/api/core/volume"
)

// unmountLimit is how long a node that is not ready may keep an unneeded volume, as in Kubernetes.
const unmountLimit = 6 * time.Minute

// csiVolume is a CSI volume that needs attachment.
type csiVolume struct {
	pv, driver string
	// handle is empty if the PersistentVolume was deleted: only the attachment is left.
	handle string
	// exclusive: the access modes allow only one node at a time.
	exclusive bool
}

// unique is the volume's name in node status.
func (d csiVolume) unique() corev1.UniqueVolumeName {
	return volume.UniqueName(d.driver, d.handle)
}

// attachment is the name of its VolumeAttachment to a node.
func (d csiVolume) attachment(node string) string {
	sum := sha256.Sum256([]byte(d.handle + d.driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

var managedName = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// usedOn reports whether a node lists the volume as in use. With an unknown handle, any volume of the driver may be it.
func (d csiVolume) usedOn(inUse []corev1.UniqueVolumeName) bool {
	return slices.ContainsFunc(inUse, func(n corev1.UniqueVolumeName) bool {
		return n == d.unique() || d.handle == "" && strings.HasPrefix(string(n), string(d.unique()))
	})
}

// wantedVolume is a volume that pods of a node need.
type wantedVolume struct {
	volume csiVolume
	pods   []*corev1.Pod
}

// attachment is a VolumeAttachment of this controller.
type attachment struct {
	volume csiVolume
	object *storagev1.VolumeAttachment
	// deleting: it is being deleted, according to the server or to our own delete.
	deleting bool
	// since is when it was first found to be unneeded; zero: it is needed, or this is the first time.
	since time.Time
}

// nodeView is the input of a pass about one node. All slices are ordered.
type nodeView struct {
	name string
	// node is nil if it does not exist. inUse is then its last volumesInUse; known is false if that was never observed.
	node  *corev1.Node
	inUse []corev1.UniqueVolumeName
	known bool
	wants []wantedVolume
	have  []attachment
	// attachedElsewhere maps wanted PersistentVolumes to the other nodes to which they are attached.
	attachedElsewhere map[string][]string
	// assumed: some of these nodes are known only from our own writes, which no cache shows yet.
	assumed bool
	// noForceDetach: only the out-of-service taint forces a detachment.
	noForceDetach bool
	now           time.Time
}

// detach is an attachment to delete.
type detach struct {
	attachment
	// forceReason is why volumesInUse is ignored: "timeout" or "out-of-service"; empty: it is not.
	forceReason string
}

// plan is the result of a pass.
type plan struct {
	// report is the node's volumesAttached.
	report []corev1.AttachedVolume
	attach []wantedVolume
	// refused are wanted volumes that are attached to another node.
	refused []wantedVolume
	detach  []detach
	// unneeded are the unneeded attachments.
	unneeded []string
	// requeueAfter is when to check again without an event; zero: never.
	requeueAfter time.Duration
}

// decide is a pure function: the same view gives the same plan.
func decide(v nodeView) plan {
	var steps plan
	if v.node != nil && !isManaged(v.node) {
		return steps // the kubelet attaches volumes itself
	}
	wanted := map[string]bool{}
	if v.node != nil {
		for _, w := range v.wants {
			wanted[w.volume.attachment(v.name)] = true
		}
	}
	there := map[string]bool{}
	for _, attachment := range v.have {
		there[attachment.object.Name] = true
		if attachment.deleting {
			continue
		}
		leaves := false
		if !wanted[attachment.object.Name] {
			steps.unneeded = append(steps.unneeded, attachment.object.Name)
			leaves = steps.release(v, attachment)
		}
		if !leaves && attachment.object.Status.Attached && attachment.volume.handle != "" {
			steps.report = append(steps.report, corev1.AttachedVolume{Name: attachment.volume.unique()})
		}
	}
	slices.SortFunc(steps.report, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	if v.node == nil {
		return steps
	}
	for _, w := range v.wants {
		switch {
		case there[w.volume.attachment(v.name)]:
			// or it is still being deleted: then its deletion triggers the next pass
		case w.volume.exclusive && len(v.attachedElsewhere[w.volume.pv]) > 0:
			steps.refused = append(steps.refused, w)
			if v.assumed {
				steps.requeueAfter = createTimeout
			}
		default:
			steps.attach = append(steps.attach, w)
		}
	}
	return steps
}

// release decides whether an unneeded attachment can be deleted now.
func (p *plan) release(v nodeView, a attachment) bool {
	since := a.since
	if since.IsZero() {
		since = v.now
	}
	left := since.Add(unmountLimit).Sub(v.now)
	switch {
	case !v.uses(a.volume):
		p.detach = append(p.detach, detach{a, ""})
	case v.node != nil && outOfService(v.node):
		p.detach = append(p.detach, detach{a, "out-of-service"})
	case v.noForceDetach || v.node != nil && isReady(v.node):
		return false
	case left <= 0:
		p.detach = append(p.detach, detach{a, "timeout"})
	default:
		if p.requeueAfter == 0 || left < p.requeueAfter {
			p.requeueAfter = left
		}
		return false
	}
	return true
}

// uses reports whether the volume may still be mounted on the node. For a deleted node with unknown volumes it must be
// assumed.
func (v nodeView) uses(d csiVolume) bool {
	if v.node == nil && !v.known {
		return true
	}
	return d.usedOn(v.inUse)
}

func isManaged(n *corev1.Node) bool {
	_, ok := n.Annotations[volume.AnnotationManaged]
	return ok
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// needs reports whether a pod still needs its volumes on its node.
func needs(p *corev1.Pod, n *corev1.Node) bool {
	ended := podkind.Terminal(p)
	if !ended && p.DeletionTimestamp != nil {
		ended = !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil && s.State.Waiting == nil
		})
	}
	return !ended || n != nil && n.Annotations[volume.AnnotationKeeps] == "true"
}

// isExclusive reports whether the access modes allow only one node at a time. Without modes the driver decides.
func isExclusive(modes []corev1.PersistentVolumeAccessMode) bool {
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
}
