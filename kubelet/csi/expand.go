// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// expand grows the file system to the volume's size if the claim's status is smaller. It never delays a pod: a failure
// is recorded as an event and retried.
func (m *Mounter) expand(ctx context.Context, j *job, target string) {
	want := larger(j.Claim, j.PV)
	if want == nil || j.ReadOnly {
		return
	}
	m.Expanded(ctx, j.Pod, j.Claim, j.name, *want, m.nodeExpand(ctx, j, target, want.Value()))
}

// Expanded writes the new size of a volume into its claim's status, and records events. err is why it was not grown.
func (m *Mounter) Expanded(
	ctx context.Context, pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, volume string, size resource.Quantity,
	err error,
) {
	podRef := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  pod.Namespace,
		Name:       pod.Name,
		UID:        pod.UID,
	}
	claimRef := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "PersistentVolumeClaim",
		Namespace:  claim.Namespace,
		Name:       claim.Name,
		UID:        claim.UID,
	}
	if err == nil {
		err = expanded(ctx, m.cfg.API, claim, size)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		m.cfg.Events.Eventf(podRef, corev1.EventTypeWarning, "VolumeResizeFailed",
			"MountVolume.NodeExpandVolume failed for volume %q : %v", volume, err)
		return
	}
	for _, ref := range []*corev1.ObjectReference{podRef, claimRef} {
		m.cfg.Events.Eventf(ref, corev1.EventTypeNormal, "FileSystemResizeSuccessful",
			"MountVolume.NodeExpandVolume succeeded for volume %q %s", volume, m.cfg.NodeName)
	}
}

// notOnNodes is an annotation of a claim whose driver grows the volume and its file system without the node. The
// driver's controller then writes the claim's status.
const notOnNodes = "volume.kubernetes.io/node-expansion-not-required"

// larger returns the volume's size if it exceeds the claim's status.capacity, the node is to grow it, and no other
// expansion is under way.
func larger(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *resource.Quantity {
	if metav1.HasAnnotation(c.ObjectMeta, notOnNodes) {
		return nil
	}
	have, ok := c.Status.Capacity[corev1.ResourceStorage]
	want := v.Spec.Capacity[corev1.ResourceStorage]
	if !ok || want.Cmp(have) <= 0 {
		return nil
	}
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimControllerResizeInProgress,
		corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return nil
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
	}
	return &want
}

func (m *Mounter) nodeExpand(ctx context.Context, j *job, target string, size int64) error {
	secrets, err := secretData(ctx, m.cfg.Objects, j.PV.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	req := &csiapi.NodeExpandVolumeRequest{
		VolumeId:         j.handle,
		VolumePath:       j.driver.pathSeen(target),
		CapacityRange:    &csiapi.CapacityRange{RequiredBytes: size},
		VolumeCapability: j.capability(j.driver, ""),
		Secrets:          secrets,
	}
	if j.volume.staged {
		_, at := j.stagedAt(j.block, j.name)
		req.StagingTargetPath = j.driver.pathSeen(at)
	}
	_, err = call(ctx, j.driver.within, j.driver.node.NodeExpandVolume, req)
	return err
}

// expanded writes the new size into the claim's status. Controllers write there too while a pod starts, so a conflict
// is tried again with the newest claim.
func expanded(
	ctx context.Context, api kubernetes.Interface, claim *corev1.PersistentVolumeClaim, size resource.Quantity,
) error {
	uid := claim.UID
	for range 3 {
		err := writeSize(ctx, api, claim, size)
		if !apierrors.IsConflict(err) {
			return err
		}
		claims := api.CoreV1().PersistentVolumeClaims(claim.Namespace)
		if claim, err = claims.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if claim.UID != uid {
			return nil // it was replaced, and the new one has what its own volume has
		}
	}
	return writeSize(ctx, api, claim, size)
}

func writeSize(
	ctx context.Context, api kubernetes.Interface, claim *corev1.PersistentVolumeClaim, size resource.Quantity,
) error {
	conditions := []corev1.PersistentVolumeClaimCondition{}
	for _, cond := range claim.Status.Conditions {
		switch cond.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			continue
		case corev1.PersistentVolumeClaimVolumeModifyVolumeError, corev1.PersistentVolumeClaimVolumeModifyingVolume,
			corev1.PersistentVolumeClaimUnused:
		}
		conditions = append(conditions, cond)
	}
	status := map[string]any{"capacity": map[string]any{"storage": size.String()}, "conditions": conditions}
	if len(claim.Status.AllocatedResourceStatuses) > 0 {
		status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = api.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType,
		patch,
		metav1.PatchOptions{}, "status")
	return err
}
