// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"keelson/api/kind"
	"keelson/api/scheme"
)

func kindOf(gvk schema.GroupVersionKind) *kind.Kind {
	return kind.Spec[kind.Object]{
		Names: kind.Names{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind},
		New: func() kind.Object {
			obj, err := scheme.Scheme.New(gvk)
			if err != nil {
				panic(err)
			}
			return obj.(kind.Object)
		},
	}.Erase()
}

var tracked = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Node"),
	corev1.SchemeGroupVersion.WithKind("Service"),
	corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Secret"),
	corev1.SchemeGroupVersion.WithKind("Event"),
	corev1.SchemeGroupVersion.WithKind("Namespace"), corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
	// kinds without a schema
	authenticationv1.SchemeGroupVersion.WithKind("TokenReview"),
	authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"),
	authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"),
	authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"),
	authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"),
}

// TestShortWayIsTheLongWay makes random objects, creates and updates them, and wants the same managedFields from both
// ways.
func TestShortWayIsTheLongWay(t *testing.T) {
	for _, gvk := range tracked {
		for _, sub := range []string{"", "status"} {
			t.Run(gvk.Kind+"/"+sub, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { bothWays(t, gvk, sub) })
			})
		}
	}
}

func bothWays(t *testing.T, gvk schema.GroupVersionKind, sub string) {
	t.Helper()
	reset := []string{"status"}
	if sub == "status" {
		reset = []string{"spec"}
	}
	short := 0
	tries := 0
	for seed := range int64(12) {
		m := New(kindOf(gvk), sub, reset)
		if err := m.build(); err != nil {
			t.Fatal(err)
		}
		fill := filler(seed)
		live := create(t, m, fill, gvk, &short)
		for step := range 6 {
			time.Sleep(time.Second)
			next, _ := live.DeepCopyObject().(kind.Object)
			if step%2 == 0 {
				change(fill, next)
			} else {
				fill.Fill(next)
				clean(next, gvk)
				next.SetManagedFields(live.GetManagedFields())
				next.SetUID(live.GetUID())
			}
			manager := fmt.Sprintf("m%d", step%3)
			a, _ := next.DeepCopyObject().(kind.Object)
			b, _ := next.DeepCopyObject().(kind.Object)
			tries++
			want := m.fields.UpdateNoErrors(live, a, manager).(kind.Object)
			if err := m.track(live, b, manager); err == nil {
				short++
				compareFields(t, seed, step, live, want, b)
			}
			live = want
		}
	}
	t.Logf("%d of %d the short way", short, tries)
	if short < tries/3 {
		t.Errorf("only %d of %d updates went the short way", short, tries)
	}
}

func create(
	t *testing.T, manager *Manager, fill *randfill.Filler, gvk schema.GroupVersionKind, short *int,
) kind.Object {
	t.Helper()
	obj := manager.kind.New()
	fill.Fill(obj)
	clean(obj, gvk)
	obj.SetUID("")
	a, _ := obj.DeepCopyObject().(kind.Object)
	b, _ := obj.DeepCopyObject().(kind.Object)
	empty := manager.kind.New()
	empty.GetObjectKind().SetGroupVersionKind(gvk)
	want := manager.fields.UpdateNoErrors(empty, a, "creator").(kind.Object)
	if err := manager.track(nil, b, "creator"); err == nil {
		*short++
		compareFields(t, -1, -1, empty, want, b)
	}
	want.SetUID("u")
	return want
}

func compareFields(t *testing.T, seed int64, step int, live, want, got kind.Object) {
	t.Helper()
	w := show(t, want)
	g := show(t, got)
	if diff := cmp.Diff(w, g); diff != "" {
		t.Fatalf("seed %d step %d: managedFields (-long +short):\n%s\nlive %s", seed, step, diff, show(t, live))
	}
}

