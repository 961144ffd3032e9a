// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

func testClaim(name string, edit ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, e := range edit {
		e(claim)
	}
	return claim
}

func ofClass(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func names(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func noted(annotation string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotation, "yes") }
}

func testVolume(name, size string, edit ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, e := range edit {
		e(pv)
	}
	return pv
}

func claimedBy(claim, uid string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "dev", Name: claim, UID: types.UID(uid)}
	}
}

func marked(annotation, value string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { metav1.SetMetaDataAnnotation(&v.ObjectMeta, annotation, value) }
}

func reclaimed(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
}

func testClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       provisioner,
		VolumeBindingMode: &mode,
	}
}

func TestPlanClaim(t *testing.T) {
	const late, now = storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	fits := testVolume("fits", "1Gi")
	none := func(bool) (*corev1.PersistentVolume, error) { return nil, nil }
	found := func(bool) (*corev1.PersistentVolume, error) { return fits, nil }
	for _, tt := range []struct {
		what                     string
		view                     claimView
		bind, class, maker, node string
		phase                    corev1.PersistentVolumeClaimPhase
		reason, message          string
		fails                    bool
	}{
		{what: "a volume fits", view: claimView{claim: testClaim("c"), match: found}, bind: "fits"},
		{
			what:    "no volume, no class",
			view:    claimView{claim: testClaim("c"), match: none},
			phase:   corev1.ClaimPending,
			reason:  "FailedBinding",
			message: "no persistent volumes available for this claim and no storage class is set",
		},
		{
			what:  "the default class comes late",
			class: "standard",
			view:  claimView{claim: testClaim("c"), match: none, defaultClass: testClass("standard", "x", now)},
		},
		{
			what: "no class wanted",
			view: claimView{
				claim:        testClaim("c", ofClass("")),
				match:        none,
				defaultClass: testClass("standard", "x", now),
			},
			phase:   corev1.ClaimPending,
			reason:  "FailedBinding",
			message: "no persistent volumes available for this claim and no storage class is set",
		},
		{
			what:    "class unknown",
			view:    claimView{claim: testClaim("c", ofClass("gold")), match: none},
			phase:   corev1.ClaimPending,
			reason:  "ProvisioningFailed",
			message: `storageclass.storage.k8s.io "gold" not found`,
		},
		{
			what: "provisioned from outside",
			view: claimView{
				claim: testClaim("c", ofClass("gold")),
				match: none,
				class: testClass("gold", "x.io/y", now),
			},
			phase:  corev1.ClaimPending,
			maker:  "x.io/y",
			reason: "ExternalProvisioning",
			message: "Waiting for a volume to be created either by the external provisioner 'x.io/y' or manually by " +
				"the system administrator. " +
				"If volume creation is delayed, please verify that the provisioner is running and correctly " +
				"registered.",
		},
		{
			what: "no provisioner",
			view: claimView{
				claim: testClaim("c", ofClass("l")),
				match: none,
				class: testClass("l", volume.NotSupportedProvisioner, now),
			},
			phase:   corev1.ClaimPending,
			reason:  "ProvisioningFailed",
			message: "no volume plugin matched name: kubernetes.io/no-provisioner",
		},
		{
			what:    "late",
			view:    claimView{claim: testClaim("c", ofClass("l")), match: none, class: testClass("l", "x", late)},
			phase:   corev1.ClaimPending,
			reason:  "WaitForFirstConsumer",
			message: "waiting for first consumer to be created before binding",
		},
		{
			what: "late, with a pod",
			view: claimView{
				claim:           testClaim("c", ofClass("l")),
				match:           none,
				class:           testClass("l", "x", late),
				unscheduledPods: []string{"p"},
			},
			phase:   corev1.ClaimPending,
			reason:  "WaitForPodScheduled",
			message: "waiting for pod p to be scheduled",
		},
		{
			what: "late, with a pod on a node",
			node: "n",
			view: claimView{
				claim:           testClaim("c", ofClass("l")),
				match:           none,
				class:           testClass("l", "x", late),
				unscheduledPods: []string{"p"},
				scheduledNode:   "n",
			},
		},
		{
			what: "late, with a pod on a node, and no provisioner",
			view: claimView{
				claim:         testClaim("c", ofClass("l")),
				match:         none,
				class:         testClass("l", volume.NotSupportedProvisioner, late),
				scheduledNode: "n",
			},
			phase:  corev1.ClaimPending,
			reason: "WaitForFirstConsumer",
		},
		{
			what: "late, with a node",
			view: claimView{
				claim: testClaim("c", ofClass("l"), noted(volume.AnnSelectedNode)),
				match: none,
				class: testClass("l", "x", late),
			},
			phase:  corev1.ClaimPending,
			maker:  "x",
			reason: "ExternalProvisioning",
		},
		{
			what:  "names a volume that is not there",
			view:  claimView{claim: testClaim("c", names("v"))},
			phase: corev1.ClaimPending,
		},
		{
			what: "names a free volume",
			view: claimView{claim: testClaim("c", names("v")), namedVolume: testVolume("v", "2Gi")},
			bind: "v",
		},
		{
			what:    "names one that is too small",
			view:    claimView{claim: testClaim("c", names("v")), namedVolume: testVolume("v", "1Mi")},
			phase:   corev1.ClaimPending,
			reason:  "VolumeMismatch",
			message: `Cannot bind to requested volume "v": requested PV is too small`,
		},
		{
			what:    "names one of another class",
			view:    claimView{claim: testClaim("c", names("v"), ofClass("gold")), namedVolume: testVolume("v", "1Gi")},
			phase:   corev1.ClaimPending,
			reason:  "VolumeMismatch",
			message: `Cannot bind to requested volume "v": storageClassName does not match`,
		},
		{
			what: "names one that is reserved for it",
			bind: "v",
			view: claimView{claim: testClaim("c", names("v")), namedVolume: testVolume("v", "1Mi", claimedBy("c", ""))},
		},
		{
			what: "names another's",
			view: claimView{
				claim:       testClaim("c", names("v")),
				namedVolume: testVolume("v", "1Gi", claimedBy("other", "o")),
			},
			phase:   corev1.ClaimPending,
			reason:  "FailedBinding",
			message: `volume "v" already bound to a different claim.`,
		},
		{
			what:  "was bound by us to another's",
			fails: true,
			view: claimView{
				claim:       testClaim("c", names("v"), noted(volume.AnnBoundByController)),
				namedVolume: testVolume("v", "1Gi", claimedBy("other", "o")),
			},
		},
		{
			what: "a namesake's volume",
			view: claimView{
				claim:       testClaim("c", names("v")),
				namedVolume: testVolume("v", "1Gi", claimedBy("c", "former")),
			},
			phase:  corev1.ClaimPending,
			reason: "FailedBinding",
		},
		{
			what: "bound",
			view: claimView{
				claim: testClaim("c", names("v"), noted(volume.AnnBindCompleted)),
				namedVolume: testVolume(
					"v", "1Gi", claimedBy("c", "uid-c")),
			},
			bind: "v",
		},
		{
			what: "bound, and the volume forgot",
			bind: "v",
			view: claimView{
				claim:       testClaim("c", names("v"), noted(volume.AnnBindCompleted)),
				namedVolume: testVolume("v", "1Gi"),
			},
		},
		{
			what:    "bound, volume gone",
			view:    claimView{claim: testClaim("c", names("v"), noted(volume.AnnBindCompleted))},
			phase:   corev1.ClaimLost,
			reason:  "ClaimLost",
			message: "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
		},
		{
			what:    "bound, name gone",
			view:    claimView{claim: testClaim("c", noted(volume.AnnBindCompleted))},
			phase:   corev1.ClaimLost,
			reason:  "ClaimLost",
			message: "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
		},
		{
			what:   "bound to another's",
			phase:  corev1.ClaimLost,
			reason: "ClaimMisbound",
			view: claimView{
				claim:       testClaim("c", names("v"), noted(volume.AnnBindCompleted)),
				namedVolume: testVolume("v", "1Gi", claimedBy("other", "o")),
			},
		},
	} {
		claimPlan, err := planClaim(tt.view)
		if (err != nil) != tt.fails {
			t.Errorf("%s: error %v", tt.what, err)
		}
		bind := ""
		reason := ""
		message := ""
		if claimPlan.bind != nil {
			bind = claimPlan.bind.Name
		}
		if claimPlan.event != nil {
			reason = claimPlan.event.reason
			message = claimPlan.event.message
		}
		if bind != tt.bind || claimPlan.class != tt.class || claimPlan.node != tt.node ||
			claimPlan.provisioner != tt.maker ||
			claimPlan.phase != tt.phase || reason != tt.reason ||
			tt.message != "" && message != tt.message {
			t.Errorf("%s: got bind %q class %q node %q provisioner %q phase %q event %s %q, want %+v", tt.what, bind,
				claimPlan.class, claimPlan.node, claimPlan.provisioner, claimPlan.phase, reason, message, tt)
		}
	}
}

