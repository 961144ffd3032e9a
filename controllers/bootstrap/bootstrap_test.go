// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

// token makes a bootstrap token's secret; keys change what is in it.
func token(id, secret, expires string, keys map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: prefix + id},
		Type:       corev1.SecretTypeBootstrapToken,
		Data:       map[string][]byte{idKey: []byte(id), secretKey: []byte(secret), signing: []byte("true")},
	}
	if expires != "" {
		s.Data[expiration] = []byte(expires)
	}
	for k, v := range keys {
		s.Data[k] = []byte(v)
	}
	return s
}

const secret = "0123456789abcdef"

// TestSigned: each token that may sign has a signature, and no other.
func TestSigned(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	data := map[string]string{kubeconfigKey: "apiVersion: v1", signatureKey + "gone00": "x", "other": "stays"}
	got, err := signed(data, []*corev1.Secret{
		token("abcdef", secret, "", nil), token("future", secret, "2031-01-01T00:00:00Z", nil),
		token("past00", secret, "2029-01-01T00:00:00Z", nil),
		token("nosign", secret, "", map[string]string{signing: "false"}), token("badtim", secret, "tomorrow", nil),
		token("wrong0", secret, "", map[string]string{idKey: "other0"}), token("short0", "abc", "", nil),
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 4 || got["other"] != "stays" || got[signatureKey+"abcdef"] == "" ||
		got[signatureKey+"future"] == "" {
		t.Fatalf("signed: %v", got)
	}
	sig := got[signatureKey+"abcdef"]
	again, err := signed(got, []*corev1.Secret{token("abcdef", secret, "", nil), token("future", secret, "", nil)}, now)
	if err != nil || again[signatureKey+"abcdef"] != sig {
		t.Errorf("a second pass signs again: %v %v", again, err)
	}
	if none, err := signed(map[string]string{"x": "y"}, nil, now); none != nil || err != nil {
		t.Errorf("without a kubeconfig: %v %v", none, err)
	}
}

// TestDetached is an example of Kubernetes' library for bootstrap tokens, whose clients verify what we sign.
func TestDetached(t *testing.T) {
	got, err := detachedSignature("Hello from the other side. I must have called a thousand times.", "joshua",
		"my voice is my passcode")
	if want := "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"; got != want ||
		err != nil {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// TestLives runs both over a token that ends: its signature goes, then it does.
func TestLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespacePublic,
				Name:      clusterInfoName,
			},
			Data: map[string]string{kubeconfigKey: "k"},
		}
		cluster := controllertest.New(info, token("lasts0", secret, "", nil),
			token("ends00", secret, time.Now().Add(time.Hour).UTC().Format(time.RFC3339), nil),
			token("broken", secret, "tomorrow", nil))
		cluster.Start(t, "bootstrap-signer", NewSigner)
		cluster.Start(t, "token-cleaner", NewCleaner)
		check := func(when string, signatures int, gone ...string) {
			t.Helper()
			cm, err := cluster.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(t.Context(), clusterInfoName,
				metav1.GetOptions{})
			if err != nil || len(cm.Data) != 1+signatures {
				t.Errorf("%s: %v %v, want %d signatures", when, cm.Data, err, signatures)
			}
			for _, id := range []string{"lasts0", "ends00", "broken"} {
				_, err := cluster.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), prefix+id,
					metav1.GetOptions{})
				if want := strings.Contains(strings.Join(gone, " "), id); apierrors.IsNotFound(err) != want {
					t.Errorf("%s: token %s: %v, gone shall be %v", when, id, err, want)
				}
			}
		}
		time.Sleep(time.Second)
		check("at first", 2, "broken")
		time.Sleep(time.Hour)
		check("after an hour", 1, "broken", "ends00")
	})
}
