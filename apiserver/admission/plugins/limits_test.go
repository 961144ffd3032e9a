// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

func quantities(text string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for pair := range strings.FieldsSeq(text) {
		name, amount, _ := strings.Cut(pair, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return out
}

func sameAmounts(a, b corev1.ResourceList) bool {
	for name, amount := range b {
		if got, ok := a[name]; !ok || got.Cmp(amount) != 0 {
			return false
		}
	}
	return len(a) == len(b)
}

// TestLimitRange: a namespace's limits fill in what pods leave out, refuse what is outside of them, and end with the
// limit range.
func TestLimitRange(t *testing.T) {
	clientset := servertest.StartAdmitting(t).Clients(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, clientset, "dev", nil)
	ranges := clientset.CoreV1().LimitRanges("dev")
	lr, err := ranges.Create(ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "limits", Labels: map[string]string{"set": "mine"}},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
			{
				Type:           corev1.LimitTypeContainer,
				Min:            quantities("cpu=50m memory=100Mi ephemeral-storage=100Gi"),
				Max:            quantities("cpu=500m memory=500Mi ephemeral-storage=500Gi"),
				Default:        quantities("cpu=500m memory=500Mi ephemeral-storage=500Gi"),
				DefaultRequest: quantities("cpu=100m memory=200Mi ephemeral-storage=200Gi"),
			},
			{
				Type: corev1.LimitTypePersistentVolumeClaim,
				Min:  quantities("storage=1Gi"),
				Max:  quantities("storage=2Gi"),
			},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create := func(name, requests, limits string) (corev1.ResourceRequirements, error) {
		p := servertest.PodIn("dev", name)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: quantities(requests),
			Limits:   quantities(limits),
		}
		made, err := clientset.CoreV1().Pods("dev").Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return corev1.ResourceRequirements{}, err
		}
		return made.Spec.Containers[0].Resources, nil
	}
	waittest.Right(t, "the limits", func() string {
		if _, err := create("probe", "cpu=10m", ""); err == nil {
			// it was made too early
			_ = clientset.CoreV1().Pods("dev").Delete(ctx, "probe", *metav1.NewDeleteOptions(0))
			return "they do not hold"
		}
		return ""
	})
	for _, tt := range []struct{ name, requests, limits, wantRequests, wantLimits string }{
		{
			"nothing", "", "", "cpu=100m memory=200Mi ephemeral-storage=200Gi",
			"cpu=500m memory=500Mi ephemeral-storage=500Gi",
		},
		{
			"some", "cpu=150m memory=150Mi ephemeral-storage=150Gi", "cpu=300m",
			"cpu=150m memory=150Mi ephemeral-storage=150Gi", "cpu=300m memory=500Mi ephemeral-storage=500Gi",
		},
		{
			"both", "memory=150Mi ephemeral-storage=150Gi", "cpu=300m",
			"cpu=300m memory=150Mi ephemeral-storage=150Gi", "cpu=300m memory=500Mi ephemeral-storage=500Gi",
		},
		{
			"limits", "", "cpu=300m", "cpu=300m memory=200Mi ephemeral-storage=200Gi",
			"cpu=300m memory=500Mi ephemeral-storage=500Gi",
		},
	} {
		got, err := create(tt.name, tt.requests, tt.limits)
		if err != nil || !sameAmounts(got.Requests, quantities(tt.wantRequests)) ||
			!sameAmounts(got.Limits, quantities(tt.wantLimits)) {
			t.Errorf("%s: got %v, %v, want requests %s, limits %s", tt.name, got, err, tt.wantRequests, tt.wantLimits)
		}
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	_, err = create("small", "cpu=10m memory=50Mi ephemeral-storage=50Gi", "")
	refused("less than the least", err, "minimum cpu usage per Container is 50m, but request is 10m")
	_, err = create("big", "cpu=600m memory=600Mi ephemeral-storage=600Gi", "")
	if err == nil {
		t.Error("more than the most was accepted")
	}
	_, err = create("big", "cpu=100m", "cpu=600m")
	refused("more than the most", err, "maximum cpu usage per Container is 500m, but limit is 600m")
	claim := func(size string) error {
		none := ""
		_, err := clientset.CoreV1().PersistentVolumeClaims("dev").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &none,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:        corev1.VolumeResourceRequirements{Requests: quantities("storage=" + size)},
			},
		}, metav1.CreateOptions{})
		return err
	}
	refused("small claim", claim("500Mi"),
		"minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi")
	refused("big claim", claim("3Gi"), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi")
	if err := claim("1Gi"); err != nil {
		t.Error(err)
	}
	lr.Spec.Limits[0].Min = quantities("cpu=9m memory=49Mi ephemeral-storage=49Gi")
	if _, err := ranges.Update(ctx, lr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the lower limits", func() string {
		if _, err := create("small", "cpu=10m memory=50Mi ephemeral-storage=50Gi", ""); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, err := ranges.Patch(ctx, "limits", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := clientset.CoreV1().LimitRanges("").List(ctx, metav1.ListOptions{LabelSelector: "patched=yes"})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("list of all namespaces: %d, %v", len(all.Items), err)
	}
	if err := ranges.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "set=mine"}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the end of the limits", func() string {
		got, err := create("huge", "cpu=600m memory=600Mi", "")
		if err != nil {
			return err.Error()
		}
		if len(got.Limits) != 0 {
			t.Errorf("limits were filled in: %v", got.Limits)
		}
		return ""
	})
}

