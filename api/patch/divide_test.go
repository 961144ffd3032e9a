// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"keelson/api/core/pod"
	"keelson/api/gates"
)

// busyPod has lists of every sort: with merge keys that are strings, numbers, repeated or empty, of scalars, and without merge keys.
func busyPod() *corev1.Pod {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "n", UID: "u", CreationTimestamp: at, Labels: map[string]string{"a": "b"}, Finalizers: []string{"x/a", "x/b"},
			OwnerReferences: []metav1.OwnerReference{{UID: "1", Name: "o", Kind: "K", APIVersion: "v1"}, {UID: "2", Name: "q", Kind: "K", APIVersion: "v1"}},
		},
		Spec: corev1.PodSpec{
			NodeName: "m", NodeSelector: map[string]string{"disk": "fast"},
			Volumes: []corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "b"}},
			Containers: []corev1.Container{
				{Name: "a", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 1}, {ContainerPort: 1, Protocol: "UDP"}}, Env: []corev1.EnvVar{{Name: "A", Value: "1"}}},
				{Name: "b", Image: "j", Env: []corev1.EnvVar{{Name: "A"}, {Name: "B", Value: "2"}}},
			},
			Tolerations:     []corev1.Toleration{{Key: "k"}},
			HostAliases:     []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"h"}}, {IP: "10.0.0.1"}},
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(5))},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "::1"}}, StartTime: &at,
			Conditions: []corev1.PodCondition{
				{Type: "Ready", Status: "True", LastTransitionTime: at}, {Type: "PodScheduled", Status: "True", LastTransitionTime: at}, {Type: "Initialized", Status: "True"},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", Ready: true}, {Name: "b", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}},
		},
	}
}

// wholly applies a strategic merge patch to the whole object, in JSON's values.
func wholly(old *corev1.Pod, p []byte) (*corev1.Pod, error) {
	fields := map[string]any{}
	if err := json.Unmarshal(p, &fields); err != nil {
		return nil, err
	}
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	shape, err := strategicpatch.NewPatchMetaFromStruct(out)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(doc, whole(fields).(map[string]any), shape)
	if err != nil {
		return nil, err
	}
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(merged, out)
}

// whole makes integers of the numbers that are.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// agree compares Do with wholly.
func agree(t *testing.T, p []byte) (merged bool) {
	t.Helper()
	was := busyPod()
	want, wantErr := wholly(was.DeepCopy(), p)
	got, _, err := Do(t.Context(), Strategic, pod.Pod(gates.On{}), was, p, false)
	if d := cmp.Diff(busyPod(), was); d != "" {
		t.Fatalf("%s changed the old object:\n%s", p, d)
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s: %v; of the whole object: %v", p, err, wantErr)
	}
	if err != nil {
		return false
	}
	want.SetGroupVersionKind(got.GetObjectKind().GroupVersionKind())
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s (-of the whole object +got)\n%s", p, d)
	}
	return true
}

// TestDividedAgrees: a patch of what it names makes what a patch of the whole object does, for random patches.
func TestDividedAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0)) //nolint:gosec // a test's choices; a failure names its patch
	merged := 0
	for range 1000 {
		p, err := json.Marshal(randomPatch(r))
		if err != nil {
			t.Fatal(err)
		}
		if agree(t, p) {
			merged++
		}
	}
	if merged < 300 {
		t.Errorf("only %d of 1000 patches merge", merged)
	}
}

func FuzzDivided(f *testing.F) {
	f.Add([]byte(`{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"New","status":"True"}]}}`))
	f.Add([]byte(`{"status":{"$setElementOrder/conditions":[{"type":"New"}],"conditions":[{"type":"New"}]}}`))
	f.Add([]byte(`{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"1"}],"$deleteFromPrimitiveList/finalizers":["x/a"]}}`))
	f.Add([]byte(`{"spec":{"volumes":[{"$retainKeys":["name"],"name":"a"}],"hostAliases":[{"ip":"10.0.0.1"}]}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		var fields map[string]any
		if json.Unmarshal(p, &fields) != nil || fields == nil {
			return
		}
		if p, err := json.Marshal(fields); err == nil { // without duplicate fields, which decoders treat differently
			agree(t, p)
		}
	})
}

// randomPatch is a patch of some fields of busyPod, with a directive here and there.
func randomPatch(r *rand.Rand) map[string]any {
	one := func(of ...any) any { return of[r.IntN(len(of))] }
	list := func(key string, values []any, more string, of ...any) any {
		var out []any
		for range r.IntN(4) {
			item := map[string]any{}
			if r.IntN(30) > 0 {
				item[key] = one(values...)
			}
			if r.IntN(3) > 0 {
				item[more] = one(of...)
			}
			if r.IntN(20) == 0 {
				item["$patch"] = one("delete", "replace")
			}
			out = append(out, item)
		}
		return out
	}
	names := []any{"a", "b", "c", "d"}
	some := func(fields map[string]any) any {
		if r.IntN(25) == 0 {
			return nil
		}
		for key := range fields {
			if r.IntN(3) == 0 {
				delete(fields, key)
			}
		}
		if r.IntN(25) == 0 {
			fields["$patch"] = one("replace", "delete")
		}
		return fields
	}
	return map[string]any{
		"metadata": some(map[string]any{
			"labels": some(map[string]any{"a": one("x", nil), "c": "d"}), "finalizers": []any{fmt.Sprint("x/", one("a", "c"))},
			"ownerReferences": list("uid", []any{"1", "2", "3"}, "name", "n", "m"),
		}),
		"spec": some(map[string]any{
			"containers": list("name", names, "ports", []any{map[string]any{"containerPort": 1, "name": "x"}}, []any{map[string]any{"containerPort": 7}}),
			"volumes":    list("name", names, "emptyDir", map[string]any{"medium": "Memory"}, nil), "nodeName": one("z", nil),
			"hostAliases": list("ip", []any{"10.0.0.1", "10.0.0.2"}, "hostnames", []any{"k"}), "tolerations": list("key", names, "value", "v"),
			"securityContext": some(map[string]any{"runAsGroup": 7, "runAsUser": one(nil, 3)}),
		}),
		"status": some(map[string]any{
			"conditions": list("type", []any{"Ready", "PodScheduled", "Initialized", "New"}, "status", "False", "Unknown", nil),
			"phase":      one("Failed", nil), "containerStatuses": []any{map[string]any{"name": "b", "ready": true}}, "podIPs": list("ip", []any{"::1", "::2"}, "ip", "::3"),
		}),
	}
}

// BenchmarkCondition is the patch that kubelets and schedulers send most: one condition of a pod's status.
func BenchmarkCondition(b *testing.B) {
	k, was := pod.Pod(gates.On{}), busyPod()
	p := []byte(`{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler","message":"m"}]}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Do(b.Context(), Strategic, k, was, p, true); err != nil {
			b.Fatal(err)
		}
	}
}
