// SPDX-License-Identifier: Apache-2.0

package pvcprotection

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
	"keelson/controllers/internal/protect"
)

func claim(name string, deleted bool) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace:  "dev",
		Name:       name,
		Finalizers: []string{"example.com/mine", protect.Claim},
	}}
	if deleted {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	return c
}

func user(name, node, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec: corev1.PodSpec{
			NodeName: node,
			Volumes: []corev1.Volume{{
				Name: "v",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				},
			}},
		},
	}
}

func TestUses(t *testing.T) {
	yes := true
	none := int64(0)
	own := claim("p-scratch", true)
	own.OwnerReferences = []metav1.OwnerReference{{UID: "u", Controller: &yes}}
	scratch := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p", UID: "u"},
			Spec: corev1.PodSpec{
				NodeName: "n",
				Volumes: []corev1.Volume{
					{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
				},
			},
		}
	}
	stranger := scratch()
	stranger.UID = types.UID("other")
	down := scratch()
	now := metav1.Now()
	down.DeletionTimestamp = &now
	down.DeletionGracePeriodSeconds = &none
	replica := user("p", "n", "data")
	data := claim("data", true) // of a StatefulSet with whenScaled: Delete, scaled away
	replica.UID = "u"
	data.OwnerReferences = own.OwnerReferences
	replicaDown := replica.DeepCopy()
	replicaDown.DeletionTimestamp = &now
	replicaDown.DeletionGracePeriodSeconds = &none
	replicaEnds := replicaDown.DeepCopy()
	thirty := int64(30)
	replicaEnds.DeletionGracePeriodSeconds = &thirty
	finished := user("p", "n", "data")
	finished.Status.Phase = corev1.PodSucceeded
	for _, tt := range []struct {
		what  string
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		{"bound to a node", user("p", "n", "data"), claim("data", true), true},
		{"without a node", user("p", "", "data"), claim("data", true), false},
		{"another claim", user("p", "n", "other"), claim("data", true), false},
		{"finished, but there", finished, claim("data", true), true},
		{"its own volume", scratch(), own, true},
		{"another pod's volume of that name", stranger, own, false},
		{"its own volume, shut down", down, own, false},
		{"a claim it owns", replica, data, true},
		{"a claim it owns, terminating", replicaEnds, data, true},
		{"a claim it owns, shut down", replicaDown, data, false},
		{"another's claim, shut down", replicaDown, claim("data", true), true},
	} {
		if got := uses(tt.pod, tt.claim); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
}

func TestProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := claim("bare", false)
		bare.Finalizers = nil
		cluster := controllertest.New(
			claim("used", true), claim("free", true), claim("kept", false), bare, claim("waiting", true),
			user("p", "n", "used"), user("q", "", "waiting"),
		)
		cluster.Start(t, "pvc-protection-controller", New)
		claims := cluster.CoreV1().PersistentVolumeClaims("dev")
		check := func(when, name string, want bool) {
			t.Helper()
			got, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				t.Fatalf("%s: %s is gone", when, name)
			}
			if err != nil || slices.Contains(got.Finalizers, protect.Claim) != want {
				t.Errorf("%s: %s has finalizers %v, %v; want protection %v", when, name, got.Finalizers, err, want)
			}
			if name != "bare" && !slices.Contains(got.Finalizers, "example.com/mine") {
				t.Errorf("%s: %s lost another's finalizer: %v", when, name, got.Finalizers)
			}
		}
		time.Sleep(time.Second)
		for name, want := range map[string]bool{
			"used":    true,
			"free":    false,
			"kept":    true,
			"bare":    true,
			"waiting": false,
		} {
			check("at first", name, want)
		}
		if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check("after its pod", "used", false)
	})
}

// TestBoundUnseen: a pod that the cache does not know of keeps its claim.
func TestBoundUnseen(t *testing.T) {
	c := controllertest.New(claim("data", true), user("p", "n", "data"))
	ctl := &Controller{env: &framework.Env{Client: c.Client}}
	used, err := ctl.usedOnServer(t.Context(), "dev", []*corev1.PersistentVolumeClaim{
		claim("data", true), claim("other", true),
	})
	if err != nil || len(used) != 1 || !used["data"] {
		t.Errorf("got %v, %v, want data", used, err)
	}
}

// TestUnused: a bound claim reports since when no pod uses it. Pods that wait use it, finished ones do not, and the
// last one counts.
func TestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bound := claim("c", false)
		bound.Status.Phase = corev1.ClaimBound
		bound.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing}}
		cluster := controllertest.New(bound, claim("pending", false))
		cluster.Start(t, "pvc-protection-controller", New)
		start := time.Now()
		check := func(status corev1.ConditionStatus, reason string, since time.Duration) {
			t.Helper()
			time.Sleep(time.Second)
			got, err := cluster.CoreV1().PersistentVolumeClaims("dev").Get(t.Context(), "c", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c := unusedOf(got)
			if c == nil || len(got.Status.Conditions) != 2 {
				t.Fatalf("conditions: got %v, want two", got.Status.Conditions)
			}
			if after := c.LastTransitionTime.Sub(start); c.Status != status || c.Reason != reason || after < since ||
				after > since+time.Minute {
				t.Errorf("got %s %s after %s, want %s %s after %s", c.Status, c.Reason, after, status, reason, since)
			}
		}
		pods := cluster.CoreV1().Pods("dev")
		create := func(name, node string) *corev1.Pod {
			p, err := pods.Create(t.Context(), user(name, node, "c"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		check(corev1.ConditionTrue, "NoPodsUsingPVC", 0)
		time.Sleep(time.Hour)
		create("waits", "")
		runs := create("runs", "n")
		check(corev1.ConditionFalse, "PodUsingPVC", time.Hour)
		time.Sleep(time.Hour)
		if err := pods.Delete(t.Context(), "waits", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check(corev1.ConditionFalse, "PodUsingPVC", time.Hour)
		runs.Status.Phase = corev1.PodSucceeded
		if _, err := pods.UpdateStatus(t.Context(), runs, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check(corev1.ConditionTrue, "NoPodsUsingPVC", 2*time.Hour)
		pending, err := cluster.CoreV1().PersistentVolumeClaims("dev").Get(t.Context(), "pending", metav1.GetOptions{})
		if err != nil || len(pending.Status.Conditions) > 0 {
			t.Errorf("a claim that is not bound: got %v, %v", pending.Status.Conditions, err)
		}
	})
}
