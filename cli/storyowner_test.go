// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/timeline/ask"
)

// TestPrintsPods: the pods of a workload are a table, with a mark at the one whose story is shown, and why others are
// missing.
func TestPrintsPods(t *testing.T) {
	crashing := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "crashing"}}
	crashing.Status.ContainerStatuses = []corev1.ContainerStatus{
		{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
	}
	old := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	var b strings.Builder
	pods{"deploy/web", &ask.Pods{
		List:  []corev1.Pod{crashing, old},
		Lacks: "FailedCreate: exceeded quota",
	}}.print(&b, "", "crashing")
	if !strings.Contains(b.String(), "CrashLoopBackOff") || strings.Count(b.String(), "<- shown above") != 1 ||
		!strings.Contains(b.String(), "old ") ||
		!strings.HasSuffix(b.String(), "   and more cannot be created: FailedCreate: exceeded quota\n") {
		t.Errorf("table: got\n%s", b.String())
	}
}

// TestRowsOf: what was drawn takes as many rows as the terminal needs, or the next drawing leaves rests.
func TestRowsOf(t *testing.T) {
	for text, want := range map[string]int{
		"":                            0,
		"a\n":                         1,
		"0123456789\n":                1,
		"0123456789a\n":               2,
		"\x1b[31m0123456789\x1b[0m\n": 1,
		"0123456789abcdefghijk\nx\n":  4,
	} {
		if got := rowsOf(text, 10); got != want {
			t.Errorf("%q: got %d rows, want %d", text, got, want)
		}
	}
}
