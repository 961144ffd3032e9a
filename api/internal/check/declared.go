// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kubernetes checks an object twice: by code, then by what is declared with the fields of its types. What the second
// finds comes last in its answer; kind.ClientErrors puts it there. The methods here report such errors.

// Declared adds errors that come last. Their values are shown with the names that fields have in JSON.
func (l *List) Declared(errs ...*field.Error) {
	for _, e := range errs {
		if v := reflect.ValueOf(e.BadValue); v.IsValid() && v.Kind() == reflect.Struct &&
			strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/") {
			e.BadValue = served{e.BadValue}
		}
		l.Add(e.MarkBeta())
	}
}

// served is a value as clients know it.
type served struct{ value any }

// MarshalJSON implements json.Marshaler.
func (s served) MarshalJSON() ([]byte, error) { return json.Marshal(s.value) }

// Form is one of the formats in apimachinery's validate package.
type Form[T ~string] func(context.Context, operation.Operation, *field.Path, *T, *T) field.ErrorList

// Format wants a value of the declared format f.
func Format[T ~string](l *List, child string, v T, f Form[T]) {
	l.Declared(f(context.Background(), operation.Operation{Type: operation.Create}, l.Path(child), &v, nil)...)
}

// Missing reports a value that is declared to be required.
func (l *List) Missing(child string) { l.Declared(field.Required(l.Path(child), "")) }

// Fixed reports that the child has changed, which is declared never to.
func (l *List) Fixed(child string, same bool) {
	if !same {
		l.Declared(field.Invalid(l.Path(child), nil, "field is immutable"))
	}
}
