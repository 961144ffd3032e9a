// SPDX-License-Identifier: Apache-2.0

// Package invalid bounds what a rejected object costs. Validation collects its
// errors with Append, which keeps the first Max and counts the others; New and
// Text are the only places that make text of them. The packages of api and the
// server call it instead of apimachinery's NewInvalid and ToAggregate, whose
// cost grows with the square of the errors. It never decides what is valid.
package invalid

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// Max is how many errors a list keeps and an answer names.
	Max = 100
	// maxText is the length in bytes after which an answer names no further error.
	maxText = 64 << 10
	// maxValue is the length in bytes up to which an answer shows a value, and maxPart that of a path, a name or the
	// beginning of a longer text.
	maxValue = 16 << 10
	maxPart  = 1 << 10
)

// more is the value of the error that counts those that were not kept. It stands at the end of a list.
type more int

// String implements fmt.Stringer.
func (m more) String() string { return fmt.Sprintf("and %d more", int(m)) }

func dropped(err *field.Error) (int, bool) {
	m, ok := err.BadValue.(more)
	return int(m), ok
}

// Append appends found to errs, which it keeps at Max errors. If there are others, one further error at the end of the
// list counts them.
func Append(errs field.ErrorList, found ...*field.Error) field.ErrorList {
	for _, err := range found {
		n, isCount := dropped(err)
		if !isCount && len(errs) < Max {
			errs = append(errs, err)
			continue
		}
		if !isCount {
			n = 1
		}
		errs = addDropped(errs, n)
	}
	return errs
}

// WithOthers is errs followed by the count of n errors that are not in it; errs itself if n is 0.
func WithOthers(errs field.ErrorList, n int) field.ErrorList {
	if n == 0 {
		return errs
	}
	return addDropped(slices.Clip(errs), n)
}

func addDropped(errs field.ErrorList, n int) field.ErrorList {
	if len(errs) > 0 {
		last := errs[len(errs)-1]
		if before, ok := dropped(last); ok {
			errs[len(errs)-1] = &field.Error{Type: last.Type, BadValue: more(before + n)}
			return errs
		}
	}
	return append(errs, &field.Error{Type: field.ErrorTypeTooMany, BadValue: more(n)})
}

// Count is the number of errors in a list that Append made, those included that it did not keep.
func Count(errs field.ErrorList) int {
	if len(errs) == 0 {
		return 0
	}
	n, ok := dropped(errs[len(errs)-1])
	if !ok {
		return len(errs)
	}
	return len(errs) - 1 + n
}

// First returns the errors of errs that an answer may name, with values short enough to be shown, and the number of
// the others. It leaves errs as it is.
func First(errs field.ErrorList) (shown field.ErrorList, others int) {
	for _, err := range errs {
		switch n, isCount := dropped(err); {
		case isCount:
			others += n
		case len(shown) == Max:
			others++
		default:
			shown = append(shown, short(err))
		}
	}
	return shown, others
}

// New is the answer to an object with errs. Its words are those of apimachinery's NewInvalid as long as they are few.
func New(gk schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	shown, others := First(errs)
	name = cut(name, maxPart)
	text, causes := write(shown, others)
	if text != "" {
		text = ": " + text
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnprocessableEntity,
		Reason:  metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s %q is invalid%s", gk.String(), name, text),
		Details: &metav1.StatusDetails{
			Group:  gk.Group,
			Kind:   gk.Kind,
			Name:   name,
			Causes: causes,
		},
	}}
}

// Error is errs as one error with the text that ToAggregate gives to few; nil if there are none.
func Error(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return &list{errs}
}

// list is an error list as an error. Its text is made when it is wanted.
type list struct{ errs field.ErrorList }

// Error implements error.
func (l *list) Error() string {
	shown, others := First(l.errs)
	text, _ := write(shown, others)
	return text
}

// Errors is errs as one error with the text that apimachinery's NewAggregate gives to few; nil if there are none.
func Errors(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &several{errs}
}

// several is a list of errors as an error. Its text is made when it is wanted.
type several struct{ errs []error }

// Error implements error.
func (s *several) Error() string {
	var parts []string
	size := 0
	for i, err := range s.errs {
		if i == Max || size > maxText {
			return Join(parts, len(s.errs)-i)
		}
		part := cut(err.Error(), maxValue)
		size += len(part)
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return Join(parts, 0)
}

// Unwrap returns the errors for errors.Is and errors.As.
func (s *several) Unwrap() []error { return s.errs }

// write renders each error once: as a cause, and as a part of the message unless the message has that part already.
func write(errs field.ErrorList, others int) (string, []metav1.StatusCause) {
	causes := make([]metav1.StatusCause, 0, len(errs))
	var parts []string
	seen := map[string]bool{}
	size := 0
	for i, err := range errs {
		if size > maxText {
			others += len(errs) - i
			break
		}
		body := cut(err.ErrorBody(), 2*maxValue)
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(err.Type), Message: body, Field: err.Field})
		part := err.Field + ": " + body
		size += len(part)
		if !seen[part] {
			seen[part] = true
			parts = append(parts, part)
		}
	}
	return Join(parts, others), causes
}

// Join is the text of several errors as apimachinery's Aggregate writes it. others is the number of those that are not
// in parts.
func Join(parts []string, others int) string {
	if others > 0 {
		parts = append(parts, more(others).String())
	}
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// short is err with a path and a value that are short enough to be shown.
func short(err *field.Error) *field.Error {
	out := *err
	out.Field = cut(err.Field, maxPart)
	out.Detail = cut(err.Detail, maxValue)
	switch v := err.BadValue.(type) {
	case nil:
	case string:
		if len(v) > maxValue {
			out.BadValue = cut(v, maxPart)
		}
	default:
		left := maxValue
		if !fits(reflect.ValueOf(v), &left) {
			out.BadValue = fmt.Sprintf("(a value of more than %d bytes)", maxValue)
		}
	}
	return &out
}

// cut shortens s to its first n bytes if it is longer.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:n], ""), len(s))
}

// fits takes from left about what value takes as JSON with all its fields, and reports whether that is there. It visits
// no more than it counts.
func fits(value reflect.Value, left *int) bool {
	*left -= 2
	if *left < 0 || !value.IsValid() {
		return *left >= 0
	}
	if value.Type() == reflect.TypeFor[time.Time]() { // which points to the tables of its time zone
		return true
	}
	switch value.Kind() {
	case reflect.String:
		*left -= value.Len()
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			return fits(value.Elem(), left)
		}
	case reflect.Slice, reflect.Array:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			*left -= value.Len()
			break
		}
		for i := range value.Len() {
			if !fits(value.Index(i), left) {
				return false
			}
		}
	case reflect.Map:
		for it := value.MapRange(); it.Next(); {
			if !fits(it.Key(), left) || !fits(it.Value(), left) {
				return false
			}
		}
	case reflect.Struct:
		for i := range value.NumField() {
			*left -= len(value.Type().Field(i).Name)
			if !fits(value.Field(i), left) {
				return false
			}
		}
	}
	return *left >= 0
}
