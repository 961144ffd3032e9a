// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestDepth(t *testing.T) {
	for doc, want := range map[string]int{
		"":                                   0,
		"null":                               0,
		"[[[ in: yaml":                       3,
		"a: [[[":                             0,
		`{"a":{"b":[1,{}]},"c":{}}`:          4,
		`{"[[[\\\"[[[":"]"}`:                 1,
		" [ ]":                               1,
		strings.Repeat(`{"a":`, 5000):        maxDepth + 1,
		`{"a":"` + strings.Repeat("[", 5000): 1,
	} {
		if got, _ := measure([]byte(doc)); got != want {
			t.Errorf("%.40s: got %d, want %d", doc, got, want)
		}
	}
	for _, body := range []string{strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000), "a: " +
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000)} {
		if _, err := DecodeApply([]byte(body), Ignore, func(string) {}); err == nil ||
			!strings.Contains(err.Error(), "exceeded max depth") {
			t.Errorf("apply of %.20s: got %v", body, err)
		}
	}
}

func FuzzDepth(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\\"]}`, "[", `"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if d, _ := measure(doc); d < 0 || d > maxDepth+1 || d > len(doc) {
			t.Errorf("depth %d of %d bytes", d, len(doc))
		}
	})
}

// TestManyPartsInYAML: a YAML document has the limits of the JSON that it means.
func TestManyPartsInYAML(t *testing.T) {
	for what, list := range map[string]string{
		"413": "[" + strings.Repeat("{},", maxParts) + "{}]",
		"400": strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		doc := "#\n{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: " + list + "}}"
		gvk := corev1.SchemeGroupVersion.WithKind("Pod")
		_, err := Decode([]byte(doc), YAML, Ignore, gvk, &corev1.Pod{}, func(string) {})
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) || strconv.Itoa(int(status.Status().Code)) != what {
			t.Errorf("got %v, want the code %s", err, what)
		}
	}
}

// TestManyParts: a document of many small objects or lists is refused before they are made.
func TestManyParts(t *testing.T) {
	for part, n := range map[string]int{
		`{}`:         1 << 20,
		`[]`:         1 << 20,
		`[{"a":[]}]`: maxParts / 3,
		`"{[{"`:      1 << 20,
	} {
		doc := `{"items":[` + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + `]}`
		want := ""
		if part != `"{[{"` && n*strings.Count(part, "{")+n*strings.Count(part, "[")+2 > maxParts {
			want = "limit is 100000 objects and lists"
		}
		switch _, err := CheckDepth([]byte(doc)); {
		case want == "" && err != nil:
			t.Errorf("%d times %s: %v", n, part, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%d times %s: got %v, want %q", n, part, err, want)
		}
	}
}
