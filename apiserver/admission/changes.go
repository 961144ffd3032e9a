// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// Limits of ChangedFields, because webhooks choose the names.
const (
	maxFields      = 12
	maxFieldLength = 160
)

// ChangedFields lists the fields in which two objects of one type differ, sorted: "metadata.labels[team]",
// "spec.containers[app].image". A list with unnamed elements is one field, and so is an element that only one object
// has. If more than maxFields differ, it lists their parents, with as many levels as possible, but at least two. It is
// for plugins that apply foreign patches.
func ChangedFields(before, after runtime.Object) []string {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return nil
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		return nil
	}
	fields := changedFields(was, is, math.MaxInt)
	for levels := maxLevels; len(fields) > maxFields && levels >= 2; levels-- {
		fields = changedFields(was, is, levels)
	}
	return fields
}

// maxLevels is the number of levels tried first if there are too many fields.
const maxLevels = 8

// changedFields lists the differences down to that many levels.
func changedFields(was, is map[string]any, levels int) []string {
	d := &difference{levels: levels}
	d.compareMaps("", "", was, is, 0)
	for i, f := range d.fields {
		d.fields[i] = shortened(f)
	}
	return slices.Compact(d.fields)
}

// difference collects the paths of different fields.
type difference struct {
	levels int
	fields []string
}

// compare compares the values at a path; name is the last part of the path.
func (d *difference) compare(path, name string, was, is any, level int) {
	a, mapA := was.(map[string]any)
	b, mapB := is.(map[string]any)
	if level < d.levels && (mapA || was == nil) && (mapB || is == nil) && len(a)+len(b) > 0 {
		d.compareMaps(path, name, a, b, level)
		return
	}
	if level < d.levels {
		a, nameA := elementsByName(was)
		b, nameB := elementsByName(is)
		if nameA != "" && nameA == nameB {
			d.compareElements(path, a, b, level)
			return
		}
	}
	d.fields = append(d.fields, path)
}

func (d *difference) compareMaps(path, name string, was, is map[string]any, level int) {
	for _, key := range differing(was, is) {
		at := key
		switch {
		case keyed[name] || !fieldName.MatchString(key):
			at = path + bracket(key)
		case path != "":
			at = path + "." + key
		}
		d.compare(at, key, was[key], is[key], level+1)
	}
}

func (d *difference) compareElements(path string, was, is map[string]any, level int) {
	for _, key := range differing(was, is) {
		at := path + bracket(key)
		if was[key] == nil || is[key] == nil {
			d.fields = append(d.fields, at)
			continue
		}
		d.compare(at, "", was[key], is[key], level+1)
	}
}

var (
	// keyed are the fields that are maps with arbitrary keys.
	keyed = map[string]bool{
		"labels":       true,
		"annotations":  true,
		"matchLabels":  true,
		"nodeSelector": true,
		"limits":       true,
		"requests":     true,
		"capacity":     true,
		"overhead":     true,
		"data":         true,
		"stringData":   true,
		"binaryData":   true,
		"parameters":   true,
	}
	// names are the fields that identify list elements, from Kubernetes' merge keys.
	names     = []string{"name", "key", "mountPath", "uid", "topologyKey", "type"}
	fieldName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
)

// bracket formats a key; a key with control characters is quoted.
func bracket(key string) string {
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		key = quoted
	}
	return "[" + key + "]"
}

// elementsByName maps the elements of a list by their identifying field, and returns that field; empty: they have none
// or it is not unique.
func elementsByName(v any) (map[string]any, string) {
	list, _ := v.([]any)
	for _, field := range names {
		out := make(map[string]any, len(list))
		for _, e := range list {
			m, _ := e.(map[string]any)
			if name, ok := m[field].(string); ok {
				out[name] = e
			}
		}
		if len(list) > 0 && len(out) == len(list) {
			return out, field
		}
	}
	return nil, ""
}

func shortened(field string) string {
	if len(field) <= maxFieldLength {
		return field
	}
	cut := maxFieldLength
	for cut > 0 && !utf8.RuneStart(field[cut]) {
		cut--
	}
	return field[:cut] + "..."
}

// differing are the keys with different values in a and b.
func differing(a, b map[string]any) []string {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	maps.DeleteFunc(keys, func(k string, _ bool) bool { return apiequality.Semantic.DeepEqual(a[k], b[k]) })
	return slices.Sorted(maps.Keys(keys))
}
