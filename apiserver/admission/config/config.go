// SPDX-License-Identifier: Apache-2.0

// Package config reads the file of --admission-control-config-file: an AdmissionConfiguration with a document, or the
// path of a document, for each plugin that needs one. apiserver/options loads it, and each plugin decodes its own
// document. Files are read at start and never reloaded.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// File is a parsed AdmissionConfiguration. A nil *File has no documents.
type File struct{ plugins map[string]*Document }

// Document is the configuration of one plugin.
type Document struct {
	location string // for errors
	raw      []byte
}

// The file format (apiserver.config.k8s.io/v1 AdmissionConfiguration).
type (
	file struct {
		metav1.TypeMeta `json:",inline"`
		Plugins         []plugin `json:"plugins"`
	}
	plugin struct {
		Name          string          `json:"name"`
		Path          string          `json:"path"`
		Configuration json.RawMessage `json:"configuration"`
	}
)

var kinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "AdmissionConfiguration"},
	{Group: "apiserver.config.k8s.io", Version: "v1alpha1", Kind: "AdmissionConfiguration"},
	{Group: "apiserver.k8s.io", Version: "v1alpha1", Kind: "AdmissionConfiguration"},
}

// Load reads an AdmissionConfiguration and the files that it names, relative to its directory. known are the names of
// all Kubernetes plugins.
func Load(path string, known []string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("unable to read admission control configuration: %w", err)
	}
	read := func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.ReadFile(name)
	}
	f, err := Parse(b, known, read)
	if err != nil {
		return nil, fmt.Errorf("admission control configuration %s: %w", path, err)
	}
	return f, nil
}

// Parse parses an AdmissionConfiguration; read returns the content of a file that it names.
func Parse(b []byte, known []string, read func(name string) ([]byte, error)) (*File, error) {
	var in file
	if err := decode(b, &in, kinds); err != nil {
		return nil, err
	}
	out := &File{plugins: map[string]*Document{}}
	for i, plugin := range in.Plugins {
		at := fmt.Sprintf("plugins[%d]", i)
		switch {
		case plugin.Name == "":
			return nil, fmt.Errorf("%s.name: Required value", at)
		case !slices.Contains(known, plugin.Name):
			return nil, fmt.Errorf("%s.name: admission plugin %q is unknown", at, plugin.Name)
		case out.plugins[plugin.Name] != nil:
			return nil, fmt.Errorf("%s.name: Duplicate value: %q", at, plugin.Name)
		}
		document := &Document{location: at + " (" + plugin.Name + ")"}
		switch inline := len(plugin.Configuration) > 0 && string(plugin.Configuration) != "null"; {
		case inline: // it has precedence over a path, as in Kubernetes
			document.raw = plugin.Configuration
		case plugin.Path != "":
			raw, err := read(plugin.Path)
			if err != nil {
				return nil, fmt.Errorf("%s: couldn't open admission plugin configuration %s: %w", at, plugin.Path, err)
			}
			document.raw = raw
			document.location = document.location + " in " + plugin.Path
		default:
			continue
		}
		out.plugins[plugin.Name] = document
	}
	return out, nil
}

// For returns a plugin's document; nil: there is none.
func (f *File) For(plugin string) *Document {
	if f == nil {
		return nil
	}
	return f.plugins[plugin]
}

// Decode decodes the document, which must have one of the given kinds, into the value that into points to. Errors
// include the location.
func (d *Document) Decode(into any, kinds ...schema.GroupVersionKind) error {
	if err := decode(d.raw, into, kinds); err != nil {
		return d.WrapError(err)
	}
	return nil
}

// DecodePlain decodes a document without apiVersion and kind, as some old plugins have; unknown fields are ignored.
func (d *Document) DecodePlain(into any) error { return d.WrapError(yaml.Unmarshal(d.raw, into)) }

// WrapError adds the document's location to err; nil for nil.
func (d *Document) WrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", d.location, err)
}

// decode decodes YAML or JSON strictly: unknown and duplicate fields are errors.
func decode(b []byte, into any, kinds []schema.GroupVersionKind) error {
	doc, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return err
	}
	var head metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &head); err != nil {
		return fmt.Errorf("no apiVersion and kind: %w", err)
	}
	if gvk := schema.FromAPIVersionAndKind(head.APIVersion, head.Kind); !slices.Contains(kinds, gvk) {
		return fmt.Errorf("it is a %q of %q, not a %s of %s", head.Kind, head.APIVersion, kinds[0].Kind,
			kinds[0].GroupVersion())
	}
	faults, err := kjson.UnmarshalStrict(doc, into)
	if err != nil {
		return err
	}
	if len(faults) > 0 {
		texts := make([]string, len(faults))
		for i, f := range faults {
			texts[i] = f.Error()
		}
		return errors.New("strict decoding error: " + strings.Join(texts, ", "))
	}
	return nil
}
