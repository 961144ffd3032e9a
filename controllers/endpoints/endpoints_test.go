// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/controllers/controllertest"
)

// TestFollows runs the controller: Endpoints follow pods, are put right when edited, and go with their service; those
// of others stay.
func TestFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		byHand := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "by-hand"}}
		left := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "left",
			Labels:    map[string]string{managedBy: manager},
		}}
		manual := web(func(s *corev1.Service) {
			s.Name = "manual"
			s.Spec.Selector = nil
		}, tcp("", intstr.FromInt32(80)))
		cluster := controllertest.New(web(nil, tcp("http", intstr.FromInt32(8080))), manual,
			aPod("a", "", nil, "10.0.0.1"),
			byHand, left)
		cluster.Start(t, "endpoint-controller", New)
		api := cluster.CoreV1().Endpoints("default")
		check := func(when, name, want string) {
			t.Helper()
			time.Sleep(time.Second)
			e, err := api.Get(t.Context(), name, metav1.GetOptions{})
			got := ""
			if err == nil {
				got = show(e.Subsets)
			} else if got = err.Error(); apierrors.IsNotFound(err) {
				got = "gone"
			}
			if got != want {
				t.Errorf("%s: endpoints %s are %q, want %q", when, name, got, want)
			}
		}
		check("at first", "web", "| 10.0.0.1 : http=8080")
		check("at first", "manual", "gone")
		check("at first", "by-hand", "")
		check("its service went unseen", "left", "gone")
		if _, err := cluster.CoreV1().Pods("default").UpdateStatus(t.Context(), aPod("a", "r", nil, "10.0.0.1"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("ready", "web", "10.0.0.1 : http=8080")
		e, err := api.Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		e.Subsets = nil
		if _, err := api.Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("edited", "web", "10.0.0.1 : http=8080")
		if err := api.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("deleted", "web", "10.0.0.1 : http=8080")
		s, err := cluster.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Spec.Selector = map[string]string{"app": "none"}
		if _, err := cluster.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("another selector", "web", "")
		if err := cluster.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("without its service", "web", "gone")
		check("in the end", "by-hand", "")
	})
}
