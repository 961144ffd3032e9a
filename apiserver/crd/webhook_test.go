// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// sent is what a webhook is asked to convert; its label is one that nobody could set today.
func sent(t testing.TB) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(
		[]byte(
			`{"apiVersion":"example.com/v1","kind":"Ship","metadata":{"name":"a","uid":"u","generation":2,"labels":{"-":"x"}}}`),
		&u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestRestore: what a webhook may say of metadata, in Kubernetes' words.
func TestRestore(t *testing.T) {
	for metadata, want := range map[string]string{
		`"metadata":{"name":"a","uid":"u","labels":{"-":"x"},"generation":9,"finalizers":["f"]}`: "",
		`"metadata":{"name":"a","uid":"u","labels":{"b":"c"},"annotations":{"d":"e"}}`:           "",
		`"metadata":{"name":"a","uid":"u","labels":null}`:                                        "",
		`"metadata":{"name":"a","uid":"u","labels":"x"}`:                                         "invalid metadata.labels of type string in converted object",
		`"metadata":{"name":"a","uid":"u","labels":{"b":1}}`:                                     "metadata.labels[b] must be a string, but is int64 in converted object",
		`"metadata":{"name":"a","uid":"u","labels":{"-":"y"}}`:                                   `metadata.labels: Invalid value: "-": name part must`,
		`"metadata":{"name":"a","uid":"u","annotations":{"/":"y"}}`:                              `metadata.annotation: Invalid value: "/": prefix part must`,
		`"metadata":{"name":"b"}`:                                                                "must have the same name: a != b",
	} {
		u, err := decodeConverted(sent(t), []byte(`{"apiVersion":"example.com/v2","kind":"Ship",`+metadata+`}`),
			"example.com/v2")
		if err == nil {
			err = restoreMetadata(sent(t), u)
		}
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", metadata, err, want)
		case err == nil && (u.GetGeneration() != 2 || len(u.GetFinalizers()) > 0):
			t.Errorf("%s: became %v", metadata, u.Object)
		}
	}
}

// FuzzConverted: a webhook returns what it likes; what is taken has the version asked for and the identity that was
// sent.
func FuzzConverted(f *testing.F) {
	const head = `{"apiVersion":"example.com/v2","kind":"Ship","metadata":{"name":"a","uid":"u"`
	f.Add([]byte(head + `,"labels":{"b":"c"},"annotations":{}},"spec":{"a":[1,null]}}`))
	f.Add([]byte(head + `,"labels":[{}],"annotations":{"x":1}}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v2","kind":"Ship","metadata":[]}`))
	from := sent(f)
	before := from.DeepCopy()
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, err := decodeConverted(from, raw, "example.com/v2")
		if err == nil {
			err = restoreMetadata(from, u)
		}
		if err == nil && (u.GetAPIVersion() != "example.com/v2" || u.GetKind() != "Ship" || u.GetUID() != "u" ||
			u.GetGeneration() != 2) {
			t.Errorf("%q became %v", raw, u.Object)
		}
		if d := cmp.Diff(before, from); d != "" {
			t.Errorf("%q changed what was sent:\n%s", raw, d)
		}
	})
}
