// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"keelson/api/core/pod"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// around are the objects that a source of the file stands in.
var around = []struct {
	name string
	kind *kind.Kind
	text string
	of   func(kind.Object) any
}{
	{
		name: "pod",
		kind: pod.Pod(gates.On{}),
		text: "{metadata: {name: x, namespace: default}, spec: {containers: [{name: c, image: i}]}}",
		of: func(o kind.Object) any {
			p := o.(*corev1.Pod)
			if len(p.Spec.Volumes) == 0 {
				p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
			}
			return &p.Spec.Volumes[0].VolumeSource
		},
	},
	{
		name: "volume",
		kind: PersistentVolume(),
		text: "{metadata: {name: x}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}}",
		of:   func(o kind.Object) any { return &o.(*corev1.PersistentVolume).Spec.PersistentVolumeSource },
	},
}

// TestSources holds what is said of each source, in pods and in persistent volumes, to testdata/sources.txt.
func TestSources(t *testing.T) {
	const file = "testdata/sources.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		switch line[0] {
		case '#':
			out.WriteString(line)
		case '{':
			out.WriteString("\n" + line)
			for _, a := range around {
				answer(t, &out, a.name, a.kind, a.text, line, a.of)
			}
		}
	}
	kindtest.File(t, file, out.Bytes())
}

// answer writes what becomes of the source of line in the object of text.
func answer(
	t *testing.T, out *bytes.Buffer, name string, k *kind.Kind, text, line string, of func(kind.Object) any,
) {
	t.Helper()
	obj := k.New()
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatal(err)
	}
	source := of(obj)
	if err := yaml.UnmarshalStrict([]byte(line), source); err != nil {
		fmt.Fprintf(out, "  %s: not there\n", name)
		return
	}
	written := reflect.ValueOf(source).Elem().Interface()
	before, err := yaml.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	warnings := kindtest.Create(k, obj)
	after, err := yaml.Marshal(source)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		fmt.Fprintf(out, "  %s has %s\n", name, strings.Join(strings.Fields(string(after)), " "))
	}
	for _, e := range kind.ClientErrors(k.Check(context.Background(), obj)) {
		fmt.Fprintf(out, "  %s: %v\n", name, e)
	}
	for _, w := range append(warnings, k.Warnings(obj, nil)...) {
		fmt.Fprintf(out, "  %s: Warning: %s\n", name, w)
	}
}
