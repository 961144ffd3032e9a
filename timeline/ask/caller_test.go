// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNamesakes: where there is no such pod, the error names the workload with that name.
func TestNamesakes(t *testing.T) {
	notFound := &apierrors.StatusError{ErrStatus: metav1.Status{
		Code:   http.StatusNotFound,
		Reason: metav1.StatusReasonNotFound,
	}}
	objects := map[string]bool{"/apis/apps/v1/namespaces/shop/deployments/web": true}
	caller := &Caller{Namespace: "shop", Get: func(_ context.Context, path string) (io.ReadCloser, error) {
		if !objects[path] {
			return nil, notFound
		}
		return io.NopCloser(strings.NewReader(`{"kind":"Deployment"}`)), nil
	}}
	for name, want := range map[string]string{
		"web":  "pod shop/web does not exist: did you mean deploy/web?",
		"none": "pod shop/none does not exist",
	} {
		if err := caller.Unknown(t.Context(), name, notFound); err.Error() != want || !errors.Is(err, ErrNoObject) {
			t.Errorf("%s: got %q, want %q", name, err, want)
		}
	}
	objects["/apis/batch/v1/namespaces/shop/jobs/web"] = true
	want := "pod shop/web does not exist: did you mean deploy/web or job/web?"
	if err := caller.Unknown(t.Context(), "web", notFound); err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
