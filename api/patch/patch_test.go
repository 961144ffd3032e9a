// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/pod"
	"keelson/api/gates"
)

func old() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}},
		},
	}
}

func TestDo(t *testing.T) {
	spec := pod.Pod(gates.On{})
	for _, c := range []struct {
		what   string
		kind   Type
		patch  string
		env    []corev1.EnvVar
		labels map[string]string
	}{
		{
			"strategic: lists by their key", Strategic,
			`{"spec":{"containers":[{"name":"c","env":[{"name":"B","value":"2"}]}]}}`,
			[]corev1.EnvVar{
				{Name: "B", Value: "2"},
				{Name: "A", Value: "1"},
			},
			map[string]string{"a": "b"},
		},
		{
			"strategic: an item goes", Strategic,
			`{"spec":{"containers":[{"name":"c","env":[{"name":"A","$patch":"delete"}]}]}}`,
			[]corev1.EnvVar{},
			map[string]string{"a": "b"},
		},
		{
			"merge: lists as a whole", Merge,
			`{"metadata":{"labels":{"a":null,"x":"y"}},"spec":{"containers":[{"name":"c","env":[{"name":"B"}]}]}}`,
			[]corev1.EnvVar{{Name: "B"}},
			map[string]string{"x": "y"},
		},
		{
			"json", JSON,
			`[{"op":"replace","path":"/metadata/labels/a","value":"z"},{"op":"remove","path":"/spec/containers/0/env"}]`,
			nil,
			map[string]string{"a": "z"},
		},
	} {
		before := old()
		got, strict, err := Do(t.Context(), c.kind, spec, before, []byte(c.patch), true)
		if err != nil || strict != nil {
			t.Errorf("%s: %v %v", c.what, err, strict)
			continue
		}
		p, ok := got.(*corev1.Pod)
		if !ok {
			t.Fatalf("%s: a %T", c.what, got)
		}
		if d := cmp.Diff(c.env, p.Spec.Containers[0].Env); d != "" {
			t.Errorf("%s: env (-want +got):\n%s", c.what, d)
		}
		if d := cmp.Diff(c.labels, p.Labels); d != "" {
			t.Errorf("%s: labels (-want +got):\n%s", c.what, d)
		}
		if d := cmp.Diff(old(), before); d != "" {
			t.Errorf("%s changed the old object:\n%s", c.what, d)
		}
	}
}

// TestStrategicLeavesTheRest: what a patch does not speak of stays as it is, and is a copy.
func TestStrategicLeavesTheRest(t *testing.T) {
	spec := pod.Pod(gates.On{})
	was := old()
	was.Name = "web"
	was.Labels = map[string]string{"a": "b"}
	was.Spec.NodeSelector = map[string]string{"disk": "fast"}
	was.Status.Phase = corev1.PodRunning
	before := was.DeepCopy()
	for p, change := range map[string]func(p *corev1.Pod){
		`{"status":{"message":"m"}}`:        func(p *corev1.Pod) { p.Status.Message = "m" },
		`{"metadata":{"labels":{"c":"d"}}}`: func(p *corev1.Pod) { p.Labels["c"] = "d" },
		`{"spec":{"nodeSelector":null}}`:    func(p *corev1.Pod) { p.Spec.NodeSelector = nil },
		`{"spec":null}`:                     func(p *corev1.Pod) { p.Spec = corev1.PodSpec{} },
		`{}`:                                func(*corev1.Pod) {},
		`{"kind":"Pod","apiVersion":"v1"}`:  func(*corev1.Pod) {},
		`{"$retainKeys":["metadata"],"metadata":{"name":"web"}}`: func(p *corev1.Pod) {
			p.Spec = corev1.PodSpec{}
			p.Status = corev1.PodStatus{}
		},
		`{"$patch":"replace","metadata":{"name":"other"}}`: func(p *corev1.Pod) {
			*p = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		},
	} {
		want := before.DeepCopy()
		change(want)
		want.SetGroupVersionKind(spec.GVK())
		got, strict, err := Do(t.Context(), Strategic, spec, was, []byte(p), true)
		if err != nil || strict != nil {
			t.Errorf("%s: %v, %v", p, err, strict)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", p, d)
		}
		scribbled, ok := got.(*corev1.Pod)
		if !ok {
			t.Fatalf("%s: a %T", p, got)
		}
		scribble(scribbled)
		if d := cmp.Diff(before, was); d != "" {
			t.Errorf("%s: the result shares memory with the object that was patched (-before +after)\n%s", p, d)
		}
	}
}

