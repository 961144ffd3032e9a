// SPDX-License-Identifier: Apache-2.0

package serviceaccount

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func TestEveryNamespaceHasOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		going := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:              "going",
			DeletionTimestamp: &metav1.Time{Time: time.Now()},
			Finalizers:        []string{"x/y"},
		}}
		cluster := controllertest.New(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, going)
		cluster.Start(t, "service-account-controller", New)
		time.Sleep(time.Second)
		count := func(ns string) int {
			l, err := cluster.CoreV1().ServiceAccounts(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(l.Items)
		}
		if count("default") != 1 || count("going") != 0 {
			t.Errorf("got %d and %d, want 1 and 0", count("default"), count("going"))
		}
		if err := cluster.CoreV1().ServiceAccounts("default").Delete(t.Context(), "default",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if count("default") != 1 {
			t.Error("a deleted account did not come back")
		}
	})
}
