// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func TestNamespaceLifecycle(t *testing.T) {
	now := metav1.Now()
	lifecycle := namespaceLifecycle{admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{admission.Namespaces: {
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dying", DeletionTimestamp: &now}},
	}})}
	in := func(ns string, op admission.Operation) error {
		r := admissiontest.Creation(admissiontest.Pod())
		r.Namespace = ns
		r.Operation = op
		return lifecycle.Admit(t.Context(), r)
	}
	if err := in("dev", admission.Create); err != nil {
		t.Errorf("create in dev: %v", err)
	}
	if err := in("nowhere", admission.Create); !apierrors.IsNotFound(err) {
		t.Errorf("create in a namespace that is not there: got %v, want 404", err)
	}
	err := in("dying", admission.Create)
	admissiontest.WantForbidden(t, "create in a dying namespace", err,
		"unable to create new content in namespace dying because it is being terminated")
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no NamespaceTerminating cause in %v", err)
	}
	if err := in("dying", admission.Update); err != nil {
		t.Errorf("update in a dying namespace: %v", err)
	}
	if err := in("nowhere", admission.Update); err != nil {
		t.Errorf("update of what is left of a namespace that is gone: %v", err)
	}
	del := &admission.Request{Operation: admission.Delete, Resource: admission.Namespaces, Name: "kube-system"}
	admissiontest.WantForbidden(t, "delete kube-system", lifecycle.Admit(t.Context(), del), "this namespace may not be deleted")
}

func TestServiceAccountMountsToken(t *testing.T) {
	serviceAccount := serviceAccount{Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{admission.ServiceAccounts: {
		&corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "dev",
				Name:      "default",
			},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "regcred"}},
		},
	}})}
	obj := admissiontest.Pod(corev1.Container{Name: "a"}, corev1.Container{
		Name:         "own",
		VolumeMounts: []corev1.VolumeMount{{Name: "x", MountPath: tokenMountPath}},
	})
	req := admissiontest.Creation(obj)
	if err := serviceAccount.Admit(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if obj.Spec.ServiceAccountName != "default" || obj.Spec.DeprecatedServiceAccount != "default" {
		t.Errorf("account: got %q and %q", obj.Spec.ServiceAccountName, obj.Spec.DeprecatedServiceAccount)
	}
	if len(obj.Spec.ImagePullSecrets) != 1 || obj.Spec.ImagePullSecrets[0].Name != "regcred" {
		t.Errorf("pull secrets: got %v", obj.Spec.ImagePullSecrets)
	}
	if len(obj.Spec.Volumes) != 1 || len(obj.Spec.Volumes[0].Projected.Sources) != 3 {
		t.Fatalf("volumes: got %+v", obj.Spec.Volumes)
	}
	if m := obj.Spec.Containers[0].VolumeMounts; len(m) != 1 || m[0].Name != obj.Spec.Volumes[0].Name ||
		m[0].MountPath != tokenMountPath {
		t.Errorf("mounts of a: got %+v", m)
	}
	if m := obj.Spec.Containers[1].VolumeMounts; len(m) != 1 {
		t.Errorf("mounts of the container with its own: got %+v", m)
	}
	if err := serviceAccount.Validate(t.Context(), req); err != nil {
		t.Errorf("Validate: %v", err)
	}
	out := admissiontest.Pod()
	no := false
	out.Spec.AutomountServiceAccountToken = &no
	if err := serviceAccount.Admit(t.Context(), admissiontest.Creation(out)); err != nil || len(out.Spec.Volumes) != 0 {
		t.Errorf("opted out: got volumes %v, %v", out.Spec.Volumes, err)
	}
	gone := admissiontest.Pod()
	gone.Spec.ServiceAccountName = "gone"
	admissiontest.WantForbidden(t, "account that is not there", serviceAccount.Admit(t.Context(), admissiontest.Creation(gone)),
		`error looking up service account dev/gone: serviceaccount "gone" not found`)
}

func TestServiceAccountWaitsForTheDefaultOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admissiontest.Reader{}
		begin := time.Now()
		err := serviceAccount{Reader: c}.Admit(t.Context(), admissiontest.Creation(admissiontest.Pod()))
		admissiontest.WantForbidden(t, "no default account", err, "error looking up service account dev/default")
		if took := time.Since(begin); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("gave up after %s, want about five seconds", took)
		}
	})
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	priority := priority{admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{priorityClasses: {
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000, PreemptionPolicy: &never},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 5, GlobalDefault: true},
	}})}
	high := admissiontest.Pod()
	high.Spec.PriorityClassName = "high"
	if err := priority.Admit(t.Context(), admissiontest.Creation(high)); err != nil || *high.Spec.Priority != 1000 ||
		*high.Spec.PreemptionPolicy != never {
		t.Errorf("high: got %v %v, %v", high.Spec.Priority, high.Spec.PreemptionPolicy, err)
	}
	plain := admissiontest.Pod()
	if err := priority.Admit(t.Context(), admissiontest.Creation(plain)); err != nil || *plain.Spec.Priority != 5 ||
		plain.Spec.PriorityClassName != "usual" {
		t.Errorf("default class: got %v %q, %v", plain.Spec.Priority, plain.Spec.PriorityClassName, err)
	}
	gone := admissiontest.Pod()
	gone.Spec.PriorityClassName = "gone"
	admissiontest.WantForbidden(t, "unknown class", priority.Admit(t.Context(), admissiontest.Creation(gone)),
		"no PriorityClass with name gone was found")
	own := admissiontest.Pod()
	seven := int32(7)
	own.Spec.Priority = &seven
	admissiontest.WantForbidden(t, "own priority", priority.Admit(t.Context(), admissiontest.Creation(own)),
		"the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 5")
	second := &admission.Request{
		Operation: admission.Create,
		Resource:  priorityClasses,
		Name:      "second",
		Object:    &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "second"}, GlobalDefault: true},
	}
	admissiontest.WantForbidden(t, "second default", priority.Validate(t.Context(), second),
		"PriorityClass usual is already marked as default")
}

func TestTolerationsAndTaints(t *testing.T) {
	obj := admissiontest.Pod()
	obj.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}
	for range 2 { // twice changes nothing more
		if err := (defaultTolerationSeconds{}).Admit(t.Context(), admissiontest.Creation(obj)); err != nil {
			t.Fatal(err)
		}
	}
	if len(obj.Spec.Tolerations) != 2 || obj.Spec.Tolerations[1].Key != corev1.TaintNodeUnreachable ||
		*obj.Spec.Tolerations[1].TolerationSeconds != 300 {
		t.Errorf("tolerations: got %+v", obj.Spec.Tolerations)
	}
	node := &corev1.Node{}
	r := &admission.Request{Operation: admission.Create, Object: node}
	for range 2 {
		if err := (taintNodesByCondition{}).Admit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("taints: got %+v", node.Spec.Taints)
	}
}

func TestLimitRanger(t *testing.T) {
	limitRanger := limitRanger{
		admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{limitRanges: {&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "l"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type:           corev1.LimitTypeContainer,
				Default:        admissiontest.Quantities("cpu", "500m"),
				DefaultRequest: admissiontest.Quantities("cpu", "100m", "memory", "64Mi"),
				Max:            admissiontest.Quantities("cpu", "1"),
				Min:            admissiontest.Quantities("memory", "32Mi"),
			}}},
		}}}),
	}
	obj := admissiontest.Pod()
	if err := limitRanger.Admit(t.Context(), admissiontest.Creation(obj)); err != nil {
		t.Fatal(err)
	}
	c := obj.Spec.Containers[0].Resources
	if c.Requests.Cpu().String() != "100m" || c.Requests.Memory().String() != "64Mi" ||
		c.Limits.Cpu().String() != "500m" {
		t.Errorf("defaults: got %+v", c)
	}
	want := "LimitRanger plugin set: cpu, memory request for container main; cpu limit for container main"
	if got := obj.Annotations["kubernetes.io/limit-ranger"]; got != want {
		t.Errorf("annotation: got %q, want %q", got, want)
	}
	if err := limitRanger.Validate(t.Context(), admissiontest.Creation(obj)); err != nil {
		t.Errorf("within bounds: %v", err)
	}
	bad := admissiontest.Pod(corev1.Container{
		Name: "main",
		Resources: corev1.ResourceRequirements{
			Requests: admissiontest.Quantities("cpu", "1", "memory", "16Mi"),
			Limits:   admissiontest.Quantities("cpu", "2"),
		},
	})
	admissiontest.WantForbidden(t, "outside", limitRanger.Validate(t.Context(), admissiontest.Creation(bad)),
		"[minimum memory usage per Container is 32Mi, but request is 16Mi, maximum cpu usage per Container is 1, but "+
			"limit is 2]")
}
