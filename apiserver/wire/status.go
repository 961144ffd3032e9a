// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var statusGVK = schema.GroupVersionKind{Version: "v1", Kind: "Status"}

// Status converts an error to the Status body for clients. Errors not caused by the client become 500.
func Status(err error) *metav1.Status {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		s := known.Status()
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		if s.Status == "" {
			s.Status = metav1.StatusFailure
		}
		if s.Code == 0 {
			s.Code = http.StatusInternalServerError
		}
		return &s
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Status(apierrors.NewTimeoutError("request did not complete within requested timeout - "+err.Error(), 0))
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  err.Error(),
		Code:     http.StatusInternalServerError,
	}
}

// WriteError responds with err as a Status in an encoding that the client accepts.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	s := Status(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	want, nerr := Negotiate(r, nil) // a Status is never a Table
	if nerr != nil {
		want = MediaTypeOptions{Media: JSON, Pretty: true} // probably read by a person
	}
	want.As = ""
	Write(w, r, int(s.Code), s, statusGVK, want)
}

func notAcceptable(media ...string) error {
	return newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(media, ", "))
}

// UnsupportedMedia is the 415 error; accepted lists the supported types (nil: the usual three).
func UnsupportedMedia(accepted []string) error {
	if accepted == nil {
		accepted = mediaTypes[:]
	}
	return newStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(accepted,
			", "))
}

// UnsupportedRoute is the 415 error of paths that are routed by request type.
func UnsupportedRoute() error {
	s := newStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"415: Unsupported Media Type")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// Accepts reports whether a client accepts any of media, ignoring parameters, as in route selection: ranges other than
// */* match nothing.
func Accepts(r *http.Request, media ...string) bool {
	header := r.Header.Get("Accept")
	if header == "" {
		return true
	}
	for part := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(part, ";")
		if name = strings.TrimSpace(name); name == "*/*" || slices.Contains(media, name) {
			return true
		}
	}
	return false
}

// NotAcceptableRoute is the 406 error of paths that are routed by response type; media are the supported ones.
func NotAcceptableRoute(media ...string) error {
	s := newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"406: Not Acceptable\n\nAvailable representations: "+strings.Join(media, ", "))
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// NotAcceptableAs is the 406 error for a conversion of a single object on a list, or the reverse.
func NotAcceptableAs(message string) error {
	return newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}

// NotFoundPath is the error for an unknown path or verb.
func NotFoundPath() error {
	s := newStatus(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// MethodNotAllowed is the error for a verb that a resource does not support.
func MethodNotAllowed() error {
	s := newStatus(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		"the server does not allow this method on the requested resource")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

func newStatus(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}
