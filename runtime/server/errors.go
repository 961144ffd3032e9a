// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/runtime/image"
	"keelson/runtime/oci"
	"keelson/runtime/shim"
)

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", kind, id)
}

// errCopy cannot happen: a message is not of its own type.
var errCopy = errors.New("copy message")

func exists(format string, args ...any) error {
	return status.Errorf(codes.AlreadyExists, format, args...)
}

func refused(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func badRequest(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// act wraps an error with what was being done, giving it the gRPC code that its cause calls for. nil stays nil.
func act(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return coded(err, fmt.Sprintf(format, args...)+": ")
}

// codedErr is an error that says itself what was done to what, with CRI's code for its cause.
func codedErr(err error) error { return coded(err, "") }

func coded(err error, act string) error {
	code := codes.Unknown
	var st interface{ GRPCStatus() *status.Status }
	switch {
	case errors.As(err, &st):
		return status.Error(st.GRPCStatus().Code(), act+st.GRPCStatus().Message())
	case errors.Is(err, oci.ErrInvalid), errors.Is(err, image.ErrReference):
		code = codes.InvalidArgument
	case errors.Is(err, shim.ErrNotFound), errors.Is(err, image.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, shim.ErrNotRunning):
		code = codes.FailedPrecondition
	case errors.Is(err, image.ErrUnavailable), errors.Is(err, shim.ErrDown):
		code = codes.Unavailable
	case errors.Is(err, image.ErrUnauthorized):
		code = codes.Unauthenticated
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, act+err.Error())
}

// find looks a thing up by its id or a beginning of it that fits one only.
func find[T any](all map[string]T, kind, id string) (T, error) {
	if v, ok := all[id]; ok {
		return v, nil
	}
	var found T
	n := 0
	if len(id) >= minPrefix {
		for full, v := range all {
			if strings.HasPrefix(full, id) {
				found, n = v, n+1
			}
		}
	}
	if n == 1 {
		return found, nil
	}
	var none T
	return none, notFound(kind, id)
}

// minPrefix is how much of an id people must type.
const minPrefix = 4