// TestLimitRangesByCollection: they are listed over all namespaces, patched with the defaulted spec that was read,
// watched, and deleted by label in one namespace alone.
func TestLimitRangesByCollection(t *testing.T) {
	clientset := servertest.StartAdmitting(t).Clients(t)
	ctx := t.Context()
	newMin := quantities("cpu=9m memory=49Mi ephemeral-storage=49Gi")
	made := map[string]*corev1.LimitRange{}
	seen, err := clientset.CoreV1().LimitRanges("one").Watch(ctx, metav1.ListOptions{LabelSelector: "e2e-test=limits"})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	for _, ns := range []string{"one", "two"} {
		servertest.MakeNamespace(t, clientset, ns, nil)
		made[ns], err = clientset.CoreV1().LimitRanges(ns).Create(ctx, &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "limits",
				Labels: map[string]string{"e2e-test": "limits", "limits": "created"},
			},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type:           corev1.LimitTypeContainer,
				Min:            quantities("cpu=50m memory=100Mi"),
				Max:            quantities("cpu=500m memory=500Mi"),
				Default:        quantities("cpu=500m memory=500Mi"),
				DefaultRequest: quantities("cpu=100m memory=200Mi"),
			}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if e := <-seen.ResultChan(); e.Type != watch.Added {
		t.Errorf("the first event is %s, want %s", e.Type, watch.Added)
	}
	count := func(selector string) int {
		all, err := clientset.CoreV1().LimitRanges("").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	if n := count("e2e-test=limits"); n != 2 {
		t.Errorf("%d in all namespaces, want 2", n)
	}
	lr := made["one"]
	lr.Spec.Limits[0].Min = newMin
	patch, err := json.Marshal(&corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: lr.CreationTimestamp,
			Labels:            map[string]string{"limits": "patched"},
		},
		Spec: lr.Spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	patched, err := clientset.CoreV1().LimitRanges("one").Patch(ctx, "limits", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil || patched.Labels["limits"] != "patched" || !sameAmounts(patched.Spec.Limits[0].Min, newMin) ||
		patched.ResourceVersion == lr.ResourceVersion {
		t.Errorf("patched: %+v, %v", patched, err)
	}
	if err := clientset.CoreV1().LimitRanges("one").DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "limits=patched"}); err != nil {
		t.Fatal(err)
	}
	if gone, left := count("limits=patched"), count("e2e-test=limits"); gone != 0 || left != 1 {
		t.Errorf("%d patched and %d in all are left, want 0 and 1", gone, left)
	}
}

// TestClassesAtAdmission: runtime, priority and storage classes are looked up when an object that names them is made.
func TestClassesAtAdmission(t *testing.T) {
	c := servertest.StartAdmitting(t).Clients(t)
	servertest.MakeNamespace(t, c, "dev", nil)
	t.Run("runtime", func(t *testing.T) { runtimeClasses(t, c) })
	t.Run("priority", func(t *testing.T) { priorityClasses(t, c) })
	t.Run("storage", func(t *testing.T) { storageClasses(t, c) })
}

