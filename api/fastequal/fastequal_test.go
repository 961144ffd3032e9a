// SPDX-License-Identifier: Apache-2.0

package fastequal_test

import (
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	"keelson/api/fastequal"
)

// TestGlance: copies are the same, and no glance says so of values that reflection finds different.
func TestGlance(t *testing.T) {
	fill := randfill.NewWithSeed(7).NilChance(0.3).NumElements(0, 3).MaxDepth(9).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(5000), resource.DecimalSI)
		},
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(c.String(4)) },
		func(tm *metav1.Time, c randfill.Continue) { tm.Time = time.Unix(c.Int63n(1e9), 0) },
	)
	var last *appsv1.DaemonSet
	for range 300 {
		d := &appsv1.DaemonSet{}
		fill.Fill(d)
		if c := d.DeepCopy(); !fastequal.Equal(d, c) {
			t.Fatalf("a copy is not seen to be the same: %#v", d)
		}
		if last != nil && fastequal.Equal(d, last) && !apiequality.Semantic.DeepEqual(d, last) {
			t.Fatalf("said to be the same: %#v and %#v", d, last)
		}
		last = d
	}
}

// TestEveryLeafCounts changes each value inside a full pod, one at a time.
func TestEveryLeafCounts(t *testing.T) {
	fill := randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).MaxDepth(12).Funcs(
		func(q *resource.Quantity, _ randfill.Continue) { *q = resource.MustParse("1") },
		func(tm *metav1.Time, _ randfill.Continue) { tm.Time = time.Unix(1e9, 0) },
	)
	pod := &corev1.Pod{}
	fill.Fill(pod)
	was := pod.DeepCopy()
	n := 0
	eachLeaf(reflect.ValueOf(pod).Elem(), func(path string) {
		n++
		if fastequal.Equal(pod, was) {
			t.Errorf("a change is not seen: %s", path)
		}
	}, "")
	if n < 300 {
		t.Errorf("only %d values were changed", n)
	}
	if !fastequal.Equal(pod, was) {
		t.Error("what was changed back is not seen to be the same")
	}
}

// eachLeaf changes every value below value, calls check, and changes it back.
func eachLeaf(value reflect.Value, check func(path string), path string) {
	was := reflect.New(value.Type()).Elem()
	was.Set(value)
	switch value.Kind() {
	case reflect.Struct:
		if q, ok := reflect.TypeAssert[*resource.Quantity](value.Addr()); ok {
			for _, other := range []resource.Quantity{
				resource.MustParse("2"), *resource.NewQuantity(1, resource.BinarySI),
			} {
				*q = other
				check(path)
			}
			break
		}
		if tm, ok := reflect.TypeAssert[*time.Time](value.Addr()); ok {
			*tm = tm.Add(1)
			check(path)
			break
		}
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				eachLeaf(value.Field(i), check, path+"."+value.Type().Field(i).Name)
			}
		}
		return
	case reflect.Pointer:
		if !value.IsNil() {
			eachLeaf(value.Elem(), check, path)
			value.SetZero()
			check(path)
		}
	case reflect.Slice:
		for i := range value.Len() {
			eachLeaf(value.Index(i), check, path+"[]")
		}
		value.Set(reflect.MakeSlice(value.Type(), value.Len()+1, value.Len()+1))
		check(path)
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		check(path)
	case reflect.String:
		value.SetString(value.String() + "x")
		check(path)
	case reflect.Bool:
		value.SetBool(!value.Bool())
		check(path)
	case reflect.Int32, reflect.Int64, reflect.Int:
		value.SetInt(value.Int() ^ 1)
		check(path)
	}
	value.Set(was)
}

func TestMapsAndNil(t *testing.T) {
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"k": "v"}}}
		p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1")}
		change(p)
		return p
	}
	for name, change := range map[string]func(*corev1.Pod){
		"another value":    func(p *corev1.Pod) { p.Labels["k"] = "w" },
		"another key":      func(p *corev1.Pod) { p.Labels = map[string]string{"l": "v"} },
		"another quantity": func(p *corev1.Pod) { p.Spec.Overhead["cpu"] = resource.MustParse("2") },
		"another format": func(p *corev1.Pod) {
			p.Spec.Overhead["cpu"] = *resource.NewQuantity(1, resource.BinarySI)
		},
		"empty, not nil":     func(p *corev1.Pod) { p.Annotations = map[string]string{} },
		"a list, empty":      func(p *corev1.Pod) { p.Finalizers = []string{} },
		"a pointer":          func(p *corev1.Pod) { p.Spec.HostUsers = new(false) },
		"an instant, closer": func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(0, 1)) },
	} {
		if fastequal.Equal(with(func(*corev1.Pod) {}), with(change)) {
			t.Errorf("%s: said to be the same", name)
		}
	}
	if !fastequal.Equal(with(func(*corev1.Pod) {}), with(func(*corev1.Pod) {})) {
		t.Error("the same maps are not seen to be the same")
	}
}

func BenchmarkPodSpec(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 2)}}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Resources.Requests = corev1.ResourceList{
			"cpu":    resource.MustParse("100m"),
			"memory": resource.MustParse("64Mi"),
		}
		c.Env = []corev1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "2"},
			{Name: "C", Value: "3"},
			{Name: "D", Value: "4"},
		}
	}
	c := pod.DeepCopy()
	b.ReportAllocs()
	for b.Loop() {
		if !fastequal.Equal(&pod.Spec, &c.Spec) {
			b.Fatal("not the same")
		}
	}
}
