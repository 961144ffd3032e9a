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

// errCopy cannot happen: proto.Clone returns the type of its argument.
var errCopy = errors.New("copy message")

func alreadyExists(format string, args ...any) error {
	return status.Errorf(codes.AlreadyExists, format, args...)
}

func failedPrecondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func invalidArgument(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// wrapf prefixes an error with the failed operation and gives it the gRPC code of its cause. nil stays nil.
func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return statusWith(err, fmt.Sprintf(format, args...)+": ")
}

// toStatus gives an error, whose message names the operation already, the gRPC code of its cause.
func toStatus(err error) error { return statusWith(err, "") }

func statusWith(err error, wrapf string) error {
	code := codes.Unknown
	var st interface{ GRPCStatus() *status.Status }
	switch {
	case errors.As(err, &st):
		return status.Error(st.GRPCStatus().Code(), wrapf+st.GRPCStatus().Message())
	case errors.Is(err, oci.ErrInvalid), errors.Is(err, image.ErrReference):
		code = codes.InvalidArgument
	case errors.Is(err, shim.ErrNotFound), errors.Is(err, image.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, shim.ErrNotRunning):
		code = codes.FailedPrecondition
	case errors.Is(err, image.ErrUnavailable), errors.Is(err, shim.ErrDown):
		code = codes.Unavailable
	case errors.Is(err, image.ErrNoHelper): // nothing has begun
		code = codes.Aborted
	case errors.Is(err, image.ErrUnauthorized):
		code = codes.Unauthenticated
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, wrapf+err.Error())
}

// find looks up a sandbox or container by its id or a unique prefix.
func find[T any](all map[string]T, kind, id string) (T, error) {
	if v, ok := all[id]; ok {
		return v, nil
	}
	var found T
	n := 0
	if len(id) >= minPrefix {
		for full, v := range all {
			if strings.HasPrefix(full, id) {
				found = v
				n = n + 1
			}
		}
	}
	if n == 1 {
		return found, nil
	}
	var none T
	return none, notFound(kind, id)
}

// minPrefix is the minimum length of an id's prefix.
const minPrefix = 4
