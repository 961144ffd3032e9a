// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/auth"
	"keelson/auth/remote"
)

func TestWebhook(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var q authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Kind != "SubjectAccessReview" {
			t.Errorf("asked %v: %v", q, err)
		}
		review := authorizationv1.SubjectAccessReview{}
		switch ra := q.Spec.ResourceAttributes; {
		case q.Spec.User == "broken":
			http.Error(w, "no", http.StatusForbidden)
			return
		case ra == nil:
			review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "no paths"}
		case ra.FieldSelector != nil && ra.FieldSelector.Requirements[0].Values[0] == "n1":
			review.Status.Allowed = true
		case ra.Verb == "get":
			review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "reads are free"}
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	file := kubeconfigOf(t, server)
	webhook, err := NewWebhook(file, time.Minute, 0, remote.Via{})
	if err != nil {
		t.Fatal(err)
	}
	jane := &auth.User{Name: "jane"}
	for _, c := range []struct {
		a      auth.Attributes
		want   auth.Decision
		failed bool
	}{
		{auth.Attributes{
			User:            jane,
			Verb:            "get",
			Resource:        "pods",
			ResourceRequest: true,
		}, auth.Decision{Verdict: auth.Allow, Reason: "reads are free"}, false},
		{auth.Attributes{
			User:            jane,
			Verb:            "get",
			Resource:        "pods",
			ResourceRequest: true,
		}, auth.Decision{Verdict: auth.Allow, Reason: "reads are free"}, false},
		{auth.Attributes{
			User:            jane,
			Verb:            "list",
			Resource:        "pods",
			ResourceRequest: true,
		}, auth.Decision{}, false},
		{auth.Attributes{
			User:            jane,
			Verb:            "list",
			Resource:        "pods",
			ResourceRequest: true,
			FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", "n1").Requirements(),
		}, auth.Decision{Verdict: auth.Allow}, false},
		{
			auth.Attributes{User: jane, Verb: "get", Path: "/x"}, auth.Decision{
				Verdict: auth.Deny,
				Reason:  "no paths",
			}, false,
		},
		{auth.Attributes{
			User:            &auth.User{Name: "broken"},
			Verb:            "get",
			Resource:        "pods",
			ResourceRequest: true,
		}, auth.Decision{}, true},
	} {
		got, err := webhook.Authorize(t.Context(), &c.a)
		if got != c.want || (err != nil) != c.failed {
			t.Errorf("%+v: %+v %v, want %+v", c.a, got, err, c.want)
		}
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("asked %d times, want 5: an allowed question is not asked twice", n)
	}
}

// kubeconfigOf writes how s is reached.
func kubeconfigOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
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
	return file
}
