// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestOwnedBy: of an owner's pods the worst one is chosen, then the newest; pods of others are not considered.
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
}
