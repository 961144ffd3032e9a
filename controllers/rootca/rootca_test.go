// SPDX-License-Identifier: Apache-2.0

package rootca

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func TestPublishesAndPutsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		live := controllertest.NewBundle("PEM")
		c.Start(t, "root-ca-cert-publisher", func(env *framework.Env) (framework.Controller, error) {
			return New(env, live.Get)
		})
		client := c.CoreV1().ConfigMaps("default")
		want := "PEM"
		check := func(when string) {
			t.Helper()
			time.Sleep(time.Second)
			cm, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || len(cm.Data) != 1 || cm.Data[file] != want ||
				cm.Annotations[descriptionAnnotation] == "" {
				t.Errorf("%s: got %v, %v", when, cm, err)
			}
		}
		check("at first")
		if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("after its deletion")
		cm, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cm.Data = map[string]string{"ca.crt": "forged", "more": "x"}
		if _, err := client.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("after a change")
		live.Set("OLD AND NEW")
		want = "OLD AND NEW"
		check("after the bundle has changed")
	})
}
