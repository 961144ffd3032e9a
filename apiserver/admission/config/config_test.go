// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var known = []string{"One", "Two"}

var oneKind = schema.GroupVersionKind{Group: "one.example.com", Version: "v1", Kind: "One"}

type one struct {
	metav1.TypeMeta `json:",inline"`
	Size            int `json:"size"`
}

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("one.yaml", "apiVersion: one.example.com/v1\nkind: One\nsize: 3\n")
	path := write("all.yaml", head+"plugins:\n- name: One\n  path: one.yaml\n- name: Two\n  path: none.yaml\n  "+
		"configuration: {apiVersion: one.example.com/v1, kind: One, size: 4}\n")
	f, err := Load(path, known)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"One": 3, "Two": 4} {
		var got one
		if err := f.For(name).Decode(&got, oneKind); err != nil || got.Size != want {
			t.Errorf("%s: got %+v, %v, want size %d", name, got, err, want)
		}
	}
	if f.For("Three") != nil || (*File)(nil).For("One") != nil {
		t.Error("there is a document for a plugin without one")
	}
	if _, err := Load(filepath.Join(dir, "nowhere"), known); err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: got %v", err)
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  `it is a "" of "", not a AdmissionConfiguration of apiserver.config.k8s.io/v1`,
		"a: [":                              "yaml: ",
		"kind: Pod\napiVersion: v1":         `it is a "Pod" of "v1", not a AdmissionConfiguration of apiserver.config.k8s.io/v1`,
		head + "plugin: []\n":               `strict decoding error: unknown field "plugin"`,
		head + "plugins: []\nplugins: []\n": `key "plugins" already set in map`,
		head + "plugins: {}\n":              "cannot unmarshal object",
		head + "plugins:\n- path: x\n":      "plugins[0].name: Required value",
		head + "plugins:\n- name: Three\n":  `plugins[0].name: admission plugin "Three" is unknown`,
		head + "plugins:\n- name: One\n  configuration: {}\n- name: One\n": `plugins[1].name: Duplicate value: "One"`,
		head + "plugins:\n- name: One\n  path: gone\n": "plugins[0]: couldn't open admission " +
			"plugin configuration gone: no file",
		head + "plugins:\n- name: One\n  Configuration: {}\n": `unknown field "plugins[0].Configuration"`,
	} {
		_, err := Parse([]byte(text), known, func(string) ([]byte, error) { return nil, errors.New("no file") })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	f, err := Parse([]byte(head+"plugins:\n- name: One\n  configuration: {apiVersion: one.example.com/v1, kind: One, "+
		"siz: 1}\n"), known, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.For("One").Decode(&one{}, oneKind); err == nil ||
		err.Error() != `plugins[0] (One): strict decoding error: unknown field "siz"` {
		t.Errorf("unknown field of a plugin: got %v", err)
	}
}

// FuzzParse: whatever a file holds, it is read or refused, and what is read can be asked for.
func FuzzParse(f *testing.F) {
	f.Add(
		[]byte(head + "plugins:\n- name: One\n  configuration: {apiVersion: one.example.com/v1, kind: One, size: 4}\n"))
	f.Add([]byte(head + "plugins:\n- name: Two\n  path: x\n"))
	f.Add(
		[]byte(
			"{\"kind\":\"AdmissionConfiguration\",\"apiVersion\":\"apiserver.config.k8s.io/v1\",\"plugins\":[{\"name\":\"One\",\"configuration\":null}]}"))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Parse(b, known, func(string) ([]byte, error) { return b, nil })
		if (got == nil) == (err == nil) {
			t.Fatalf("got %v and %v", got, err)
		}
		for _, name := range known {
			if d := got.For(name); d != nil {
				var o one
				_ = d.Decode(&o, oneKind) // it may be anything
			}
		}
	})
}
