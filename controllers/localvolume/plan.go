// SPDX-License-Identifier: Apache-2.0

package localvolume

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/core/localvolume"
)

// needsProvisioning reports whether a claim waits for a volume of this provisioner.
func needsProvisioning(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName == "" && c.DeletionTimestamp == nil &&
		c.Annotations[volume.AnnStorageProvisioner] == localvolume.Provisioner
}

// volumeFor is the volume for a claim on a node, or why it is not possible.
func volumeFor(
	claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node,
) (*corev1.PersistentVolume, error) {
	if err := supported(claim, node); err != nil {
		return nil, err
	}
	name := "pvc-" + string(claim.UID)
	host := node.Labels[corev1.LabelHostname]
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{localvolume.NodeLabel: node.Name},
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: localvolume.Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    claim.Spec.VolumeMode,
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: filepath.Join("/var/lib/keelson/volumes", name)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}},
					},
				}}},
			},
			ClaimRef: &corev1.ObjectReference{
				APIVersion:      "v1",
				Kind:            "PersistentVolumeClaim",
				Namespace:       claim.Namespace,
				Name:            claim.Name,
				UID:             claim.UID,
				ResourceVersion: claim.ResourceVersion,
			},
		},
	}
	if class.ReclaimPolicy != nil {
		pv.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	// A node without a directory is a fake node: it has nothing to remove.
	if dir := node.Annotations[localvolume.NodeAnnotation]; dir != "" {
		pv.Spec.Local.Path = filepath.Join(dir, name)
		pv.Finalizers = []string{localvolume.Finalizer}
	}
	return pv, nil
}

// supported returns why a directory of the node cannot be the claim's volume; nil: it can.
func supported(claim *corev1.PersistentVolumeClaim, node *corev1.Node) error {
	_, labelled := node.Labels[corev1.LabelHostname]
	switch {
	case !labelled:
		return fmt.Errorf("node %q has no label %s", node.Name, corev1.LabelHostname)
	case len(node.Name) > 63:
		return fmt.Errorf("the name of node %q has more than 63 characters", node.Name)
	case claim.Spec.Selector != nil:
		return errors.New("claim.Spec.Selector is not supported")
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return errors.New("volumeMode Block is not supported")
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return errors.New("a dataSource is not supported")
	case slices.ContainsFunc(claim.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod
	}):
		return errors.New("a volume on one node only supports the access modes ReadWriteOnce and ReadWriteOncePod")
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return localvolume.Fits(size.Value(), node)
}

// classFor is the StorageClass of local volumes; it is the default unless there is another one.
func classFor(name string, isDefault bool) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	del := corev1.PersistentVolumeReclaimDelete
	grow := true
	storageClass := &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name},
		Provisioner:          localvolume.Provisioner,
		VolumeBindingMode:    &late,
		ReclaimPolicy:        &del,
		AllowVolumeExpansion: &grow,
		AllowedTopologies: []corev1.TopologySelectorTerm{
			{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: localvolume.NodeHas, Values: []string{"true"}},
			}},
		},
	}
	if isDefault {
		storageClass.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	}
	return storageClass
}

// expansion returns the updated volume and claim for a bound claim that requests more storage; nil if no update is
// needed.
func expansion(
	claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume,
) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	var grown *corev1.PersistentVolume
	size := v.Spec.Capacity[corev1.ResourceStorage]
	if size.Cmp(want) < 0 {
		grown = v.DeepCopy()
		grown.Spec.Capacity[corev1.ResourceStorage] = want
		size = want
	}
	have := claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || have.Cmp(want) >= 0 || have.Cmp(size) >= 0 {
		return grown, nil
	}
	next := claim.DeepCopy()
	next.Status.Capacity = maps.Clone(next.Status.Capacity)
	if next.Status.Capacity == nil {
		next.Status.Capacity = corev1.ResourceList{}
	}
	next.Status.Capacity[corev1.ResourceStorage] = size
	return grown, next
}
