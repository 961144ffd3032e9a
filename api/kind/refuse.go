// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/meta"
)

// ClientErrors is errs as clients receive them: no error twice; those that Kubernetes finds by rules that its types
// declare (marked so by field.Error.MarkBeta) after all others; and values that are parts of objects with the names
// that their fields have in Go, as Kubernetes prints its internal types.
//
// It looks at the first errors only, as many as an answer may name; the last element then counts the others.
func ClientErrors(errs field.ErrorList) field.ErrorList {
	errs, others := invalid.First(errs)
	out := make(field.ErrorList, 0, len(errs))
	seen := map[string]bool{}
	for _, err := range errs {
		if inAPI(reflect.TypeOf(err.BadValue)) {
			changed := *err
			changed.BadValue = goNamed{err.BadValue}
			err = &changed
		}
		if text := err.Error(); !seen[text] {
			seen[text] = true
			out = append(out, err)
		}
	}
	slices.SortStableFunc(out, func(a, b *field.Error) int {
		switch {
		case a.IsBeta() == b.IsBeta():
			return 0
		case b.IsBeta():
			return -1
		}
		return 1
	})
	return invalid.WithOthers(out, others)
}

// inAPI reports whether t is, points to or holds a struct of k8s.io/api.
func inAPI(t reflect.Type) bool {
	for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
		t = t.Elem()
	}
	return t != nil && t.Kind() == reflect.Struct && strings.HasPrefix(t.PkgPath(), "k8s.io/api/")
}

// goNamed marshals a value with the names that fields of k8s.io/api have in Go, all of them, set or not.
type goNamed struct{ value any }

func (g goNamed) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeGoNamed(&b, reflect.ValueOf(g.value))
	return b.Bytes(), err
}

func writeGoNamed(buf *bytes.Buffer, value reflect.Value) error {
	typ := value.Type()
	if !inAPI(typ) {
		text, err := json.Marshal(value.Interface())
		buf.Write(text)
		return err
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		if value.IsNil() {
			buf.WriteString("null")
			return nil
		}
		if typ.Kind() == reflect.Pointer {
			return writeGoNamed(buf, value.Elem())
		}
		buf.WriteByte('[')
		for i := range value.Len() {
			if i > 0 {
				buf.WriteByte(',')
			}
			if err := writeGoNamed(buf, value.Index(i)); err != nil {
				return err
			}
		}
		buf.WriteByte(']')
		return nil
	default:
		buf.WriteByte('{')
		if err := writeFields(buf, value); err != nil {
			return err
		}
		buf.WriteByte('}')
		return nil
	}
}

// writeFields writes the fields of struct v; those of embedded structs as its own.
func writeFields(buf *bytes.Buffer, v reflect.Value) error {
	for i := range v.NumField() {
		structField := v.Type().Field(i)
		if structField.Anonymous && inAPI(structField.Type) && structField.Type.Kind() == reflect.Struct {
			if err := writeFields(buf, v.Field(i)); err != nil {
				return err
			}
			continue
		}
		text := bytes.Buffer{}
		if err := writeGoNamed(&text, v.Field(i)); err != nil {
			return err
		}
		member := text.Bytes()
		if structField.Anonymous { // of apimachinery: its own names, next to the others
			if member = bytes.TrimSuffix(bytes.TrimPrefix(member, []byte{'{'}), []byte{'}'}); len(member) == 0 {
				continue
			}
		} else {
			member = append([]byte(`"`+structField.Name+`":`), member...)
		}
		if last := buf.Bytes(); len(last) > 0 && last[len(last)-1] != '{' {
			buf.WriteByte(',')
		}
		buf.Write(member)
	}
	return nil
}

// Check is all that is wrong with a new object, its metadata included. It ends with ctx, and its result then means
// nothing.
func (k *Kind) Check(ctx context.Context, obj Object) field.ErrorList {
	metadata := func() field.ErrorList {
		at := field.NewPath("metadata")
		if errs := meta.TooLarge(obj, at); len(errs) > 0 {
			return errs
		}
		return validation.ValidateObjectMetaAccessor(obj, k.Namespaced, k.ValidateName, at)
	}
	if k.MetaLast {
		if errs := k.withRules(ctx, "", k.Validate(obj), obj, nil); len(errs) > 0 {
			return errs
		}
		return metadata()
	}
	errs := invalid.Append(nil, metadata()...)
	if ctx.Err() != nil {
		return errs
	}
	return invalid.Append(errs, k.withRules(ctx, "", k.Validate(obj), obj, nil)...)
}

// CheckUpdate is all that is wrong with obj as the new state of old, or of its subresource sub, apart from its
// metadata. It ends with ctx as Check does.
func (k *Kind) CheckUpdate(ctx context.Context, sub string, obj, old Object) field.ErrorList {
	validate := k.ValidateUpdate
	if part := k.Subs[sub]; part != nil {
		validate = part.ValidateUpdate
	}
	return k.withRules(ctx, sub, validate(obj, old), obj, old)
}

func (k *Kind) withRules(ctx context.Context, sub string, found field.ErrorList, obj, old Object) field.ErrorList {
	found = invalid.Append(nil, found...)
	if k.Rules == nil || ctx.Err() != nil {
		return found
	}
	return invalid.Append(found, k.Rules(ctx, sub, obj, old, found)...)
}
