// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/store"
)

// TestPassing: a member without a leader answers that the time of a call is over, with no code but Unknown.
func TestPassing(t *testing.T) {
	for text, want := range map[string]bool{
		context.DeadlineExceeded.Error(): true,
		context.Canceled.Error():         true,
		"anything else":                  false,
	} {
		if err := status.Error(codes.Unknown, text); repeatable(err) != want {
			t.Errorf("%v: repeated %t, want %t", err, !want, want)
		}
	}
}

// TestTooLarge: what etcd or its client refuses for its size has a type, and is nothing that goes away by itself.
func TestTooLarge(t *testing.T) {
	st := &Store{servers: "a"}
	for _, err := range []error{
		rpctypes.ErrRequestTooLarge,
		rpctypes.Error(rpctypes.ErrGRPCRequestTooLarge),
		status.Error(codes.ResourceExhausted, "trying to send message larger than max (3000000 vs. 2097152)"),
	} {
		got := st.meaning(t.Context(), err)
		if _, unavailable := errors.AsType[*store.UnavailableError](got); !errors.Is(got, store.ErrTooLarge) ||
			unavailable {
			t.Errorf("%v: %v, want it to be ErrTooLarge", err, got)
		}
	}
	if got := st.meaning(t.Context(), status.Error(codes.ResourceExhausted, "too many requests")); errors.Is(got,
		store.ErrTooLarge) {
		t.Errorf("too many requests: %v", got)
	}
}
