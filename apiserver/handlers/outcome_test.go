// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/store"
)

// TestOutcome: an error after which the write may still have been stored gives Unknown, not NotStored.
func TestOutcome(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tt := range []struct {
		err  error
		want admission.Outcome
	}{
		{nil, admission.Stored},
		{apierrors.NewAlreadyExists(pods, "a"), admission.NotStored},
		{apierrors.NewConflict(pods, "a", errors.New("x")), admission.NotStored},
		{fmt.Errorf("store: %w", store.ErrTooLarge), admission.NotStored},
		{&finalizersRemoved{}, admission.NotStored},
		{context.Canceled, admission.Unknown},
		{fmt.Errorf("store: %w", context.DeadlineExceeded), admission.Unknown},
		{apierrors.NewInternalError(&store.UnavailableError{Cause: errors.New("disk")}), admission.Unknown},
		{apierrors.NewServiceUnavailable("the server is shutting down"), admission.Unknown},
	} {
		if got := outcomeOf(tt.err); got != tt.want {
			t.Errorf("%v: outcome %d, want %d", tt.err, got, tt.want)
		}
	}
}
