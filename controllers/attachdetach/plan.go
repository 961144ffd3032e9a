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

// disk is a CSI volume that needs attachment.
type disk struct {
	pv, driver string
	// handle is empty if the PersistentVolume was deleted: only the attachment is left.
	handle string
	// exclusive: the access modes allow only one node at a time.
	exclusive bool
}

// unique is the volume's name in node status.
func (d disk) unique() corev1.UniqueVolumeName {
	return volume.UniqueName(d.driver, d.handle)
}

// attachment is the name of its VolumeAttachment to a node.
func (d disk) attachment(node string) string {
	sum := sha256.Sum256([]byte(d.handle + d.driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

var ourName = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// usedOn reports whether a node lists the volume as in use. With an unknown handle, any volume of the driver may be it.
func (d disk) usedOn(inUse []corev1.UniqueVolumeName) bool {
	return slices.ContainsFunc(inUse, func(n corev1.UniqueVolumeName) bool {
		return n == d.unique() || d.handle == "" && strings.HasPrefix(string(n), string(d.unique()))
	})
}

// want is a volume that pods of a node need.
type want struct {
	disk disk
	pods []*corev1.Pod
}

// attachment is a VolumeAttachment of this controller.
type attachment struct {
	disk   disk
	object *storagev1.VolumeAttachment
	// going: it is being deleted, according to the server or to our own delete.
	going bool
	// since is when it was first found to be unneeded; zero: it is needed, or this is the first time.
	since time.Time
}

// view is the input of a pass about one node. All slices are ordered.
type view struct {
	name string
	// node is nil if it does not exist. inUse is then its last volumesInUse; known is false if that was never observed.
	node  *corev1.Node
	inUse []corev1.UniqueVolumeName
	known bool
	wants []want
	have  []attachment
	// elsewhere maps wanted PersistentVolumes to the other nodes to which they are attached.
	elsewhere map[string][]string
	// rumour: some of these nodes are known only from our own writes, which no cache shows yet.
	rumour bool
	// noForce: only the out-of-service taint forces a detachment.
	noForce bool
	now     time.Time
}

// detach is an attachment to delete.
type detach struct {
	attachment
	// force is why volumesInUse is ignored: "timeout" or "out-of-service"; empty: it is not.
	force string
}

// plan is the result of a pass.
type plan struct {
	// report is the node's volumesAttached.
	report []corev1.AttachedVolume
	attach []want
	// refused are wanted volumes that are attached to another node.
	refused []want
	detach  []detach
	// idle are the unneeded attachments.
	idle []string
	// again is when to check again without an event; zero: never.
	again time.Duration
}

// decide is a pure function: the same view gives the same plan.
func decide(v view) plan {
	var p plan
	if v.node != nil && !isManaged(v.node) {
		return p // the kubelet attaches volumes itself
	}
	wanted := map[string]bool{}
	if v.node != nil {
		for _, w := range v.wants {
			wanted[w.disk.attachment(v.name)] = true
		}
	}
	there := map[string]bool{}
	for _, a := range v.have {
		there[a.object.Name] = true
		if a.going {
			continue
		}
		leaves := false
		if !wanted[a.object.Name] {
			p.idle = append(p.idle, a.object.Name)
			leaves = p.release(v, a)
		}
		if !leaves && a.object.Status.Attached && a.disk.handle != "" {
			p.report = append(p.report, corev1.AttachedVolume{Name: a.disk.unique()})
		}
	}
	slices.SortFunc(p.report, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	if v.node == nil {
		return p
	}
	for _, w := range v.wants {
		switch {
		case there[w.disk.attachment(v.name)]: // or it is still being deleted: then its deletion triggers the next pass
		case w.disk.exclusive && len(v.elsewhere[w.disk.pv]) > 0:
			p.refused = append(p.refused, w)
			if v.rumour {
				p.again = comingLimit
			}
		default:
			p.attach = append(p.attach, w)
		}
	}
	return p
}

// release decides whether an unneeded attachment can be deleted now.
func (p *plan) release(v view, a attachment) bool {
	since := a.since
	if since.IsZero() {
		since = v.now
	}
	left := since.Add(unmountLimit).Sub(v.now)
	switch {
	case !v.uses(a.disk):
		p.detach = append(p.detach, detach{a, ""})
	case v.node != nil && outOfService(v.node):
		p.detach = append(p.detach, detach{a, "out-of-service"})
	case v.noForce || v.node != nil && isReady(v.node):
		return false
	case left <= 0:
		p.detach = append(p.detach, detach{a, "timeout"})
	default:
		if p.again == 0 || left < p.again {
			p.again = left
		}
		return false
	}
	return true
}

// uses reports whether the volume may still be mounted on the node. For a deleted node with unknown volumes it must be assumed.
func (v view) uses(d disk) bool {
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
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
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
