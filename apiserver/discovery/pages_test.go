// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
)

// TestPages asks for /statusz and /flagz as Kubernetes v1.37's was asked.
func TestPages(t *testing.T) {
	mux := http.NewServeMux()
	Statusz(mux, "apiserver", apiversion.Info{Major: "1", Minor: "37", GoVersion: "go1.26"},
		time.Date(2026, 11, 22, 1, 11, 4, 0, time.UTC), []string{"/healthz", "/statusz"})
	Flagz(mux, "apiserver", func() map[string]string { return map[string]string{"port": "6443", "data-dir": "/var/lib/keelson"} })
	const (
		header = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility " +
			"guarantees and is for debugging purposes only.\n"
		refused = `only the following media types are accepted: application/json, application/yaml, text/plain`
		former  = `299 - "This version of the flagz endpoint is deprecated. Please use a newer version."`
	)
	for _, row := range []struct {
		path, accept string
		code         int
		contentType  string
		warning      string
		body         []string
	}{
		{"/statusz", "", 200, "text/plain; charset=utf-8", "", []string{
			"\napiserver statusz\n" + header + "\nStarted: Sun Nov 22 01:11:04 UTC 2026\nUp: ",
			" sec\nGo version: go1.26\nBinary version: 1.37\nEmulation version: 1.37\nPaths: /healthz /statusz\n",
		}},
		{"/statusz", "*/*", 200, "text/plain; charset=utf-8", "", nil},
		{"/statusz", "text/*", 200, "text/plain; charset=utf-8", "", nil},
		{"/statusz", "application/json, text/plain;q=0.5", 200, "text/plain; charset=utf-8", "", nil},
		{
			"/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", 200,
			"application/json;g=config.k8s.io;v=v1beta1;as=Statusz", "",
			[]string{
				`{"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"apiserver"},"startTime":"2026-11-22T01:11:04Z","uptimeSeconds":`,
				`,"goVersion":"go1.26","binaryVersion":"1.37","emulationVersion":"1.37","paths":["/healthz","/statusz"]}` +
					"\n",
			},
		},
		{
			"/flagz", "", 200, "text/plain; charset=utf-8", "",
			[]string{"\napiserver flagz\n" + header + "data-dir: /var/lib/keelson\nport: 6443\n"},
		},
		{
			"/flagz", "application/json;as=Flagz;v=v1alpha1;g=config.k8s.io", 200,
			"application/json;g=config.k8s.io;v=v1alpha1;as=Flagz", former,
			[]string{
				`{"kind":"Flagz","apiVersion":"config.k8s.io/v1alpha1","metadata":{"name":"apiserver"},"flags":{"data-dir":"/var/lib/keelson","port":"6443"}}` +
					"\n",
			},
		},
		{
			"/flagz", "application/yaml;as=Flagz;v=v1beta1;g=config.k8s.io", 200,
			"application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz", "",
			[]string{
				"apiVersion: config.k8s.io/v1beta1\nflags:\n  data-dir: /var/lib/keelson\n  port: \"6443\"\nkind: " +
					"Flagz\nmetadata:\n  name: apiserver\n",
			},
		},
		{"/flagz", "application/json", 406, "application/json", "", []string{refused}},
		{
			"/flagz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", 406, "application/json", "",
			[]string{refused},
		},
		{
			"/flagz", "application/vnd.kubernetes.protobuf;as=Flagz;v=v1beta1;g=config.k8s.io", 406,
			"application/json", "", nil,
		},
	} {
		req := httptest.NewRequest(http.MethodGet, row.path, nil)
		if row.accept != "" {
			req.Header.Set("Accept", row.accept)
		}
		got := httptest.NewRecorder()
		mux.ServeHTTP(got, req)
		rest := got.Body.String()
		if got.Code != row.code || got.Header().Get("Content-Type") != row.contentType ||
			got.Header().Get("Warning") != row.warning {
			t.Errorf("%s as %q: %d %v, want %d %q with warning %q\n%s", row.path, row.accept, got.Code, got.Header(),
				row.code, row.contentType, row.warning, rest)
			continue
		}
		for _, part := range row.body {
			at := strings.Index(rest, part)
			if at < 0 {
				t.Errorf("%s as %q: got\n%s\nwhich has no\n%s", row.path, row.accept, got.Body, part)
				break
			}
			rest = rest[at+len(part):]
		}
	}
}

// TestProbes asks for health and then for what the checks were counted as.
func TestProbes(t *testing.T) {
	mux := http.NewServeMux()
	probes := NewProbes()
	sick := false
	Health(mux, "readyz", []Check{
		{Name: "ping", Run: func(*http.Request) error { return nil }},
		{
			Name: "etcd",
			Run: func(*http.Request) error {
				if sick {
					return errors.New("no leader")
				}
				return nil
			},
		},
	}, probes)
	mux.Handle("/metrics/slis", probes)
	get := func(path string) *httptest.ResponseRecorder {
		got := httptest.NewRecorder()
		mux.ServeHTTP(got, httptest.NewRequest(http.MethodGet, path, nil))
		return got
	}
	get("/readyz")
	sick = true
	if got := get("/readyz"); got.Code != http.StatusInternalServerError {
		t.Errorf("/readyz of a sick server: %d", got.Code)
	}
	get("/readyz?exclude=etcd")
	warned := get("/readyz?verbose&exclude=etcd&exclude=b&exclude=a&exclude=b").Body.String()
	if want := "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for " +
		"\"a\",\"b\"\nreadyz check passed\n"; warned != want {
		t.Errorf("answered %q, want %q", warned, want)
	}
	got := get("/metrics/slis").Body.String()
	for _, line := range []string{
		`kubernetes_healthcheck{name="etcd",type="readyz"} 0`, `kubernetes_healthcheck{name="ping",type="readyz"} 1`,
		`kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 1`,
		`kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"} 1`,
		`kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 4`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no %s in\n%s", line, got)
		}
	}
}