func show(t *testing.T, obj kind.Object) string {
	t.Helper()
	b, err := json.MarshalIndent(obj.GetManagedFields(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func clean(obj kind.Object, gvk schema.GroupVersionKind) {
	n := 0
	plainStrings(reflect.ValueOf(obj), &n)
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	obj.SetManagedFields(nil)
	obj.SetResourceVersion("")
}

// plainStrings replaces the strings of named types, which the filler makes of any runes.
func plainStrings(value reflect.Value, n *int) {
	switch value.Kind() {
	case reflect.String:
		if s := value.String(); !writable(s) && !strings.Contains(s, "quoted") && value.CanSet() {
			*n++
			value.SetString(fmt.Sprintf("x%d", *n))
		}
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			plainStrings(value.Elem(), n)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				plainStrings(value.Field(i), n)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			plainStrings(value.Index(i), n)
		}
	case reflect.Map:
		if value.Type().Key().Kind() != reflect.String || value.IsNil() {
			return
		}
		out := reflect.MakeMap(value.Type())
		for it := value.MapRange(); it.Next(); {
			k := reflect.New(value.Type().Key()).Elem()
			e := reflect.New(value.Type().Elem()).Elem()
			k.Set(it.Key())
			e.Set(it.Value())
			plainStrings(k, n)
			plainStrings(e, n)
			out.SetMapIndex(k, e)
		}
		value.Set(out)
	}
}

// change alters a few things.
func change(fill *randfill.Filler, obj kind.Object) {
	labels := map[string]string{}
	fill.Fill(&labels)
	obj.SetLabels(labels)
	if p, ok := obj.(*corev1.Pod); ok {
		fill.Fill(&p.Status.Conditions)
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "extra"})
	}
}

// filler makes objects with names that are mostly unique, and values as the API has them.
func filler(seed int64) *randfill.Filler {
	n := 0
	return randfill.NewWithSeed(seed).NilChance(0.5).NumElements(1, 3).MaxDepth(12).Funcs(
		func(s *string, c randfill.Continue) {
			n++
			*s = fmt.Sprintf("s%d", n)
			if c.Intn(5000) == 0 {
				*s = `a "quoted" <value>`
			}
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(fmt.Sprintf("%dm", c.Intn(5000)))
		},
		func(q *intstr.IntOrString, c randfill.Continue) { *q = intstr.FromInt32(c.Int31n(100)) },
		func(q *metav1.Time, c randfill.Continue) {
			if c.Intn(3) > 0 {
				*q = metav1.Unix(c.Int63n(2e9), 0)
			}
		},
		func(q *metav1.MicroTime, c randfill.Continue) {
			*q = metav1.MicroTime{Time: time.Unix(c.Int63n(2e9), 0)}
		},
		func(r *runtime.RawExtension, _ randfill.Continue) { *r = runtime.RawExtension{Raw: []byte(`{"a":1}`)} },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString("{}") },
	)
}

func BenchmarkTrackCreate(b *testing.B) {
	for _, way := range []string{"short", "long"} {
		b.Run(way, func(b *testing.B) {
			gvk := tracked[0]
			manager := New(kindOf(gvk), "")
			if err := manager.build(); err != nil {
				b.Fatal(err)
			}
			p := benchPod()
			empty := manager.kind.New()
			empty.GetObjectKind().SetGroupVersionKind(gvk)
			b.ReportAllocs()
			for b.Loop() {
				p.ManagedFields = nil
				if way == "long" {
					manager.fields.UpdateNoErrors(empty, p, "bench")
				} else if err := manager.track(nil, p, "bench"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchPod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:      "web",
		Namespace: "default",
		Labels: map[string]string{
			"app":  "web",
			"tier": "front",
		},
	}}
	pod.SetGroupVersionKind(tracked[0])
	for i := range 2 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name:                     fmt.Sprintf("c%d", i),
			Image:                    "hello",
			ImagePullPolicy:          corev1.PullAlways,
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			Ports:                    []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}},
			Env: []corev1.EnvVar{
				{Name: "A", Value: "1"},
				{Name: "B", Value: "2"},
				{Name: "C", Value: "3"},
			},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			}},
		})
	}
	pod.Spec.DNSPolicy = corev1.DNSClusterFirst
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.SchedulerName = "default-scheduler"
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	seconds := int64(30)
	pod.Spec.TerminationGracePeriodSeconds = &seconds
	return pod
}
