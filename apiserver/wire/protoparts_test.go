// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

var mapGVK = corev1.SchemeGroupVersion.WithKind("ConfigMap")

// protoFields is a message of length-delimited fields.
func protoFields(fields ...any) []byte {
	var out []byte
	for i := 0; i < len(fields); i += 2 {
		number, _ := fields[i].(int)
		out = protowire.AppendTag(out, protowire.Number(number), protowire.BytesType)
		switch v := fields[i+1].(type) {
		case string:
			out = protowire.AppendString(out, v)
		case []byte:
			out = protowire.AppendBytes(out, v)
		}
	}
	return out
}

// protoObject is a body.
func protoObject(gvk schema.GroupVersionKind, raw []byte) []byte {
	return append([]byte("k8s\x00"),
		protoFields(unknownType, protoFields(1, gvk.GroupVersion().String(), 2, gvk.Kind), unknownRaw, raw)...)
}

func encoded(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := protoBody.Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestProtobufBodies: a body of many small messages, of deep ones, or with a length beyond its entry of a map is
// refused before an object is made of it, whatever kind it says it is of.
func TestProtobufBodies(t *testing.T) {
	containers := func(n int) []byte { return protoFields(2, bytes.Repeat(protoFields(2, ""), n)) }
	annotations := func(entry []byte, n int) []byte {
		return protoFields(1, bytes.Repeat(append(protowire.AppendTag(nil, 12, protowire.BytesType),
			append([]byte{byte(len(entry))}, entry...)...), n))
	}
	limits := bytes.Repeat(protoFields(1, protoFields(2, "")), maxParts)
	apps := appsv1.SchemeGroupVersion.WithKind("Deployment")
	for what, c := range map[string]struct {
		gvk  schema.GroupVersionKind
		into runtime.Object
		body []byte
		want string
	}{
		"many containers": {podGVK, &corev1.Pod{}, protoObject(podGVK, containers(maxParts)), "limit is 100000"},
		"fewer":           {podGVK, &corev1.Pod{}, protoObject(podGVK, containers(maxParts/2)), ""},
		"containers in a body of another kind": {
			mapGVK, &corev1.ConfigMap{}, protoObject(podGVK, containers(maxParts)), "limit is 100000",
		},
		"containers in delete options": {
			metav1.SchemeGroupVersion.WithKind("DeleteOptions"), &metav1.DeleteOptions{},
			protoObject(podGVK, containers(maxParts)), "limit is 100000",
		},
		"containers without a kind": {
			podGVK, &corev1.Pod{}, append([]byte("k8s\x00"), protoFields(unknownRaw, containers(maxParts))...),
			"limit is 100000",
		},
		"containers in a template": {
			apps, &appsv1.Deployment{}, protoObject(apps, protoFields(2, protoFields(3, containers(maxParts)))),
			"limit is 100000",
		},
		"limits without a key": {
			podGVK, &corev1.Pod{}, protoObject(podGVK, protoFields(2, protoFields(2, protoFields(8, limits)))),
			"limit is 100000",
		},
		"a key beyond its entry": {
			mapGVK, &corev1.ConfigMap{},
			protoObject(mapGVK, annotations([]byte{entryKey<<3 | 2, 0x90, 0x03}, 1000)), "malformed",
		},
		"a key of another type": {
			mapGVK, &corev1.ConfigMap{}, protoObject(mapGVK, annotations([]byte{entryKey << 3, 0x50}, 1000)), "malformed",
		},
		"annotations": {
			mapGVK, &corev1.ConfigMap{},
			protoObject(mapGVK, annotations(protoFields(entryKey, "k", entryValue, "v"), 150_000)), "",
		},
		"a large value": {
			mapGVK, &corev1.ConfigMap{},
			protoObject(mapGVK, protoFields(2, protoFields(entryKey, "k", entryValue, strings.Repeat("\x0a\x00", 1<<20)))),
			"",
		},
	} {
		var err error
		if options, ok := c.into.(*metav1.DeleteOptions); ok {
			err = DecodeDeleteOptions(c.body, Proto, c.gvk.GroupVersion(), options)
		} else {
			_, err = Decode(c.body, Proto, Ignore, c.gvk, c.into, func(string) {})
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %.200v, want %q", what, err, c.want)
		}
	}
}

// TestDeepShapes: nesting of a recursive type is limited.
func TestDeepShapes(t *testing.T) {
	recursive := &shape{}
	recursive.fields = []*shape{1: recursive}
	deep := []byte{}
	for range maxDepth + 10 {
		deep = protoFields(1, deep)
	}
	scan := protoScan{}
	if err := scan.message(deep, recursive, 1); err == nil || !strings.Contains(err.Error(), "max depth") {
		t.Errorf("got %v", err)
	}
}

// TestMapsHaveStrings: keys and values of the API's maps are length-delimited, as checkProto assumes.
func TestMapsHaveStrings(t *testing.T) {
	seen := map[reflect.Type]bool{}
	maps := 0
	var look func(t reflect.Type) string
	look = func(t reflect.Type) string {
		switch {
		case seen[t]:
		case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice:
			return look(t.Elem())
		case t.Kind() == reflect.Struct:
			seen[t] = true
			for f := range t.Fields() {
				if fieldNumber(f.Tag) == 0 {
					continue
				}
				if why := look(f.Type); why != "" {
					return t.String() + "." + f.Name + ": " + why
				}
			}
		case t.Kind() == reflect.Map:
			maps++
			value := t.Elem()
			if t.Key().Kind() != reflect.String || value.Kind() != reflect.String && value.Kind() != reflect.Slice &&
				!isMessage(value) {
				return "a " + t.String()
			}
			return look(value)
		}
		return ""
	}
	for gvk, typ := range scheme.Scheme.AllKnownTypes() {
		if why := look(typ); why != "" {
			t.Errorf("%s: %s", gvk, why)
		}
	}
	if maps < 50 {
		t.Errorf("found %d maps", maps)
	}
}

// largePod has n containers as people write them.
func largePod(n int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "web"}}}
	p.SetGroupVersionKind(podGVK)
	quantities := corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}
	for range n {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name:         "main",
			Image:        "registry.example.com/team/application:v1.2.3",
			Args:         []string{"--listen=:8080", "--verbose"},
			Env:          []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "POD", Value: "c"}},
			Resources:    corev1.ResourceRequirements{Limits: quantities, Requests: quantities},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/ready"},
			}},
		})
	}
	return p
}

