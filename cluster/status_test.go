// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/client/clienttest"
)

// TestStatusNamesWhatIsUnhealthy: a cluster whose scheduler does not run says so before a pod waits for it.
func TestStatusNamesWhatIsUnhealthy(t *testing.T) {
	component := func(name string, is corev1.ConditionStatus, message, wrong string) *corev1.ComponentStatus {
		return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{
			{Type: corev1.ComponentHealthy, Status: is, Message: message, Error: wrong},
		}}
	}
	got := unhealthy(t.Context(), clienttest.New(
		component("controller-manager", corev1.ConditionTrue, "ok", ""),
		component("etcd-0", corev1.ConditionFalse, "", "disk full"),
		component("scheduler", corev1.ConditionUnknown, "nobody holds its lease", ""),
	))
	if want := []string{"etcd-0: disk full", "scheduler: nobody holds its lease"}; !slices.Equal(got, want) {
		t.Errorf("unhealthy: %q, want %q", got, want)
	}
}

// TestProblem: a silent server is told in words, and other errors as they are.
func TestProblem(t *testing.T) {
	if got := problem(fmt.Errorf("get: %w", context.DeadlineExceeded)); !strings.HasPrefix(got, "it has been silent for 5s") {
		t.Errorf("got %q", got)
	}
	if got := problem(errors.New("refused")); got != "refused" {
		t.Errorf("got %q", got)
	}
}
