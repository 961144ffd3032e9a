// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"keelson/apiserver/discovery"
)

// requiredSteps are the names that Kubernetes' own e2e test of v1.37 looks for in each of the three, in addition to
// ping and etcd.
var requiredSteps = []string{
	"log",
	"poststarthook/start-apiserver-admission-initializer",
	"poststarthook/generic-apiserver-start-informers",
	"poststarthook/storage-readiness",
	"poststarthook/start-apiextensions-informers",
	"poststarthook/start-apiextensions-controllers",
	"poststarthook/crd-informer-synced",
	"poststarthook/bootstrap-controller",
	"poststarthook/start-system-namespaces-controller",
	"poststarthook/start-service-ip-repair-controllers",
	"poststarthook/scheduling/bootstrap-system-priority-classes",
	"poststarthook/start-cluster-authentication-info-controller",
	"poststarthook/start-kube-aggregator-informers",
	"poststarthook/apiservice-registration-controller",
	"poststarthook/apiservice-status-local-available-controller",
	"poststarthook/apiservice-status-remote-available-controller",
	"poststarthook/kube-apiserver-autoregistration",
	"autoregister-completion",
	"poststarthook/apiservice-openapi-controller",
}

// TestHealthNamesTheSteps: the names that clients look for are there, and none is ok before the server is.
func TestHealthNamesTheSteps(t *testing.T) {
	stopping := make(chan struct{})
	server := &health{stopping: stopping}
	get := func(path string) *httptest.ResponseRecorder {
		mux := http.NewServeMux()
		probes := discovery.NewProbes()
		for p, checks := range server.checks() {
			for i, c := range checks {
				if c.Name == "etcd" {
					checks[i].Run = func(*http.Request) error { return nil }
				}
			}
			discovery.Health(mux, p, checks, probes)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		server.ready.Store(false)
		if w := get(path + "?verbose"); w.Code != http.StatusInternalServerError ||
			!strings.Contains(w.Body.String(), "[-]poststarthook/crd-informer-synced failed") {
			t.Errorf("%s before the server is ready: %d\n%s", path, w.Code, w.Body)
		}
		server.ready.Store(true)
		w := get(path + "?verbose=1")
		for _, want := range append([]string{"ping", "etcd"}, requiredSteps...) {
			if !strings.Contains(w.Body.String(), "[+]"+want+" ok\n") {
				t.Errorf("%s lacks %s:\n%s", path, want, w.Body)
			}
		}
		if w := get(path + "/poststarthook/crd-informer-synced"); w.Code != http.StatusOK {
			t.Errorf("%s/poststarthook/crd-informer-synced: %d %s", path, w.Code, w.Body)
		}
	}
	close(stopping)
	if w := get("/readyz?verbose"); w.Code != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), "[-]shutdown failed") {
		t.Errorf("/readyz of a server that stops: %d\n%s", w.Code, w.Body)
	}
}