// FuzzProtobufParts: what the decoder makes of a body has no more messages than were counted, and not more bytes of
// text than the body.
func FuzzProtobufParts(f *testing.F) {
	pod, err := largePod(2).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pod)
	f.Add(protoFields(2, bytes.Repeat(protoFields(2, ""), 9)))
	f.Add(protoFields(1, protoFields(12, []byte{10, 9}, 12, []byte{10, 5}), 2, protoFields(8, []byte{8, 5})))
	f.Fuzz(func(t *testing.T, raw []byte) {
		body := protoObject(podGVK, raw)
		parts, err := scanProto(body, podGVK, &corev1.Pod{})
		if err != nil {
			return
		}
		obj, _, err := protoBody.Decode(body, &podGVK, &corev1.Pod{})
		if err != nil {
			return
		}
		messages, text := weigh(reflect.ValueOf(obj).Elem())
		if messages > parts || text > len(body) {
			t.Errorf("%d messages and %d bytes of text of %d parts and %d bytes", messages, text, parts, len(body))
		}
	})
}

// weigh counts the elements of lists and maps of messages, and what pointers to messages lead to, and adds up the
// lengths of strings.
func weigh(v reflect.Value) (messages, text int) {
	add := func(m, n int) {
		messages += m
		text += n
	}
	switch v.Kind() {
	case reflect.String:
		return 0, v.Len()
	case reflect.Pointer:
		if v.IsNil() {
			return 0, 0
		}
		if isMessage(v.Type().Elem()) {
			add(1, 0)
		}
		add(weigh(v.Elem()))
	case reflect.Slice:
		for i := range v.Len() {
			if isMessage(v.Type().Elem()) {
				add(1, 0)
			}
			add(weigh(v.Index(i)))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			if isMessage(v.Type().Elem()) {
				add(1, 0)
			}
			add(weigh(key))
			add(weigh(value))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[resource.Quantity]() || v.Type() == reflect.TypeFor[metav1.Time]() {
			return 0, 0 // leaves
		}
		for f, value := range v.Fields() {
			if fieldNumber(f.Tag) > 0 {
				add(weigh(value))
			}
		}
	}
	return messages, text
}

func BenchmarkCheckProto(b *testing.B) {
	for name, n := range map[string]int{"usual": 1, "10 containers": 10, "1000": 1000} {
		body := encoded(b, largePod(n))
		b.Run(name, func(b *testing.B) {
			b.ReportMetric(float64(len(body)), "bytes")
			into := &corev1.Pod{}
			for b.Loop() {
				if err := checkProto(body, podGVK, into); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			for b.Loop() {
				if _, _, err := protoBody.Decode(body, &podGVK, &corev1.Pod{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
