// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

func gpuNode(name string) []runtime.Object {
	return []runtime.Object{schedtest.Node(name), &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   "gpu.example.com",
			NodeName: &name,
			Pool:     resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1},
			Devices:  []resourcev1.Device{{Name: "gpu-0"}},
		},
	}}
}

// askedOf is asked of a server with devices, about a manifest and nodes that are drained.
func askedOf(t *testing.T, objs []runtime.Object, manifest string, drain ...string) string {
	t.Helper()
	c := clienttest.New(objs...)
	schedtest.ServeDevices(c)
	wanted, err := whatif.ReadManifest(strings.NewReader(manifest), "")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := whatif.Ask(t.Context(), whatif.Config{
		Client: &client.Client{
			Interface: client.Plain(c),
		},
		Parallelism: 1,
	}, &whatif.Question{Manifest: wanted, Drain: drain})
	if err != nil {
		t.Fatal(err)
	}
	return inWords(answer)
}

// TestWhatIfDevices: pods of a manifest get devices by claims and templates of the manifest or the cluster, each device
// once.
func TestWhatIfDevices(t *testing.T) {
	const request = "{devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}"
	template := withSpec("resource.k8s.io/v1", "ResourceClaimTemplate", "one", "{spec: "+request+"}")
	pod := func(name, claim string) string {
		return withSpec("v1", "Pod", name, "{containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}], "+
			"resourceClaims: [{name: gpu, "+claim+"}]}")
	}
	const no = "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: 1 " +
		"Preemption is not helpful for scheduling."
	own := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "own",
		},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: schedtest.GPU("x").Spec},
	}
	objs := append(gpuNode("a"), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, own)
	for _, tt := range []struct{ what, manifest, want string }{
		{"template", pod("p", "resourceClaimTemplateName: one") + template, "p: new -> a"},
		{"template of the cluster", pod("p", "resourceClaimTemplateName: own"), "p: new -> a"},
		{
			"each has its own claim", pod("p", "resourceClaimTemplateName: one") + pod("q",
				"resourceClaimTemplateName: one") + template, "p: new -> a\nq: new -> " + no,
		},
		{
			"one claim for two", pod("p", "resourceClaimName: c") + pod("q", "resourceClaimName: c") + withSpec(
				"resource.k8s.io/v1", "ResourceClaim", "c", request), "p: new -> a\nq: new -> a",
		},
		{
			"no template", pod("p", "resourceClaimTemplateName: two"),
			"p: new -> 0/1 nodes are available: waiting for the resource claim controller to make the claim \"gpu\". " +
				"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.\n" +
				"no claims are made by the template default/two: resourceclaimtemplates.resource.k8s.io \"two\" not " +
				"found",
		},
	} {
		if got := askedOf(t, objs, tt.manifest); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.what, got, tt.want)
		}
	}
}

// TestWhatIfRenewsClaims: a pod that leaves its node leaves the devices and the volume that were made for it, and gets
// others elsewhere.
func TestWhatIfRenewsClaims(t *testing.T) {
	name := "p-gpu"
	class := "local"
	pod := schedtest.Pod("p", schedtest.On("a"),
		schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: new("one")}), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: new(true)}}
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
			p.Spec.Volumes = []corev1.Volume{
				{
					Name: "v",
					VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
						VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{},
					}},
				},
			}
		})
	owner := []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	claim := schedtest.GPU(name)
	claim.OwnerReferences = owner
	claim.Status = resourcev1.ResourceClaimStatus{
		Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: "gpu",
				Driver:  "gpu.example.com",
				Pool:    "a",
				Device:  "gpu-0",
			}}},
			NodeSelector: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				}}},
			},
		},
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: pod.UID}},
	}
	volume := func(node string) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: class,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:         corev1.ResourceList{corev1.ResourceStorage: schedtest.Quantity("1Gi")},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
					}}},
				}},
			},
		}
		pv.Status.Phase = corev1.VolumeAvailable
		return pv
	}
	bound := volume("a")
	bound.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "p-v", UID: "p-v"}
	disk := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       "default",
			Name:            "p-v",
			UID:             "p-v",
			OwnerReferences: owner,
			Annotations:     map[string]string{"pv.kubernetes.io/bind-completed": "yes"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			VolumeName:       "on-a",
			AccessModes:      bound.Spec.AccessModes,
			Resources:        corev1.VolumeResourceRequirements{Requests: bound.Spec.Capacity},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	late := storagev1.VolumeBindingWaitForFirstConsumer
	objs := append(append(gpuNode("a"), gpuNode("b")...),
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, pod, claim, disk, bound, volume("b"),
		&storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: class},
			Provisioner:       "kubernetes.io/no-provisioner",
			VolumeBindingMode: &late,
		})
	if got, want := askedOf(t, objs, "", "a"), "p: leaves a -> b"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
