// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/imagepolicy"
	"keelson/apiserver/audit"
	"keelson/apiserver/outbound"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
)

// TestWebhooksAreReachedThroughEgress: the requests to webhooks that kubeconfigs name are in the metrics of outgoing
// connections, each under its kind.
func TestWebhooksAreReachedThroughEgress(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer s.Close()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["hook"] = &clientcmdapi.Cluster{
		Server: s.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{
			Type:  "CERTIFICATE",
			Bytes: s.Certificate().Raw,
		}),
	}
	cfg.Contexts["c"] = &clientcmdapi.Context{Cluster: "hook"}
	cfg.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	egress := outbound.New(outbound.Config{})
	via := ThroughEgress(egress)

	authenticator, err := authn.NewWebhook(file, nil, 0, via)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := authenticator.Check(t.Context(), "token", nil); err == nil {
		t.Error("an authentication webhook that answers 418 knows a token")
	}
	authorizer, err := authz.NewWebhook(file, 0, 0, via)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := authorizer.Authorize(t.Context(),
		&auth.Attributes{User: &auth.User{Name: "jane"}, Verb: "get", Path: "/"}); err == nil {
		t.Errorf("an authorization webhook that answers 418 decides %v", d)
	}
	policy, err := imagepolicy.New(imagepolicy.Config{KubeConfigFile: file}, via)
	if err != nil {
		t.Fatal(err)
	}
	if err := policy.Validate(t.Context(), &admission.Request{
		Operation: admission.Create,
		Resource:  corev1.SchemeGroupVersion.WithResource("pods"),
		Object:    &corev1.Pod{},
	}); err == nil {
		t.Error("an image policy webhook that answers 418 accepts a pod")
	}
	recorder, err := audit.NewWebhook(file, via)
	if err != nil {
		t.Fatal(err)
	}
	recorder.Write(&audit.Event{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = recorder.Run(ended) // it sends what is left; the answer does not matter here

	made := requestsThrough(t, egress)
	for _, kind := range []string{
		"authentication webhook", "authorization webhook", "image policy webhook", "audit webhook",
	} {
		if made[kind] == 0 {
			t.Errorf("the metrics count no request to the %s: %v", kind, made)
		}
	}
}
