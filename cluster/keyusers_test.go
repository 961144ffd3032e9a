// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/cluster/credentials"
	"keelson/lib/waittest"
	"keelson/pki"
)

// TestFinishWaitsForUsers: the old key of the CA, and that of service-account tokens, are trusted until no one needs
// them: no client of the API or of etcd's, no kubelet, no webhook, no token.
func TestFinishWaitsForUsers(t *testing.T) {
	c, admin := serve(t, func(c *Config) { c.EtcdListen = "127.0.0.1:0" })
	ctx := t.Context()
	step := func(name, step string) error {
		_, err := (credentials.Rotation{Dir: c.dir, Name: name, Step: step}).Run(ctx)
		return err
	}
	refused := func(name, want string) {
		t.Helper()
		if err := step(name, "finish"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("finish %s: %v, want %q", name, err, want)
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	issued, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := c.keys.CA.CertPEM()
	conf, err := rest.TLSConfigFor(c.clientOf(t, "etcd-user", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{c.EtcdURL()}, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = etcd.Close() }()
	if _, err := etcd.Get(ctx, "/registry/"); err != nil {
		t.Fatal(err)
	}
	for _, do := range []string{"trust", "use"} {
		for _, name := range []string{"ca", credentials.TokenIdentity} {
			if err := step(name, do); err != nil {
				t.Fatal(err)
			}
		}
		waittest.Right(t, "the server takes "+do+" over", func() string {
			if len(c.keys.CA.Others()) != 1 || len(c.keys.Tokens.Further()) != 1 {
				return "it trusts one key"
			}
			now, _ := c.keys.CA.Signer()
			for name, key := range map[string]any{"ca": now.PublicKey, "sa": c.keys.Tokens.Signer().Public()} {
				if kept, err := pki.SigningKey(c.dir.Sub("pki"), name); err != nil || fingerprint(t, key) != kept {
					return "it has not"
				}
			}
			return ""
		})
	}

	waittest.Right(t, "the user of etcd's API is noticed, on the connection that there is", func() string {
		if _, err := etcd.Get(ctx, "/registry/"); err != nil {
			return err.Error()
		}
		if c.keys.Clients.Replaced()["etcd-user"].IsZero() {
			return "it is not"
		}
		return ""
	})
	// the administrator of this test may be named, too, where a call of its came late
	refused("ca", "certificates of the old key are in use by ")
	refused("ca", "etcd-user: wait a minute")
	refused(credentials.TokenIdentity, "in which time pods get new tokens")
	robot := rest.AnonymousClientConfig(c.clientOf(t, "stranger"))
	robot.BearerToken = issued.Status.Token
	if _, err := kubernetes.NewForConfigOrDie(robot).Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	refused(credentials.TokenIdentity, "in use by system:serviceaccount:default:robot")

	// the users of certificates are let off: their minute is not waited for
	c.keys.Clients.SetReplaced(nil)
	c.keys.Clients.SetReplaced(c.keys.CA.Others())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "off"}}
	renewed := kubernetes.NewForConfigOrDie(c.clientOf(t, "second-admin", "system:masters"))
	if _, err := renewed.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused("ca", "the kubelets of off do not answer")
	if err := renewed.CoreV1().Nodes().Delete(ctx, "off", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	where := "https://hook.example.com/"
	none := admissionregistrationv1.SideEffectClassNone
	hooks := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "judge"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "judge.example.com",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &where, CABundle: old},
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	made, err := renewed.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, hooks,
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused("ca", "the caBundle of validatingwebhookconfigurations/judge is the old key's")
	made.Webhooks[0].ClientConfig.CABundle = c.keys.CA.CertPEM()
	if _, err := renewed.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, made,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused("ca", "in which time clients of the old key are noticed")
	agoOld(t, c, "ca")
	refused("ca", "in which time it notices who uses the old key")
	if _, err := (credentials.Rotation{Dir: c.dir, Name: "ca", Step: "finish", Force: true}).Run(ctx); err != nil {
		t.Error(err)
	}
	waittest.Right(t, "a connection to etcd's API of the old key is refused", func() string {
		if _, err := etcd.Get(ctx, "/registry/"); err == nil {
			return "it is not"
		}
		return ""
	})
}

// agoOld lets the new key of a name sign since two hours ago.
func agoOld(t *testing.T, c *Cluster, name string) {
	t.Helper()
	then := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(c.dir.Sub("pki/"+name+"-old.key"), then, then); err != nil {
		t.Fatal(err)
	}
}

func fingerprint(t *testing.T, key any) string {
	t.Helper()
	sum, err := pki.Fingerprint(key)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
