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

// Status turns any error into the Status body that clients get. Errors that no client caused become 500.
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

// WriteError answers r with err as a Status in an encoding the client accepts.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	s := Status(err)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	want, nerr := Negotiate(r, nil) // a Status is never a Table
	if nerr != nil {
		want = Want{Media: JSON, Pretty: true} // somebody reads that
	}
	want.As = ""
	Write(w, r, int(s.Code), s, statusGVK, want)
}

func notAcceptable(media ...string) error {
	return newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(media, ", "))
}

// UnsupportedMedia is the 415 answer; accepted lists what the endpoint takes (nil: the usual three).
func UnsupportedMedia(accepted []string) error {
	if accepted == nil {
		accepted = mediaTypes[:]
	}
	return newStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(accepted, ", "))
}

// UnsupportedRoute is the 415 answer of paths that are told apart by what they take.
func UnsupportedRoute() error {
	s := newStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// Takes tells whether a client accepts any of media, parameters left aside, as routes are chosen: ranges other than */* choose none.
func Takes(r *http.Request, media ...string) bool {
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

// NotAcceptableRoute is the 406 answer of paths that are told apart by what they answer with, which is media.
func NotAcceptableRoute(media ...string) error {
	s := newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+strings.Join(media, ", "))
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// NotAcceptableAs is the 406 answer to who asks for the form of one object where a list is the answer, or the other way round.
func NotAcceptableAs(message string) error {
	return newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}

// NotFoundPath is the answer for a path or verb that nobody serves.
func NotFoundPath() error {
	s := newStatus(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

// MethodNotAllowed is the answer for a resource that does not have the verb.
func MethodNotAllowed() error {
	s := newStatus(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	s.ErrStatus.Details = &metav1.StatusDetails{}
	return s
}

func newStatus(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}
