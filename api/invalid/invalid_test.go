// SPDX-License-Identifier: Apache-2.0

package invalid

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var pods = schema.GroupKind{Kind: "Pod"}

// errorsOf returns n different errors.
func errorsOf(n int) field.ErrorList {
	var out field.ErrorList
	for i := range n {
		out = append(out, field.Required(field.NewPath("spec", "containers").Index(i).Child("name"), ""))
	}
	return out
}

// TestAsKubernetes: an answer that is not too long is the one of apimachinery.
func TestAsKubernetes(t *testing.T) {
	at := field.NewPath("spec")
	container := corev1.Container{Name: "a", Env: []corev1.EnvVar{{Name: "x"}}}
	for _, errs := range []field.ErrorList{
		nil,
		errorsOf(1),
		errorsOf(2),
		errorsOf(Max),
		{field.Required(at, "why"), field.Required(at, "why")},
		{
			field.Invalid(at, "text", "why"), field.Invalid(at, 7, "why"), field.Invalid(at, nil, "why"),
			field.Invalid(at, &container, "why"),
			field.Invalid(at, []corev1.Container{container}, ""), field.Invalid(at, map[string]string{"a": "b"}, "why"),
			field.Invalid(at, metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)), "why"),
			field.Invalid(at, make(chan int), "why"),
			field.TooLong(at, "", 7), field.TooMany(at, 8, 7), field.Duplicate(at, "a"), field.NotFound(at, "b"),
			field.Forbidden(at, "no"),
			field.NotSupported(at, "a", []string{"b", "c"}), field.InternalError(at, errors.New("oh")),
		},
	} {
		want := apierrors.NewInvalid(pods, "x", errs)
		if strings.Contains(want.Error(), "chan") { // shown as an address
			errs = append(errs[:7:7], errs[8:]...)
			want = apierrors.NewInvalid(pods, "x", errs)
		}
		if diff := cmp.Diff(want, New(pods, "x", errs)); diff != "" {
			t.Errorf("%d errors: -want +got\n%s", len(errs), diff)
		}
		if len(errs) > 0 {
			if got, want := Error(errs).Error(), errs.ToAggregate().Error(); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
		}
	}
	if Error(nil) != nil || Errors(nil) != nil {
		t.Error("no errors are an error")
	}
	some := []error{errors.New("a"), fmt.Errorf("b: %w", errors.ErrUnsupported), errors.New("a")}
	if got, want := Errors(some), utilerrors.NewAggregate(some); got.Error() != want.Error() ||
		!errors.Is(got, errors.ErrUnsupported) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestManyErrors: an answer names Max errors and counts the others, whether they were collected by Append or not.
func TestManyErrors(t *testing.T) {
	const n = 200_000
	all := errorsOf(n)
	kept := Append(Append(nil, all[:70]...), Append(Append(nil, all[70:n/2]...), Append(nil, all[n/2:]...)...)...)
	if len(kept) != Max+1 || Count(kept) != n {
		t.Fatalf("Append kept %d errors and counts %d, want %d and %d", len(kept), Count(kept), Max+1, n)
	}
	end := fmt.Sprintf(", and %d more]", n-Max)
	for _, errs := range []field.ErrorList{all, kept} {
		got := New(pods, "x", errs)
		if len(got.ErrStatus.Details.Causes) != Max || !strings.HasSuffix(got.ErrStatus.Message, end) ||
			strings.Count(got.ErrStatus.Message, "spec.containers[") != Max {
			t.Errorf("%d causes, message %.200s", len(got.ErrStatus.Details.Causes), got.ErrStatus.Message)
		}
		if text := Error(errs).Error(); !strings.HasSuffix(text, end) {
			t.Errorf("text %.200s", text)
		}
	}
	plain := make([]error, n)
	for i := range plain {
		plain[i] = fmt.Errorf("error %d", i)
	}
	if text := Errors(plain).Error(); !strings.HasSuffix(text, end) || len(text) > 4<<10 {
		t.Errorf("text %.200s", text)
	}
}

// TestLargeParts: values, paths, names and details of megabytes do not come back, however many errors show them.
func TestLargeParts(t *testing.T) {
	const size = 3 << 20
	long := strings.Repeat("\x01", size)
	owners := make([]metav1.OwnerReference, size/3)
	at := field.NewPath("metadata")
	for what, err := range map[string]*field.Error{
		"string":     field.Invalid(at, long, "why"),
		"struct":     field.Invalid(at, metav1.ObjectMeta{OwnerReferences: owners}, "why"),
		"slice":      field.Invalid(at, owners, "why"),
		"map":        field.Invalid(at, map[string]string{long: "", "a": long}, "why"),
		"bytes":      field.Invalid(at, []byte(long), "why"),
		"any":        field.Invalid(at, map[string]any{"a": []any{long}}, "why"),
		"path":       field.Invalid(at.Key(long), "", "why"),
		"detail":     field.Forbidden(at, long),
		"many bytes": field.Invalid(at, strings.Repeat("\x01", maxValue-1), "why"),
	} {
		var errs field.ErrorList
		for i := range Max {
			one := *err
			one.Field = fmt.Sprint(one.Field, i)
			errs = append(errs, &one)
		}
		got := New(pods, long, errs)
		total := len(got.ErrStatus.Message) + len(got.ErrStatus.Details.Name)
		for _, c := range got.ErrStatus.Details.Causes {
			total += len(c.Message) + len(c.Field)
		}
		if total > 512<<10 || len(got.ErrStatus.Details.Causes) == 0 {
			t.Errorf("%s: an answer of %d bytes with %d causes", what, total, len(got.ErrStatus.Details.Causes))
		}
	}
}
