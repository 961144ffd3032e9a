// SPDX-License-Identifier: Apache-2.0

// Package fault gives errors of the container runtime the gRPC codes by which CRI clients distinguish them. All
// packages of the runtime that answer CRI verbs use it. It never logs, and never changes an error's text except by a
// prefix.
package fault

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/runtime/image"
	"keelson/runtime/image/manifest"
	"keelson/runtime/oci"
	"keelson/runtime/shim"
)

// ErrCopy cannot happen: proto.Clone returns the type of its argument.
var ErrCopy = errors.New("copy message")

// NotFound returns the error for an id that names no object of the kind.
func NotFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", kind, id)
}

// AlreadyExists returns an error with the code AlreadyExists.
func AlreadyExists(format string, args ...any) error {
	return status.Errorf(codes.AlreadyExists, format, args...)
}

// FailedPrecondition returns an error with the code FailedPrecondition: the object or the machine is in a state in
// which the request cannot succeed.
func FailedPrecondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

// InvalidArgument returns an error with the code InvalidArgument: the request itself is wrong.
func InvalidArgument(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// IsNotFound reports whether the error has the code NotFound.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// Wrap prefixes an error with the failed operation and gives it the gRPC code of its cause. nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return statusWith(err, fmt.Sprintf(format, args...)+": ")
}

// Status gives an error, whose message names the operation already, the gRPC code of its cause.
func Status(err error) error { return statusWith(err, "") }

func statusWith(err error, prefix string) error {
	code := codes.Unknown
	var st interface{ GRPCStatus() *status.Status }
	switch {
	case errors.As(err, &st):
		return status.Error(st.GRPCStatus().Code(), prefix+st.GRPCStatus().Message())
	case errors.Is(err, oci.ErrInvalid), errors.Is(err, manifest.ErrReference):
		code = codes.InvalidArgument
	case errors.Is(err, shim.ErrNotFound), errors.Is(err, manifest.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, shim.ErrNotRunning):
		code = codes.FailedPrecondition
	case errors.Is(err, manifest.ErrUnavailable), errors.Is(err, shim.ErrDown):
		code = codes.Unavailable
	case errors.Is(err, image.ErrNoHelper): // nothing has begun
		code = codes.Aborted
	case errors.Is(err, manifest.ErrUnauthorized):
		code = codes.Unauthenticated
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, prefix+err.Error())
}
