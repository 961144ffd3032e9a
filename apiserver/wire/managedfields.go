// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// The sets in managedFields are JSON already, and often half of an object. encoding/json checks and copies them byte by
// byte, each time, though most objects of a kind have the same few. So an object is encoded with a mark in place of
// each set, and the checked set replaces the mark.

// fieldsMark is what the encoder writes for a marked set. No string contains its quotes unescaped, and of what an
// object has before its managedFields, nothing else has a number under this name.
var fieldsMark = []byte(`"fieldsV1":0`)

var markedFields = func() *metav1.FieldsV1 {
	f := &metav1.FieldsV1{}
	f.SetRawString("0")
	return f
}()

// marshalJSON is json.Marshal of obj with its kind, where the managedFields of typed objects come from checkedFields.
func marshalJSON(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	named := kind.Named(obj, gvk)
	object, ok := named.(kind.Object)
	if _, untyped := named.(runtime.Unstructured); !ok || untyped {
		return json.Marshal(named)
	}
	entries, sets, err := markFields(object.GetManagedFields())
	if err != nil || len(sets) == 0 {
		return json.Marshal(named) // says what is wrong, and where
	}
	if named == obj {
		if object, ok = shallowCopy(object); !ok {
			return json.Marshal(named)
		}
	}
	object.SetManagedFields(entries)
	b, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return replaceMarks(b, sets), nil
}

// markFields returns a copy of entries with marks in place of their sets, and the sets as encoding/json writes them.
func markFields(entries []metav1.ManagedFieldsEntry) (marked []metav1.ManagedFieldsEntry, sets [][]byte, err error) {
	marked = slices.Clone(entries)
	for i := range marked {
		if marked[i].FieldsV1 == nil {
			continue
		}
		set, err := checkedFields.of(marked[i].FieldsV1)
		if err != nil {
			return nil, nil, err
		}
		sets = append(sets, set)
		marked[i].FieldsV1 = markedFields
	}
	return marked, sets, nil
}

// replaceMarks replaces the marks in b, which are in the order of sets.
func replaceMarks(b []byte, sets [][]byte) []byte {
	size := len(b) + 1 // and a newline
	for _, set := range sets {
		size += len(set)
	}
	out := make([]byte, 0, size)
	for _, set := range sets {
		at := bytes.Index(b, fieldsMark) + len(fieldsMark)
		out = append(out, b[:at-1]...)
		out = append(out, set...)
		b = b[at:]
	}
	return append(out, b...)
}

func shallowCopy(obj kind.Object) (kind.Object, bool) {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, false
	}
	c := reflect.New(v.Type().Elem())
	c.Elem().Set(v.Elem())
	return reflect.TypeAssert[kind.Object](c)
}

// fieldSets remembers sets as encoding/json writes them, by what is stored.
type fieldSets struct {
	mu    sync.Mutex
	known map[string][]byte
	bytes int
}

// Limits of what is remembered; when it is full it starts again.
const (
	maxFieldSets = 1 << 20 // bytes
	maxFieldSet  = 16 << 10
)

var checkedFields fieldSets

// of returns f as encoding/json writes it. The bytes are shared and must not be modified.
func (s *fieldSets) of(f *metav1.FieldsV1) ([]byte, error) {
	raw := f.GetRawBytes()
	s.mu.Lock()
	set := s.known[string(raw)]
	s.mu.Unlock()
	if set != nil {
		return set, nil
	}
	set, err := json.Marshal(f)
	if err != nil || len(raw) > maxFieldSet {
		return set, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || s.bytes > maxFieldSets {
		s.known = map[string][]byte{}
		s.bytes = 0
	}
	s.known[string(raw)] = set
	s.bytes += len(raw) + len(set)
	return set, nil
}
