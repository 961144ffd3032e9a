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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"

	"keelson/api/core"
	"keelson/api/core/pod"
	"keelson/api/gates"
	"keelson/api/kind"
)

// busyPod has lists of every sort: with merge keys that are strings, numbers, repeated or empty, of scalars, and
// without merge keys.
func busyPod() *corev1.Pod {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              "p",
			Namespace:         "n",
			UID:               "u",
			CreationTimestamp: at,
			Labels:            map[string]string{"a": "b"},
			Finalizers:        []string{"x/a", "x/b"},
			OwnerReferences: []metav1.OwnerReference{{
				UID:        "1",
				Name:       "o",
				Kind:       "K",
				APIVersion: "v1",
			}, {
				UID:        "2",
				Name:       "q",
				Kind:       "K",
				APIVersion: "v1",
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:     "m",
			NodeSelector: map[string]string{"disk": "fast"},
			Volumes: []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "b"},
			},
			Containers: []corev1.Container{
				{
					Name:  "a",
					Image: "i",
					Ports: []corev1.ContainerPort{{ContainerPort: 1}, {ContainerPort: 1, Protocol: "UDP"}},
					Env:   []corev1.EnvVar{{Name: "A", Value: "1"}},
				},
				{Name: "b", Image: "j", Env: []corev1.EnvVar{{Name: "A"}, {Name: "B", Value: "2"}}},
			},
			Tolerations:     []corev1.Toleration{{Key: "k"}},
			HostAliases:     []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"h"}}, {IP: "10.0.0.1"}},
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(5))},
		},
		Status: corev1.PodStatus{
			Phase:     corev1.PodRunning,
			PodIP:     "10.0.0.1",
			PodIPs:    []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "::1"}},
			StartTime: &at,
			Conditions: []corev1.PodCondition{
				{
					Type:               "Ready",
					Status:             "True",
					LastTransitionTime: at,
				}, {Type: "PodScheduled", Status: "True", LastTransitionTime: at}, {
					Type:   "Initialized",
					Status: "True",
				},
			},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "a", Ready: true},
				{Name: "b", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}},
			},
		},
	}
}

// busyNode has a map of quantities, lists of structs that are not merged, and a list whose merge key is not its first
// field.
func busyNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"a": "b"}},
		Spec: corev1.NodeSpec{
			PodCIDR:  "10.0.0.0/24",
			PodCIDRs: []string{"10.0.0.0/24"},
			Taints: []corev1.Taint{
				{Key: "a", Effect: "NoSchedule"},
			},
		},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")},
			Addresses: []corev1.NodeAddress{
				{Type: "Hostname", Address: "p"},
				{Type: "InternalIP", Address: "10.0.0.1"},
			},
			Conditions: []corev1.NodeCondition{
				{Type: "Ready", Status: "True"},
				{Type: "DiskPressure", Status: "False"},
			},
			Images:          []corev1.ContainerImage{{Names: []string{"a", "b"}, SizeBytes: 5}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		},
	}
}

// busy returns one of the objects that patches are tried on, with its kind.
func busy(node bool) (*kind.Kind, kind.Object) {
	if node {
		return core.Node(), busyNode()
	}
	return pod.Pod(gates.On{}), busyPod()
}

// wholly applies a strategic merge patch to the whole object, in JSON's values.
func wholly(k *kind.Kind, old kind.Object, p []byte) (kind.Object, error) {
	fields := map[string]any{}
	if err := json.Unmarshal(p, &fields); err != nil {
		return nil, err
	}
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return nil, err
	}
	out := k.New()
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

// agree compares Do with wholly. plain: the patch was merged into the Go object.
func agree(t *testing.T, node bool, p []byte) (merged, plain bool) {
	t.Helper()
	spec, was := busy(node)
	_, same := busy(node)
	want, wantErr := wholly(spec, same, p)
	got, _, err := Do(t.Context(), Strategic, spec, was, p, false)
	if _, same := busy(node); !cmp.Equal(same, was) {
		t.Fatalf("%s changed the old object:\n%s", p, cmp.Diff(same, was))
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s: %v; of the whole object: %v", p, err, wantErr)
	}
	if err != nil {
		return false, false
	}
	want.GetObjectKind().SetGroupVersionKind(got.GetObjectKind().GroupVersionKind())
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s (-of the whole object +got)\n%s", p, d)
	}
	fields := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(p, &fields); err != nil {
		t.Fatal(err)
	}
	_, plain = plainMerge(spec, was, fields)
	return true, plain
}

