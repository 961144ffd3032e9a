// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Erase fills the gaps of s with defaults and drops its type.
func (s Spec[T]) Erase() *Kind {
	spec := &Kind{
		Names:               s.Names,
		New:                 func() Object { return s.New() },
		NewList:             s.NewList,
		Default:             one(s.Default),
		PrepareCreate:       one(s.PrepareCreate),
		PrepareUpdate:       two(s.PrepareUpdate),
		Validate:            check(s.Validate),
		ValidateUpdate:      checkUpdate(s.ValidateUpdate),
		ValidateName:        s.ValidateName,
		MetaLast:            s.MetaLast,
		Columns:             s.Columns,
		CreateOnUpdate:      s.CreateOnUpdate,
		UnconditionalUpdate: !s.NoUnconditionalUpdate,
		OrphanByDefault:     s.OrphanByDefault,
		CreateOnly:          s.CreateOnly,
		Graceful:            s.Grace != nil,
		Subs:                map[string]*ErasedSub{},
	}
	switch {
	case s.MetaLast:
		spec.ValidateName = path.ValidatePathSegmentName //nolint:staticcheck // a copy is no better
	case spec.ValidateName == nil:
		spec.ValidateName = validation.NameIsDNSSubdomain
	}
	spec.Fields = s.fieldSet
	spec.Warnings = func(obj, old Object) []string {
		if s.Warnings == nil {
			return nil
		}
		o, _ := old.(T)
		return s.Warnings(obj.(T), o)
	}
	spec.EarlyWarnings = func(obj Object) []string {
		if s.EarlyWarnings == nil {
			return nil
		}
		return s.EarlyWarnings(obj.(T))
	}
	spec.Grace = func(obj Object, opts *metav1.DeleteOptions) int64 {
		if s.Grace == nil {
			return 0
		}
		return s.Grace(obj.(T), opts)
	}
	s.eraseTable(spec)
	s.eraseSubresources(spec)
	for version, read := range s.StoredVersions {
		if spec.StoredVersions == nil {
			spec.StoredVersions = map[string]func([]byte) (Object, error){}
		}
		spec.StoredVersions[version] = func(doc []byte) (Object, error) { return read(doc) }
	}
	return spec
}

// fieldSet has the values that field selectors compare.
func (s *Spec[T]) fieldSet(obj Object) fields.Set {
	set := fields.Set{}
	if s.Fields != nil {
		set = s.Fields(obj.(T))
	}
	set["metadata.name"] = obj.GetName()
	if s.Namespaced {
		set["metadata.namespace"] = obj.GetNamespace()
	}
	return set
}

// eraseTable sets what `kubectl get` prints.
func (s *Spec[T]) eraseTable(k *Kind) {
	k.Row = func(obj Object) []any { return []any{obj.GetName(), Age(obj.GetCreationTimestamp())} }
	if s.Row != nil {
		k.Row = func(obj Object) []any { return s.Row(obj.(T)) }
	} else {
		k.Columns = []metav1.TableColumnDefinition{NameColumn, AgeColumn}
	}
	if s.Done != nil {
		k.Done = func(obj Object) []metav1.TableRowCondition { return s.Done(obj.(T)) }
	}
}

func (s *Spec[T]) eraseSubresources(k *Kind) {
	if s.Status != nil {
		k.Subs["status"] = s.Status.erase()
	}
	for name, sub := range s.More {
		k.Subs[name] = sub.erase()
	}
	if s.Scale != nil {
		k.Scale = &ErasedScale{
			Get:  func(obj Object) (int32, int32, string) { return s.Scale.Get(obj.(T)) },
			Set:  func(obj Object, n int32) { s.Scale.Set(obj.(T), n) },
			Path: s.Scale.Path,
		}
	}
}

func (s *Sub[T]) erase() *ErasedSub {
	sub := &ErasedSub{PrepareUpdate: two(s.PrepareUpdate), ValidateUpdate: checkUpdate(s.ValidateUpdate)}
	if s.Warnings != nil {
		sub.Warnings = func(obj Object) []string { return s.Warnings(obj.(T)) }
	}
	return sub
}

func one[T Object](f func(T)) func(Object) {
	return func(obj Object) {
		if f != nil {
			f(obj.(T))
		}
	}
}

func two[T Object](f func(T, T)) func(Object, Object) {
	return func(obj, old Object) {
		if f != nil {
			f(obj.(T), old.(T))
		}
	}
}

func check[T Object](f func(T) field.ErrorList) func(Object) field.ErrorList {
	return func(obj Object) field.ErrorList {
		if f == nil {
			return nil
		}
		return f(obj.(T))
	}
}

func checkUpdate[T Object](f func(T, T) field.ErrorList) func(Object, Object) field.ErrorList {
	return func(obj, old Object) field.ErrorList {
		if f == nil {
			return nil
		}
		return f(obj.(T), old.(T))
	}
}

// NameColumn and AgeColumn begin and end most tables.
var (
	NameColumn = metav1.TableColumnDefinition{
		Name:        "Name",
		Type:        "string",
		Format:      "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
	}
	AgeColumn = metav1.TableColumnDefinition{
		Name:        "Age",
		Type:        "string",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}
)

// Wide is a column that only `kubectl get -o wide` prints.
func Wide(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{
		Name:        name,
		Type:        "string",
		Priority:    1,
		Description: description,
	}
}

// OrNone is s, or what kubectl prints for nothing.
func OrNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// Age is how kubectl prints the time since t: "5m", "3d4h"; "<unknown>" for the zero time.
func Age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