// scribble writes into what a pod points to.
func scribble(p *corev1.Pod) {
	for _, m := range []map[string]string{p.Labels, p.Spec.NodeSelector} {
		if m != nil {
			m["scribble"] = "x"
		}
	}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Name = "scribble"
	}
}

// TestRefused: what Kubernetes answers to patches that cannot be done; 0 is an error that is no Status, and so a 500.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		kind  Type
		patch string
		code  int32
		text  string
	}{
		{Merge, `null`, 400, "Invalid JSON Patch"},
		{Strategic, `{"spec":{"containers":[{"image":"x"}]}}`, 0, "does not contain declared merge key: name"},
		{Strategic, `{"spec":{"containers":[{"name":"c","$patch":"x"}]}}`, 0, "x"},
		{Strategic, `{"metadata":{"$retainKeys":["name"],"labels":{}}}`, 400, "retainKeys"},
		{Strategic, `{"spec":{"containers":"x"}}`, 422, "cannot restore slice from string"},
	} {
		_, _, err := Do(t.Context(), c.kind, pod.Pod(gates.On{}), old(), []byte(c.patch), true)
		var code int32
		if status, ok := err.(apierrors.APIStatus); ok {
			code = status.Status().Code
		}
		if err == nil || code != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s %s: %d %v, want %d %s", c.kind, c.patch, code, err, c.code, c.text)
		}
	}
}

// FuzzDo: a patch makes an object of the same kind, or a Status between 400 and 499, or a strategic one does not merge;
// the old object stays as it is.
func FuzzDo(f *testing.F) {
	f.Add(uint8(0), []byte(`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`))
	f.Add(uint8(1), []byte(`{"metadata":{"labels":null}}`))
	f.Add(uint8(2),
		[]byte(`{"spec":{"containers":[{"name":"c","$patch":"delete"}],"$setElementOrder/containers":[{"name":"c"}]}}`))
	f.Add(uint8(2), []byte(`{"metadata":{"$retainKeys":["name"]}}`))
	k := pod.Pod(gates.On{})
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		before := old()
		obj, _, err := Do(t.Context(), []Type{JSON, Merge, Strategic}[which%3], k, before, p, true)
		switch status, ok := err.(apierrors.APIStatus); {
		case err != nil && !ok && which%3 == 2:
		case err != nil && (!ok || status.Status().Code < 400 || status.Status().Code > 499):
			t.Errorf("%q: %v", p, err)
		case err == nil && obj.GetObjectKind().GroupVersionKind() != k.GVK():
			t.Errorf("%q makes a %s", p, obj.GetObjectKind().GroupVersionKind())
		}
		if d := cmp.Diff(old(), before); d != "" {
			t.Errorf("%q changed the old object:\n%s", p, d)
		}
	})
}

// TestDirectiveLeavesTheRest: a directive says where elements go, and nothing of the fields next to the list. A node's
// kubelet sends such patches.
func TestDirectiveLeavesTheRest(t *testing.T) {
	was := old()
	was.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		PodIP:      "10.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
	}
	p := `{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	got, strict, err := Do(t.Context(), Strategic, pod.Pod(gates.On{}), was, []byte(p), true)
	if err != nil || strict != nil {
		t.Fatal(err, strict)
	}
	want := was.DeepCopy().Status
	want.Conditions[0].Status = corev1.ConditionTrue
	if d := cmp.Diff(want, got.(*corev1.Pod).Status); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
