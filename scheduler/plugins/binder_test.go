// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// A binding that fails because of the server's state is tried again; one that the server refuses is not.
func TestBindAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name     string
			err      error
			failures int
			tries    int
			bound    bool
		}{
			{"at once", nil, 0, 1, true},
			{"overloaded", apierrors.NewTooManyRequests("full", 1), 2, 3, true},
			{"internal error", apierrors.NewInternalError(errors.New("no leader")), 1, 2, true},
			{"restarting", syscall.ECONNREFUSED, 3, 4, true},
			{"down", syscall.ECONNREFUSED, 100, 4, false},
			{"refused", apierrors.NewConflict(corev1.Resource("pods"), "p", nil), 100, 1, false},
		} {
			clientset := clienttest.New()
			tries := 0
			clientset.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if tries++; tries <= tt.failures {
					return true, nil, tt.err
				}
				return true, &corev1.Binding{}, nil
			})
			binder := &plugins.DefaultBinder{Client: client.Plain(clientset)}
			err := binder.Bind(t.Context(), nil, state.NewPodInfo(schedtest.Pod("p")), "n1")
			if tries != tt.tries || (err == nil) != tt.bound {
				t.Errorf("%s: got %d tries, %v; want %d, bound %v", tt.name, tries, err, tt.tries, tt.bound)
			}
		}
	})
}