func runtimeClasses(t *testing.T, cs kubernetes.Interface) {
	ctx := t.Context()
	class := func(name string) *corev1.Pod {
		p := servertest.PodIn("dev", "")
		p.GenerateName = "p-"
		p.Spec.RuntimeClassName = &name
		return p
	}
	_, err := cs.CoreV1().Pods("dev").Create(ctx, class("none"), metav1.CreateOptions{})
	if want := `pod rejected: RuntimeClass "none" not found`; !apierrors.IsForbidden(err) ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("a class that is not there: got %v, want %s", err, want)
	}
	if _, err := cs.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "heavy"},
		Handler:    "h",
		Overhead:   &nodev1.Overhead{PodFixed: quantities("cpu=10m memory=1Mi")},
		Scheduling: &nodev1.Scheduling{
			NodeSelector: map[string]string{
				"sandbox": "yes",
			},
			Tolerations: []corev1.Toleration{{Key: "sandbox", Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "a pod of the class", func() string {
		p, err := cs.CoreV1().Pods("dev").Create(ctx, class("heavy"), metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		if !sameAmounts(p.Spec.Overhead, quantities("cpu=10m memory=1Mi")) ||
			p.Spec.NodeSelector["sandbox"] != "yes" || len(p.Spec.Tolerations) < 1 {
			t.Errorf("got overhead %v, selector %v, tolerations %v", p.Spec.Overhead, p.Spec.NodeSelector,
				p.Spec.Tolerations)
		}
		return ""
	})
	if err := cs.NodeV1().RuntimeClasses().Delete(ctx, "heavy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the class's end", func() string {
		if _, err := cs.CoreV1().Pods("dev").Create(ctx, class("heavy"), metav1.CreateOptions{}); err == nil ||
			!strings.HasSuffix(err.Error(), `RuntimeClass "heavy" not found`) {
			return "pods of it are made"
		}
		return ""
	})
}

func priorityClasses(t *testing.T, cs kubernetes.Interface) {
	ctx := t.Context()
	never := corev1.PreemptNever
	pod := func(class string) (*corev1.Pod, error) {
		p := servertest.PodIn("dev", "")
		p.GenerateName = "p-"
		p.Spec.PriorityClassName = class
		return cs.CoreV1().Pods("dev").Create(ctx, p, metav1.CreateOptions{})
	}
	if _, err := pod("none"); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "no PriorityClass with name none was found") {
		t.Errorf("a class that is not there: got %v", err)
	}
	if p, err := pod(""); err != nil || p.Spec.Priority == nil || *p.Spec.Priority != 0 {
		t.Errorf("no class: got %v, %v", p.Spec.Priority, err)
	}
	put := func(pc *schedulingv1.PriorityClass) error {
		_, err := cs.SchedulingV1().PriorityClasses().Create(ctx, pc, metav1.CreateOptions{})
		return err
	}
	if err := put(&schedulingv1.PriorityClass{
		ObjectMeta:       metav1.ObjectMeta{Name: "usual"},
		Value:            7,
		GlobalDefault:    true,
		PreemptionPolicy: &never,
	}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the default class", func() string {
		p, err := pod("")
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec.PriorityClassName != "usual" || *p.Spec.Priority != 7 || p.Spec.PreemptionPolicy == nil ||
			*p.Spec.PreemptionPolicy != never {
			return "it is not taken"
		}
		return ""
	})
	err := put(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Value: 8, GlobalDefault: true})
	if !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "PriorityClass usual is already marked as default. Only one default can exist") {
		t.Errorf("a second default class: got %v", err)
	}
}

func storageClasses(t *testing.T, cs kubernetes.Interface) {
	ctx := t.Context()
	if _, err := cs.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "standard",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner: "example.com/p",
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := func() *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: quantities("storage=1Gi")},
			},
		}
	}
	var made *corev1.PersistentVolumeClaim
	waittest.Right(t, "the default class", func() string {
		var err error
		if made, err = cs.CoreV1().PersistentVolumeClaims("dev").Create(ctx, claim(),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if n := made.Spec.StorageClassName; n == nil || *n != "standard" {
			return "it is not taken"
		}
		return ""
	})
	_, err := cs.CoreV1().PersistentVolumeClaims("dev").Patch(ctx, made.Name, types.MergePatchType,
		[]byte(`{"status":{"phase":"Bound","capacity":{"storage":"1Gi"}}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	_, err = cs.CoreV1().PersistentVolumeClaims("dev").Patch(ctx, made.Name, types.MergePatchType,
		[]byte(`{"spec":{"volumeName":"v"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cs.CoreV1().PersistentVolumeClaims("dev").Patch(ctx, made.Name, types.MergePatchType,
		[]byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`), metav1.PatchOptions{})
	if want := "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must " +
		"support resize"; !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("growing a claim of a class that does not: got %v", err)
	}
}
