// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPlainJSON: the short way reads what it may, and leaves everything else, and the object, to the long way.
func TestPlainJSON(t *testing.T) {
	for body, plain := range map[string]bool{
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`:             true,
		` {"metadata":{"name":"a"},"apiVersion":"v1","kind":"Pod"} `:           true,
		`{"metadata":{"name":"a"}}`:                                            false,
		`{"kind":"Pod","metadata":{"name":"a"}}`:                               false,
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`:            false,
		`{"kind":"Pod","apiVersion":"a/b/c","metadata":{"name":"a"}}`:          false,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"x":1}`:       false,
		`{"kind":"Pod","apiVersion":"v1","Metadata":{"name":"a"}}`:             false,
		`{"kind":"Pod","kind":"Pod","apiVersion":"v1","metadata":{}}`:          false,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":"no"}`: false,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}`:              false,
		``:     false,
		`null`: false,
		`[]`:   false,
	} {
		into := &corev1.Pod{}
		if got := decodePlain([]byte(body), podGVK, into); got != plain {
			t.Errorf("%s: got %v, want %v", body, got, plain)
		}
		want := &corev1.Pod{}
		if plain {
			want.Name = "a"
			want.SetGroupVersionKind(podGVK)
		}
		if !equality.Semantic.DeepEqual(into, want) {
			t.Errorf("%s: left %+v", body, into)
		}
	}
}

// TestEitherWay decodes bodies that only the long way takes into the same objects.
func TestEitherWay(t *testing.T) {
	var warned []string
	warn := func(text string) { warned = append(warned, text) }
	for body, warnings := range map[string]int{
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`:                         0,
		`{"metadata":{"name":"a"}}`:                                                        0,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","y":2},"x":1}`:             2,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"},"metadata":{"name":"a"}}`: 1,
	} {
		warned = nil
		obj, err := Decode([]byte(body), JSON, Warn, podGVK, &corev1.Pod{}, warn)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		want := &corev1.Pod{}
		want.Name = "a"
		want.SetGroupVersionKind(podGVK)
		if !equality.Semantic.DeepEqual(obj, want) || len(warned) != warnings {
			t.Errorf("%s: got %+v and warnings %q", body, obj, warned)
		}
	}
}

// TestDecodeApplyJSON: what is read as JSON is what it would be as YAML.
func TestDecodeApplyJSON(t *testing.T) {
	for _, body := range []string{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"b":"c\u003cd\n","e":null,"y":"no","":"x"},"n":[1,-2,{"t":true}]}`,
		`{"n":1.0}`, `{"n":1e3}`, `{"n":123456789012345678901234567890}`, `{"s":"\ud83d\ude00"}`, `{"<<":{"a":1}}`,
		`{"a":1,"a":2}`, `[]`, `null`, `{"a":`, `a: b`, "",
	} {
		want := map[string]any{}
		wantErr := unmarshalYAML([]byte(body), &want)
		got, err := DecodeApply([]byte(body), Ignore, func(string) {})
		if (err != nil) != (wantErr != nil) {
			t.Errorf("%s: error %v, as YAML %v", body, err, wantErr)
		} else if err == nil {
			if d := cmp.Diff(want, got.Object, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s (-YAML +got):\n%s", body, d)
			}
		}
	}
}

// TestExcessiveAliases: every way to decode YAML refuses a small document that is large when its aliases are followed.
func TestExcessiveAliases(t *testing.T) {
	doc := []byte("apiVersion: v1\nkind: Pod\na: &a " + strings.Repeat("x", 64<<10) + "\nb: [" +
		strings.Repeat("*a,", 2000) + "]\n")
	none := func(string) {}
	for what, decode := range map[string]func() error{
		"Decode": func() error {
			_, err := Decode(doc, YAML, Ignore, podGVK, &corev1.Pod{}, none)
			return err
		},
		"DecodeCustom": func() error {
			_, err := DecodeCustom(doc, YAML, Ignore, podGVK, nil, none)
			return err
		},
		"DecodeDeleteOptions": func() error {
			return DecodeDeleteOptions(doc, YAML, podGVK.GroupVersion(), &metav1.DeleteOptions{})
		},
		"DecodeApply": func() error {
			_, err := DecodeApply(doc, Ignore, none)
			return err
		},
		"CheckYAML": func() error { return CheckYAML(doc) },
	} {
		if err := decode(); err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
			t.Errorf("%s: %.200v, want excessive aliasing", what, err)
		}
	}
}
