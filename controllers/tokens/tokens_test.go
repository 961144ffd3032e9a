// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func TestFillsAndDrops(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		secret := func(name, account, uid string) *corev1.Secret {
			s := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default",
					Name:      name,
					Annotations: map[string]string{
						corev1.ServiceAccountNameKey: account,
					},
				},
				Type: corev1.SecretTypeServiceAccountToken,
			}
			if uid != "" {
				s.Annotations[corev1.ServiceAccountUIDKey] = uid
			}
			return s
		}
		cluster := controllertest.New(
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "build", UID: "u1"}},
			secret("good", "build", ""), secret("lost", "gone", ""), secret("old", "build", "u0"),
		)
		bundle := controllertest.NewBundle("PEM")
		cluster.Start(t, "serviceaccount-token-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, func() crypto.Signer { return key }, bundle.Get)
		})
		time.Sleep(time.Second)
		s, err := cluster.CoreV1().Secrets("default").Get(t.Context(), "good", metav1.GetOptions{})
		if err != nil || strings.Count(string(s.Data["token"]), ".") != 2 || string(s.Data["ca.crt"]) != "PEM" ||
			string(s.Data["namespace"]) != "default" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != "u1" {
			t.Errorf("secret of a service account: %v %v", s, err)
		}
		bundle.Set("OLD AND NEW")
		time.Sleep(time.Second)
		s, err = cluster.CoreV1().Secrets("default").Get(t.Context(), "good", metav1.GetOptions{})
		if err != nil || string(s.Data["ca.crt"]) != "OLD AND NEW" {
			t.Errorf("secret after the bundle has changed: %v %v", s, err)
		}
		for _, name := range []string{"lost", "old"} {
			if _, err := cluster.CoreV1().Secrets("default").Get(t.Context(), name,
				metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("secret %s, whose service account is gone: %v", name, err)
			}
		}
		if err := cluster.CoreV1().ServiceAccounts("default").Delete(t.Context(), "build",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := cluster.CoreV1().Secrets("default").Get(t.Context(), "good",
			metav1.GetOptions{}); !apierrors.IsNotFound(
			err) {
			t.Errorf("secret after its service account: %v", err)
		}
	})
}
