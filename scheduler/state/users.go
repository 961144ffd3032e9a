// SPDX-License-Identifier: Apache-2.0

package state

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// ClaimUse is the key of a claim among PodInfo.Uses.
func ClaimUse(namespace, name string) string { return namespace + "/" + name }

// DiskUse is the key, among PodInfo.Uses, of a disk that VolumeRestrictions checks; "": v is no such disk. Conflicting
// volumes have the same key.
func DiskUse(v *corev1.Volume) string {
	switch {
	case v.GCEPersistentDisk != nil:
		return "gce|" + v.GCEPersistentDisk.PDName
	case v.AWSElasticBlockStore != nil:
		return "ebs|" + v.AWSElasticBlockStore.VolumeID
	case v.ISCSI != nil:
		return "iscsi|" + v.ISCSI.IQN
	case v.RBD != nil:
		return "rbd|" + v.RBD.RBDPool + "|" + v.RBD.RBDImage
	}
	return ""
}

func uses(pod *corev1.Pod) []string {
	var out []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		key := DiskUse(v)
		if name := podkind.ClaimName(pod, v); name != "" {
			key = ClaimUse(pod.Namespace, name)
		}
		if key != "" && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// updateUsers updates the users of claims and disks.
func (x *index) updateUsers(ch change) {
	for _, key := range ch.info.Uses {
		list := x.users[key]
		at := slices.IndexFunc(list, func(l placedOn) bool { return l.info.Pod.UID == ch.info.Pod.UID })
		switch {
		case ch.sign < 0 && at >= 0:
			list = slices.Delete(list, at, at+1)
		case ch.sign >= 0 && at >= 0:
			list[at] = placedOn{ch.info, ch.node}
		case ch.sign >= 0:
			list = append(list, placedOn{ch.info, ch.node})
		}
		if len(list) == 0 {
			delete(x.users, key)
			continue
		}
		x.users[key] = list
	}
}

// Users returns the pods on nodes that use a claim or a disk, by its key, with their nodes' names. Valid until the next
// Refresh.
func (s *Snapshot) Users(key string) iter.Seq2[*PodInfo, string] {
	return func(yield func(*PodInfo, string) bool) {
		for _, l := range s.index.users[key] {
			if !yield(l.info, l.node) {
				return
			}
		}
	}
}
