// SPDX-License-Identifier: Apache-2.0

// Package localvolume names what the provisioner of local volumes, the kubelets that keep them, and the server that
// guards them agree on (docs/decisions/0076). A local volume is a directory of one node:
//
//   - a Node with the label NodeHas has room for them, in the directory that NodeAnnotation names;
//   - a PersistentVolume is one of them if it says that Provisioner made it; NodeLabel says on which node it is;
//   - Finalizer keeps a volume that is being deleted until its node has removed the directory.
package localvolume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
)

const (
	// Provisioner is what a StorageClass of local volumes names.
	Provisioner = "keelson.dev/local-volume"
	// NodeHas is the label, of value "true", of nodes that keep local volumes.
	NodeHas = "keelson.dev/local-volumes"
	// NodeAnnotation is the directory of a node's local volumes.
	NodeAnnotation = "keelson.dev/local-volumes-dir"
	// NodeLabel is the name of a volume's node.
	NodeLabel = "keelson.dev/node"
	// Finalizer is the node's, on a volume.
	Finalizer = "keelson.dev/local-volume"
)

// Is reports whether v is a local volume made by Provisioner.
func Is(v *corev1.PersistentVolume) bool {
	return v.Annotations[volume.AnnDynamicallyProvisioned] == Provisioner && v.Spec.Local != nil
}

// On reports whether v is a local volume of this node.
func On(v *corev1.PersistentVolume, node string) bool { return Is(v) && v.Labels[NodeLabel] == node }

// Fits says why a node can have no local volume of this size. What its volumes take of the disk together is not
// bounded.
func Fits(size int64, n *corev1.Node) error {
	if n.Labels[NodeHas] != "true" {
		return fmt.Errorf("node %q keeps no local volumes", n.Name)
	}
	if disk, ok := n.Status.Capacity[corev1.ResourceEphemeralStorage]; ok && size > disk.Value() {
		return fmt.Errorf("node %q has a disk of %s", n.Name, disk.String())
	}
	return nil
}
