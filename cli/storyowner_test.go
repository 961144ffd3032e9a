// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestOwnedBy: of an owner's pods the one worst off is told of, then the newest, and strangers are none of them.
func TestOwnedBy(t *testing.T) {
	pod := func(name string, age int, uid types.UID, change func(*corev1.Pod)) corev1.Pod {
		yes := true
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0)),
			OwnerReferences:   []metav1.OwnerReference{{UID: uid, Controller: &yes}},
		}}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		change(&p)
		return p
	}
	fine := func(*corev1.Pod) {}
	got := ownedBy([]corev1.Pod{
		pod("old", 9, "a", fine), pod("new", 1, "b", fine), pod("stranger", 0, "c", fine),
		pod("pending", 5, "a", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = nil
		}),
		pod("crashing", 7, "a", func(p *corev1.Pod) {
			p.Status.Conditions = nil
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
			}
		}),
	}, map[types.UID]bool{"a": true, "b": true})
	var names []string
	for i := range got {
		names = append(names, got[i].Name)
	}
	if want := []string{"crashing", "pending", "new", "old"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	var b strings.Builder
	pods{of: "deploy/web", list: got}.print(&b, "", "crashing")
	if !strings.Contains(b.String(), "CrashLoopBackOff") || strings.Count(b.String(), "<- told above") != 1 ||
		!strings.Contains(b.String(), "old ") {
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

// TestLacks: a controller that cannot create pods says why, as long as it cannot.
func TestLacks(t *testing.T) {
	for text, want := range map[string]string{
		`{"metadata":{"uid":"a"},"status":{"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"exceeded quota"}]}}`: "FailedCreate: exceeded quota",
		`{"status":{"conditions":[{"type":"ReplicaFailure","status":"False","reason":"FailedCreate","message":"exceeded quota"}]}}`:                       "",
		`{"status":{"conditions":[{"type":"Available","status":"True"}]}}`:                                                                                "",
		`{}`: "",
	} {
		var o owning
		if err := json.Unmarshal([]byte(text), &o); err != nil || o.lacks() != want {
			t.Errorf("%s: got %q, %v, want %q", text, o.lacks(), err, want)
		}
	}
	var b strings.Builder
	pods{of: "deploy/web", lacks: "FailedCreate: exceeded quota"}.print(&b, "", "")
	if !strings.HasSuffix(b.String(), "   and more cannot be created: FailedCreate: exceeded quota\n") {
		t.Errorf("got %q", b.String())
	}
}