// TestPlainMergeAgrees: a patch that is merged into the Go object makes what the library makes of the whole object, for
// random patches.
func TestPlainMergeAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0)) // a test's choices; a failure names its patch
	merged := 0
	plain := 0
	for i := range 2000 {
		node := i%4 == 0
		patch := randomPatch(r)
		if node {
			patch = randomNodePatch(r)
		}
		p, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		m, pl := agree(t, node, p)
		if m {
			merged++
		}
		if pl {
			plain++
		}
	}
	if merged < 700 || plain < 120 {
		t.Errorf("only %d of 2000 patches merge, %d of them plainly", merged, plain)
	}
}

// TestPlainPatches: the patches that Keelson's own agents and kubectl send most are plain.
func TestPlainPatches(t *testing.T) {
	for _, c := range []struct {
		node  bool
		patch string
	}{
		{
			false,
			`{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler","message":"m"}]}}`,
		},
		{
			false,
			`{"metadata":{"uid":"u"},"status":{"$setElementOrder/conditions":[{"type":"Ready"},{"type":"PodScheduled"},{"type":"Initialized"}],"conditions":[{"lastTransitionTime":"2026-01-01T00:00:00Z","status":"True","type":"Ready"}],"containerStatuses":[{"name":"a","ready":true,"restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}],"hostIP":"10.0.0.1","phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"startTime":"2026-01-01T00:00:00Z"}}`,
		},
		{false, `{"status":{"nominatedNodeName":null}}`},
		{false, `{"metadata":{"annotations":{"a":"b"},"labels":{"a":null}}}`},
		{
			true,
			`{"status":{"$setElementOrder/conditions":[{"type":"Ready"},{"type":"DiskPressure"}],"conditions":[{"lastHeartbeatTime":"2026-01-01T00:00:00Z","type":"Ready"},{"lastHeartbeatTime":"2026-01-01T00:00:00Z","type":"DiskPressure"}]}}`,
		},
		{true, `{"status":{"allocatable":{"cpu":"1500m"},"images":[{"names":["x"],"sizeBytes":7}]}}`},
		{
			true,
			`{"spec":{"taints":[{"key":"k","effect":"NoExecute","timeAdded":"2026-01-01T00:00:00Z"}],"unschedulable":true}}`,
		},
	} {
		if _, plain := agree(t, c.node, []byte(c.patch)); !plain {
			t.Errorf("%s is not plain", c.patch)
		}
	}
}