func TestPlanVolume(t *testing.T) {
	del := corev1.PersistentVolumeReclaimDelete
	retain := corev1.PersistentVolumeReclaimRetain
	recycle := corev1.PersistentVolumeReclaimRecycle
	made := marked(volume.AnnDynamicallyProvisioned, "x.io/y")
	for _, tt := range []struct {
		what   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   volumePlan
		reason string
	}{
		{"free", testVolume("v", "1Gi"), nil, volumePlan{phase: corev1.VolumeAvailable}, ""},
		{"reserved", testVolume("v", "1Gi", claimedBy("c", "")), nil, volumePlan{phase: corev1.VolumeAvailable}, ""},
		{
			"reserved, and the claim is there", testVolume("v", "1Gi", claimedBy("c", "")), testClaim("c"), volumePlan{
				phase: corev1.VolumeAvailable,
				claim: true,
			}, "",
		},
		{"half bound", testVolume("v", "1Gi", claimedBy("c", "uid-c")), testClaim("c"), volumePlan{claim: true}, ""},
		{
			"bound", testVolume("v", "1Gi", claimedBy("c", "uid-c")), testClaim("c", names("v")), volumePlan{
				phase: corev1.VolumeBound,
			}, "",
		},
		{
			"the claim took another", testVolume("v", "1Gi", claimedBy("c", "uid-c")), testClaim("c", names("w")),
			volumePlan{unbind: true},
			"",
		},
		{
			"made for a claim that took another", testVolume("v", "1Gi", claimedBy("c", "uid-c"), made,
				reclaimed(del)), testClaim("c", names("w")),
			volumePlan{phase: corev1.VolumeReleased},
			"",
		},
		{
			"claim gone, retain", testVolume("v", "1Gi", claimedBy("c", "uid-c"), reclaimed(retain)), nil, volumePlan{
				phase: corev1.VolumeReleased,
			}, "",
		},
		{
			"a namesake", testVolume("v", "1Gi", claimedBy("c", "former"), reclaimed(retain)),
			testClaim("c", names("v")),
			volumePlan{phase: corev1.VolumeReleased},
			"",
		},
		{
			"claim gone, made elsewhere", testVolume("v", "1Gi", claimedBy("c", "uid-c"), made, reclaimed(del)), nil,
			volumePlan{phase: corev1.VolumeReleased},
			"",
		},
		{"claim gone, no deleter", testVolume("v", "1Gi", claimedBy("c", "uid-c"), reclaimed(del)), nil, volumePlan{
			phase:   corev1.VolumeFailed,
			message: `error getting deleter volume plugin for volume "v": no volume plugin matched`,
		}, "VolumeFailedDelete"},
		{
			"claim gone, no recycler", testVolume("v", "1Gi", claimedBy("c", "uid-c"), reclaimed(recycle)), nil,
			volumePlan{
				phase:   corev1.VolumeFailed,
				message: "No recycler plugin found for the volume!",
			},
			"VolumeFailedRecycle",
		},
	} {
		got := planVolume(tt.volume, tt.claim)
		reason := ""
		if got.event != nil {
			reason = got.event.reason
			got.event = nil
		}
		if got != tt.want || reason != tt.reason {
			t.Errorf("%s: got %+v %s, want %+v %s", tt.what, got, reason, tt.want, tt.reason)
		}
	}
}
