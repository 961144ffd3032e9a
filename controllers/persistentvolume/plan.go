// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
)

// claimEvent is an event of a claim or volume.
type claimEvent struct{ kind, reason, message string }

func normal(reason, format string, args ...any) *claimEvent {
	return &claimEvent{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)}
}

func warning(reason, format string, args ...any) *claimEvent {
	return &claimEvent{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

// claimView is the input of the decision about a claim. Objects are shared.
type claimView struct {
	claim *corev1.PersistentVolumeClaim
	// namedVolume is the volume in spec.volumeName; nil: it does not exist.
	namedVolume *corev1.PersistentVolume
	// match finds the volume for a claim without volumeName; nil: none fits. With delayedBinding only volumes with a
	// claimRef to the claim count.
	match func(late bool) (*corev1.PersistentVolume, error)
	// class is the claim's class; nil: it does not exist, or the claim has none.
	class *storagev1.StorageClass
	// defaultClass is the default class; nil: there is none.
	defaultClass *storagev1.StorageClass
	// unscheduledPods are the pods that use the claim and have no node yet.
	unscheduledPods []string
	// scheduledNode is the node of a scheduled pod that uses the claim; empty: none.
	scheduledNode string
}

// claimPlan is the decision about a claim: the first field that is set, and an event.
type claimPlan struct {
	// bind is the volume to bind to the claim.
	bind *corev1.PersistentVolume
	// class is the default class for a claim without one.
	class string
	// node is the node to set as selected node.
	node string
	// phase is the new phase; empty: unchanged.
	phase corev1.PersistentVolumeClaimPhase
	// provisioner is the external provisioner of the volume.
	provisioner string
	event       *claimEvent
}

func planClaim(v claimView) (claimPlan, error) {
	if _, done := v.claim.Annotations[volume.AnnBindCompleted]; done {
		return planBound(v), nil
	}
	if v.claim.Spec.VolumeName != "" {
		return planWithVolumeName(v)
	}
	return planUnbound(v)
}

// planBound: a claim that was bound once keeps its volume, or is Lost.
func planBound(v claimView) claimPlan {
	lost := func(reason, message string) claimPlan {
		p := claimPlan{phase: corev1.ClaimLost}
		if v.claim.Status.Phase != corev1.ClaimLost {
			p.event = warning(reason, "%s", message)
		}
		return p
	}
	switch {
	case v.claim.Spec.VolumeName == "":
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case v.namedVolume == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.namedVolume.Spec.ClaimRef != nil && v.namedVolume.Spec.ClaimRef.UID != v.claim.UID:
		return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return claimPlan{bind: v.namedVolume}
}

// planWithVolumeName: the claim has a volumeName.
func planWithVolumeName(v claimView) (claimPlan, error) {
	pending := claimPlan{phase: corev1.ClaimPending}
	switch {
	case v.namedVolume == nil:
		return pending, nil
	case v.namedVolume.Spec.ClaimRef == nil:
		if err := satisfies(v.namedVolume, v.claim); err != nil {
			pending.event = warning("VolumeMismatch", "Cannot bind to requested volume %q: %s", v.namedVolume.Name, err)
			return pending, nil
		}
		return claimPlan{bind: v.namedVolume}, nil
	case volume.IsVolumeBoundToClaim(v.namedVolume, v.claim):
		return claimPlan{bind: v.namedVolume}, nil
	}
	if _, ours := v.claim.Annotations[volume.AnnBoundByController]; ours {
		ref := v.namedVolume.Spec.ClaimRef
		return claimPlan{}, fmt.Errorf("invalid binding of claim %s/%s to volume %s: volume already claimed by %s/%s",
			v.claim.Namespace, v.claim.Name, v.namedVolume.Name, ref.Namespace, ref.Name)
	}
	pending.event = warning("FailedBinding", "volume %q already bound to a different claim.", v.namedVolume.Name)
	return pending, nil
}

func planUnbound(v claimView) (claimPlan, error) {
	late := isDelayedBinding(v.class)
	found, err := v.match(late)
	switch {
	case err != nil:
		return claimPlan{}, err
	case found != nil:
		return claimPlan{bind: found}, nil
	case !volume.PersistentVolumeClaimHasClass(v.claim) && v.defaultClass != nil:
		return claimPlan{class: v.defaultClass.Name}, nil
	case late && !volume.IsDelayBindingProvisioning(v.claim) && v.scheduledNode != "" &&
		v.claim.DeletionTimestamp == nil && !strings.HasPrefix(v.class.Provisioner, "kubernetes.io/"):
		// The scheduler does not handle that pod any more: its claim was replaced after it was bound, or it has another
		// binder.
		return claimPlan{node: v.scheduledNode}, nil
	case late && !volume.IsDelayBindingProvisioning(v.claim):
		return claimPlan{phase: corev1.ClaimPending, event: waitForFirstConsumer(v.unscheduledPods)}, nil
	case volume.GetPersistentVolumeClaimClass(v.claim) == "":
		return claimPlan{
			phase: corev1.ClaimPending,
			event: normal("FailedBinding",
				"no persistent volumes available for this claim and no storage class is set"),
		}, nil
	}
	return planProvisioning(v), nil
}

// isDelayedBinding reports whether the class has the binding mode WaitForFirstConsumer.
func isDelayedBinding(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil &&
		*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

func waitForFirstConsumer(pods []string) *claimEvent {
	switch len(pods) {
	case 0:
		return normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	case 1:
		return normal("WaitForPodScheduled", "waiting for pod %s to be scheduled", pods[0])
	}
	return normal("WaitForPodScheduled", "waiting for pods %s to be scheduled", strings.Join(pods, ","))
}

// planProvisioning requests a volume from the class's provisioner.
func planProvisioning(v claimView) claimPlan {
	p := claimPlan{phase: corev1.ClaimPending}
	switch name := volume.GetPersistentVolumeClaimClass(v.claim); {
	case v.class == nil:
		p.event = warning("ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name)
	case strings.HasPrefix(v.class.Provisioner, "kubernetes.io/"): // all in-tree plugins with this prefix were removed
		p.event = warning("ProvisioningFailed", "no volume plugin matched name: %s", v.class.Provisioner)
	default:
		p.provisioner = v.class.Provisioner
		p.event = normal("ExternalProvisioning",
			"Waiting for a volume to be created either by the external provisioner '%s' or manually by the "+
				"system administrator. If volume creation is delayed, please verify that the provisioner is running "+
				"and "+
				"correctly registered.", p.provisioner)
	}
	return p
}

// satisfies is why a volume in spec.volumeName does not fit the claim.
func satisfies(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	have := pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return fmt.Errorf("the volume is marked for deletion %q", pv.Name)
	case have.Cmp(want) < 0:
		return errors.New("requested PV is too small")
	case volume.GetPersistentVolumeClass(pv) != volume.GetPersistentVolumeClaimClass(claim):
		return errors.New("storageClassName does not match")
	case volume.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec):
		return errors.New("incompatible volumeMode")
	case !volume.CheckAccessModes(claim, pv):
		return errors.New("incompatible accessMode")
	case deref(claim.Spec.VolumeAttributesClassName) != deref(pv.Spec.VolumeAttributesClassName):
		return errors.New("VolumeAttributesClass does not match")
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// volumePlan is the decision about a volume.
type volumePlan struct {
	phase corev1.PersistentVolumePhase // empty: unchanged
	// message is status.message with the new phase.
	message string
	// unbind removes the claimRef, or only its UID if a user set it; the volume is then Available.
	unbind bool
	// claim requeues the volume's claim, which is not bound to the volume yet.
	claim bool
	event *claimEvent
}

// planVolume decides about a volume; claim is the one in its claimRef, nil if it does not exist.
func planVolume(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) volumePlan {
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil, ref.UID == "":
		return volumePlan{phase: corev1.VolumeAvailable, claim: claim != nil}
	case claim == nil, claim.UID != ref.UID:
		return planReleased(pv)
	case claim.Spec.VolumeName == pv.Name:
		return volumePlan{phase: corev1.VolumeBound}
	case claim.Spec.VolumeName == "":
		return volumePlan{claim: true}
	}
	_, provisioned := pv.Annotations[volume.AnnDynamicallyProvisioned]
	if provisioned && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return planReleased(pv) // provisioned for the claim, which has another volume
	}
	return volumePlan{unbind: true}
}

// planReleased: the claim was deleted. The phase Failed stays.
func planReleased(pv *corev1.PersistentVolume) volumePlan {
	released := volumePlan{phase: corev1.VolumeReleased}
	if pv.Status.Phase == corev1.VolumeFailed {
		released.phase = ""
	}
	failed := func(reason, message string) volumePlan {
		p := volumePlan{phase: corev1.VolumeFailed, message: message}
		if pv.Status.Phase != corev1.VolumeFailed {
			p.event = warning(reason, "%s", message)
		}
		return p
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return released
	case corev1.PersistentVolumeReclaimDelete:
		if by, provisioned := pv.Annotations[volume.AnnDynamicallyProvisioned]; provisioned && !strings.HasPrefix(by,
			"kubernetes.io/") ||
			pv.Annotations[volume.AnnMigratedTo] != "" {
			return released // the external provisioner deletes it
		}
		return failed("VolumeFailedDelete",
			fmt.Sprintf("error getting deleter volume plugin for volume %q: no volume plugin matched", pv.Name))
	case corev1.PersistentVolumeReclaimRecycle:
		return failed("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	}
	return failed("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}