func FuzzPlainMerge(f *testing.F) {
	f.Add(false, []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"New","status":"True"}]}}`))
	f.Add(false, []byte(`{"status":{"$setElementOrder/conditions":[{"type":"New"}],"conditions":[{"type":"New"}]}}`))
	f.Add(false,
		[]byte(
			`{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"1"}],"$deleteFromPrimitiveList/finalizers":["x/a"]}}`))
	f.Add(false, []byte(`{"spec":{"volumes":[{"$retainKeys":["name"],"name":"a"}],"hostAliases":[{"ip":"10.0.0.1"}]}}`))
	f.Add(true,
		[]byte(`{"status":{"capacity":{"cpu":"3","memory":null},"addresses":[{"type":"InternalIP","address":"::1"}]}}`))
	f.Fuzz(func(t *testing.T, node bool, p []byte) {
		var fields map[string]any
		if json.Unmarshal(p, &fields) != nil || fields == nil {
			return
		}
		if p, err := json.Marshal(fields); err == nil { // without duplicate fields, which decoders treat differently
			agree(t, node, p)
		}
	})
}

// randomNodePatch is a patch of some fields of busyNode.
func randomNodePatch(rnd *rand.Rand) map[string]any {
	one := func(of ...any) any { return of[rnd.IntN(len(of))] }
	conditions := []any{}
	for _, of := range rnd.Perm(3)[:1+rnd.IntN(3)] {
		conditions = append(conditions, map[string]any{
			"type":   []any{"Ready", "DiskPressure", "New"}[of],
			"status": one("True", "False", nil),
		})
	}
	order := []any{}
	for _, of := range rnd.Perm(4)[:rnd.IntN(5)] {
		order = append(order, map[string]any{"type": []any{"Ready", "DiskPressure", "New", "Other"}[of]})
	}
	status := map[string]any{
		"conditions": conditions,
		"capacity":   one(map[string]any{"cpu": one("1", 3, "x", nil), "pods": "110"}, nil, map[string]any{}),
		"addresses": []any{
			map[string]any{"type": one("Hostname", "InternalIP", "ExternalIP"), "address": one("q", 5, nil)},
		},
		"images":          one([]any{}, nil, []any{map[string]any{"names": []any{"c"}, "sizeBytes": one(7, nil, "x")}}),
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": one(1, nil)}},
	}
	if rnd.IntN(2) == 0 {
		status["$setElementOrder/conditions"] = order
	}
	for name := range status {
		if rnd.IntN(3) == 0 {
			delete(status, name)
		}
	}
	return map[string]any{
		"status": status,
		"spec": map[string]any{
			"unschedulable": one(true, false, nil, "x"),
			"taints":        one([]any{map[string]any{"key": "b"}}, nil),
		},
	}
}

// randomPatch is a patch of some fields of busyPod, with a directive here and there.
func randomPatch(rnd *rand.Rand) map[string]any {
	one := func(of ...any) any { return of[rnd.IntN(len(of))] }
	list := func(key string, values []any, more string, of ...any) any {
		var out []any
		for range rnd.IntN(4) {
			item := map[string]any{}
			if rnd.IntN(30) > 0 {
				item[key] = one(values...)
			}
			if rnd.IntN(3) > 0 {
				item[more] = one(of...)
			}
			if rnd.IntN(20) == 0 {
				item["$patch"] = one("delete", "replace")
			}
			out = append(out, item)
		}
		return out
	}
	names := []any{"a", "b", "c", "d"}
	some := func(fields map[string]any) any {
		if rnd.IntN(25) == 0 {
			return nil
		}
		for key := range fields {
			if rnd.IntN(3) == 0 {
				delete(fields, key)
			}
		}
		if rnd.IntN(25) == 0 {
			fields["$patch"] = one("replace", "delete")
		}
		return fields
	}
	return map[string]any{
		"metadata": some(map[string]any{
			"labels":          some(map[string]any{"a": one("x", nil), "c": "d"}),
			"finalizers":      []any{fmt.Sprint("x/", one("a", "c"))},
			"ownerReferences": list("uid", []any{"1", "2", "3"}, "name", "n", "m"),
		}),
		"spec": some(map[string]any{
			"containers": list("name", names, "ports", []any{map[string]any{"containerPort": 1, "name": "x"}},
				[]any{map[string]any{"containerPort": 7}}),
			"volumes":         list("name", names, "emptyDir", map[string]any{"medium": "Memory"}, nil),
			"nodeName":        one("z", nil),
			"hostAliases":     list("ip", []any{"10.0.0.1", "10.0.0.2"}, "hostnames", []any{"k"}),
			"tolerations":     list("key", names, "value", "v"),
			"securityContext": some(map[string]any{"runAsGroup": 7, "runAsUser": one(nil, 3)}),
		}),
		"status": some(map[string]any{
			"conditions": list("type", []any{"Ready", "PodScheduled", "Initialized", "New"}, "status", "False",
				"Unknown", nil),
			"phase":             one("Failed", nil),
			"containerStatuses": []any{map[string]any{"name": "b", "ready": true}},
			"podIPs":            list("ip", []any{"::1", "::2"}, "ip", "::3"),
		}),
	}
}

// BenchmarkCondition is the patch that kubelets and schedulers send most: one condition of a pod's status.
func BenchmarkCondition(b *testing.B) {
	k := pod.Pod(gates.On{})
	was := busyPod()
	p := []byte(
		`{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler","message":"m"}]}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Do(b.Context(), Strategic, k, was, p, true); err != nil {
			b.Fatal(err)
		}
	}
}
