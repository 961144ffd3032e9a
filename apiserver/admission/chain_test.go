// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/store"
)

// reserver is a validator that reserves something, and then may reject the request.
type reserver struct {
	held     int
	rejected error
}

func (*reserver) Name() string { return "Reserver" }

func (p *reserver) Validate(_ context.Context, r *Request) error {
	p.held++
	r.Reserved(func() { p.held-- })
	return p.rejected
}

// TestDoReleases: what a validator has reserved is released if nothing was stored, and kept if the object is or may be
// stored.
func TestDoReleases(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tt := range []struct {
		err  error // of the write
		kept bool
	}{
		{nil, true},
		{apierrors.NewAlreadyExists(pods, "a"), false},
		{apierrors.NewConflict(pods, "a", errors.New("x")), false},
		{&store.ConflictError{}, false},
		{store.ErrExists, false},
		{store.ErrNotFound, false},
		{fmt.Errorf("store: %w", store.ErrTooLarge), false},
		{fmt.Errorf("store: %w", store.ErrNoSpace), false},
		{fmt.Errorf("it is removed instead: %w", ErrNothingStored), false},
		{context.Canceled, true},
		{fmt.Errorf("store: %w", context.DeadlineExceeded), true},
		{apierrors.NewInternalError(&store.UnavailableError{Cause: errors.New("disk")}), true},
		{apierrors.NewServiceUnavailable("the server is shutting down"), true},
	} {
		p := &reserver{}
		r := &Request{Operation: Create}
		err := NewChain(nil, p).Do(t.Context(), r, func() error { return tt.err })
		if !errors.Is(err, tt.err) || (p.held == 1) != tt.kept {
			t.Errorf("%v: returned %v, %d held, want kept %v", tt.err, err, p.held, tt.kept)
		}
	}
	p := &reserver{}
	if err := NewChain(nil, p).Do(t.Context(), &Request{DryRun: true}, func() error { return nil }); err != nil ||
		p.held != 0 {
		t.Errorf("dry run: %v, %d held, want 0", err, p.held)
	}
	p = &reserver{rejected: errors.New("no")}
	wrote := false
	err := NewChain(nil, p).Do(t.Context(), &Request{}, func() error {
		wrote = true
		return nil
	})
	if !errors.Is(err, p.rejected) || wrote || p.held != 0 {
		t.Errorf("rejected: %v, wrote %v, %d held; want %v, no write and 0", err, wrote, p.held, p.rejected)
	}
	p = &reserver{}
	func() {
		defer func() { _ = recover() }()
		_ = NewChain(nil, p).Do(t.Context(), &Request{}, func() error { panic("after the store") })
	}()
	if p.held != 1 {
		t.Errorf("panic in the write: %d held, want 1: the object may be stored", p.held)
	}
}
