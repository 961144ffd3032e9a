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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestWhyNotReady: `why` of a pod that is on a node and not Ready asks for its own warnings, and tells them before the scheduler's scores.
func TestWhyNotReady(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "app", ReadinessProbe: &corev1.Probe{}}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	warning := func(uid types.UID, message string) corev1.Event {
		return corev1.Event{Reason: "Unhealthy", Message: message, InvolvedObject: corev1.ObjectReference{UID: uid, FieldPath: "spec.containers{app}"}, Series: &corev1.EventSeries{Count: 4}}
	}
	mine, other := warning("u", "Readiness probe failed: HTTP probe failed with statuscode: 500"), warning("earlier", "Readiness probe failed: of an earlier pod")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{
			"/keelson/v1/why/default/web":         json.RawMessage(`{"namespace": "default", "name": "web", "node": "n", "boundBy": "system:kube-scheduler", "decision": {"chosen": "n", "nodes": 1, "fit": 1}}`),
			"/api/v1/namespaces/default/pods/web": pod, "/api/v1/nodes/n": &corev1.Node{},
		}[r.URL.Path]
		if r.URL.Path == "/api/v1/namespaces/default/events" && r.URL.Query().Get("fieldSelector") == "type=Warning,involvedObject.kind=Pod,involvedObject.name=web" {
			answer = &corev1.EventList{Items: []corev1.Event{other, mine, other}}
		}
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":%q}}],"users":[{"name":"a","user":{}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "container app runs, but is not ready: Readiness probe failed: HTTP probe failed with statuscode: 500 (4 times, last at "
	for _, tt := range []struct {
		args []string
		line int
		want string
	}{{nil, 1, "   not ready " + want}, {[]string{"-o", "json"}, 0, `"notReady":["` + want}} {
		var out, said bytes.Buffer
		args := append([]string{"keelson", "why", "pod/web", "--kubeconfig", kubeconfig}, tt.args...)
		code := Run(t.Context(), args, Stdio{In: strings.NewReader(""), Out: &out, Err: &said})
		if lines := strings.Split(out.String(), "\n"); code != 0 || len(lines) <= tt.line || !strings.Contains(lines[tt.line], tt.want) {
			t.Errorf("%v: got %d, %q and\n%s\nwant %q in line %d", args, code, said.String(), out.String(), tt.want, tt.line)
		}
	}
}
