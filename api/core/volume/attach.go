// SPDX-License-Identifier: Apache-2.0

package volume

import corev1 "k8s.io/api/core/v1"

// Annotations of a Node by which the node and the controller that attaches volumes to it communicate.
const (
	// AnnotationManaged: a controller attaches the node's volumes, not its kubelet.
	AnnotationManaged = "volumes.kubernetes.io/controller-managed-attach-detach"
	// AnnotationKeeps, if "true": finished pods keep their volumes.
	AnnotationKeeps = "volumes.kubernetes.io/keep-terminated-pod-volumes"
)

// UniqueName is the name of a CSI driver's volume in the status of nodes.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}
