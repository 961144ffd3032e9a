// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/auth"
)

// stored are objects by resource and name.
type stored map[string]runtime.Object

func (s stored) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	if o := s[gvr.Resource+"/"+name]; o != nil {
		return o, nil
	}
	return nil, errors.New("none")
}

// TestSecretsOfVolumes: a kubelet reads the Secrets that its drivers are given, of volumes that pods on it have.
func TestSecretsOfVolumes(t *testing.T) {
	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "vault", Name: name}
	}
	volume := func(claimUID string) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{UID: "c-uid"}},
		}
		pv.Spec.ClaimRef.UID = "c-uid"
		if claimUID != "" {
			pv.Spec.ClaimRef.UID = "other"
		}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			NodeStageSecretRef:         ref("stage"),
			NodePublishSecretRef:       ref("publish"),
			NodeExpandSecretRef:        ref("expand"),
			ControllerPublishSecretRef: ref("controller"),
			ControllerExpandSecretRef:  ref("controller"),
		}
		return pv
	}
	claim := func(v string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{UID: "c-uid"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: v},
		}
	}
	pods := []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{
				Name: "a",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: "data",
				}},
			},
			{
				Name: "b",
				VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
					Driver:               "d",
					NodePublishSecretRef: &corev1.LocalObjectReference{Name: "inline"},
				}},
			},
		}},
	}}
	decide := func(objects stored, namespace, name string) bool {
		t.Helper()
		n := Node{
			Pods: func(node string) []*corev1.Pod {
				if node == "node-1" {
					return pods
				}
				return nil
			},
			Objects: objects,
		}
		decision, err := n.Authorize(t.Context(), &auth.Attributes{
			User:            &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}},
			ResourceRequest: true,
			Verb:            "get",
			Resource:        "secrets",
			Namespace:       namespace,
			Name:            name,
		})
		if err != nil {
			t.Fatal(err)
		}
		return decision.Verdict == auth.Allow
	}
	bound := stored{"persistentvolumeclaims/data": claim("pv"), "persistentvolumes/pv": volume("")}
	for name, want := range map[string]bool{
		"stage":      true,
		"publish":    true,
		"expand":     true,
		"controller": false,
		"other":      false,
	} {
		if got := decide(bound, "vault", name); got != want {
			t.Errorf("secret %s: got %v", name, got)
		}
	}
	if !decide(nil, "default", "inline") || decide(nil, "vault", "inline") {
		t.Error("the secret of a volume in the pod")
	}
	for what, objects := range map[string]stored{
		"no claim":  {},
		"not bound": {"persistentvolumeclaims/data": claim("")},
		"no volume": {"persistentvolumeclaims/data": claim("pv")},
		"a volume that is another's": {
			"persistentvolumeclaims/data": claim("pv"),
			"persistentvolumes/pv":        volume("other"),
		},
	} {
		if decide(objects, "vault", "stage") {
			t.Errorf("%s: it may read the secret", what)
		}
	}
}
