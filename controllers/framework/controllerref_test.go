// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

const finalizer = "example.com/tracked"

func ownedPod(name, app, owner string, finalizers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:       name,
		Namespace:  "default",
		Labels:     map[string]string{"app": app},
		Finalizers: finalizers,
	}}
	if owner != "" {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1",
			Kind:       "ReplicaSet",
			Name:       owner,
			UID:        types.UID("uid-" + owner),
			Controller: &yes,
		}}
	}
	return pod
}

func TestSettle(t *testing.T) {
	now := metav1.NewTime(time.Now())
	for name, tc := range map[string]struct {
		live, cached    func(*appsv1.ReplicaSet)
		mine, adopted   []string
		owned, released bool // what the server has afterwards of "orphan" and "left"
	}{
		"adopts and releases": {
			mine:     []string{"mine"},
			adopted:  []string{"orphan"},
			owned:    true,
			released: true,
		},
		"live is another": {
			live:     func(rs *appsv1.ReplicaSet) { rs.UID = "uid-next" },
			mine:     []string{"mine"},
			released: true,
		},
		"live is going": {
			live:     func(rs *appsv1.ReplicaSet) { rs.DeletionTimestamp = &now },
			mine:     []string{"mine"},
			released: true,
		},
		"itself is going": {
			cached: func(rs *appsv1.ReplicaSet) { rs.DeletionTimestamp = &now },
			mine:   []string{"mine"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pods := []*corev1.Pod{
				ownedPod("mine", "a", "set", finalizer), ownedPod("orphan", "a", ""),
				ownedPod("left", "b", "set", finalizer, "example.com/other"),
				ownedPod("foreign", "a", "other"), ownedPod("unrelated", "b", ""),
			}
			set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "default", UID: "uid-set"}}
			cluster := controllertest.New(pods[0], pods[1], pods[2], pods[3], pods[4])
			own := framework.PodOwnership(&framework.Env{Client: cluster.Client},
				appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
				func(context.Context, string, string) (metav1.Object, error) {
					live := set.DeepCopy()
					if tc.live != nil {
						tc.live(live)
					}
					return live, nil
				})
			own.Finalizer = finalizer
			cached := set.DeepCopy()
			if tc.cached != nil {
				tc.cached(cached)
			}
			mine, adopted, err := own.ClaimObjects(t.Context(), cached, labels.SelectorFromSet(labels.Set{"app": "a"}),
				pods)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.mine, names(mine)); diff != "" {
				t.Errorf("mine (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.adopted, names(adopted)); diff != "" {
				t.Errorf("adopted (-want +got):\n%s", diff)
			}
			check := func(pod string, owned bool, finalizers ...string) {
				t.Helper()
				p, err := cluster.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := metav1.IsControlledBy(p, set); got != owned || !slices.Equal(p.Finalizers, finalizers) {
					t.Errorf("%s: controlled %v, finalizers %v, want %v, %v", pod, got, p.Finalizers, owned, finalizers)
				}
			}
			check("mine", true, finalizer)
			check("foreign", false)
			check("unrelated", false)
			if tc.owned {
				check("orphan", true, finalizer)
			} else {
				check("orphan", false)
			}
			if tc.released {
				check("left", false, "example.com/other")
			} else {
				check("left", true, finalizer, "example.com/other")
			}
		})
	}
}

func names(pods []*corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}
