// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestConnectsAsKubectl: cluster, context and namespace are found as kubectl finds them.
func TestConnectsAsKubectl(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/pods/") {
			asked = append(asked, r.URL.Path)
			_ = json.NewEncoder(w).Encode(&corev1.Pod{})
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	dir := t.TempDir()
	file := func(name, user string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":%[1]q,"contexts":[
{"name":%[1]q,"context":{"cluster":%[1]q,"user":%[1]q,"namespace":"ns-%[1]s"}}],
"clusters":[{"name":%[1]q,"cluster":{"server":%[2]q}}],"users":[{"name":%[1]q,"user":{}}]}`, user,
			server.URL)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := filepath.Dir(file("data/kubeconfig", "own"))
	a := file("a", "ann")
	b := file("b", "bob")
	flag := file("f", "flag")
	for name, tt := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"directory":           {"", nil, "ns-own"},
		"KUBECONFIG":          {a, nil, "ns-ann"},
		"several files":       {a + ":" + b, []string{"--context", "bob"}, "ns-bob"},
		"namespace by a flag": {a, []string{"-n", "x"}, "x"},
		"--data-dir":          {a, []string{"--data-dir", own}, "ns-own"},
		"--kubeconfig":        {a, []string{"--kubeconfig", flag}, "ns-flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tt.env)
			t.Setenv("KEELSON_DATA_DIR", own)
			asked = nil
			var out bytes.Buffer
			args := append([]string{"keelson", "why", "pod", "web"}, tt.args...)
			code := Run(t.Context(), args, Stdio{In: strings.NewReader(""), Out: &out, Err: &out})
			want := "/api/v1/namespaces/" + tt.want + "/pods/web"
			if !slices.Contains(asked, want) {
				t.Errorf("got %d, %q and\n%s\nwant a request %q", code, asked, out.String(), want)
			}
		})
	}
}

// TestObjectsAsKubectl: objects are named as kubectl's users name them.
func TestObjectsAsKubectl(t *testing.T) {
	for text, want := range map[string]string{
		"web":                       "web",
		"web db":                    "web db",
		"pod/web":                   "pod/web",
		"pod web":                   "pod/web",
		"po web db":                 "pod/web pod/db",
		"Pod/web":                   "pod/web",
		"pods.v1/web":               "pod/web",
		"deployment.apps/web":       "deploy/web",
		"deployments.v1.apps/web":   "deploy/web",
		"deployment.apps web":       "deploy/web",
		"deployment.batch/web":      "deployment.batch/web",
		"services web":              "svc/web",
		"pod/web svc/db":            "pod/web svc/db",
		"ingress.networking.k8s.io": "ingress.networking.k8s.io",
		"ing.networking.k8s.io/a":   "ing/a",
		"pod":                       "pod",
		"job.v1.batch/x":            "job/x",
	} {
		got, err := objectsOf(strings.Fields(text))
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
	if got, err := objectsOf([]string{"pod", "svc/web"}); err == nil {
		t.Errorf("pod svc/web: got %q, want an error", got)
	}
}

// TestSeveralObjects: one that fails does not keep the others from being explained.
func TestSeveralObjects(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/keelson/v1/why/default/"); ok && name != "none" {
			_, _ = fmt.Fprintf(w, `{"namespace": "default", "name": %q, "partial": true}`, name)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"gone","reason":"NotFound","code":404}`))
	}))
	defer server.Close()
	var out, said bytes.Buffer
	code := Run(t.Context(), []string{
		"keelson", "why", "pod", "a", "none", "b", "--kubeconfig", kubeconfigOf(t, server),
	}, Stdio{In: strings.NewReader(""), Out: &out, Err: &said})
	if code != 1 || !strings.Contains(out.String(), "default/a ") || !strings.Contains(out.String(), "\ndefault/b ") ||
		!strings.Contains(said.String(), "keelson: gone") {
		t.Errorf("got %d, %q and\n%s\nwant a and b, and an error about none", code, said.String(), out.String())
	}
}
