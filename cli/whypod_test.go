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

// TestWhyNotReady: `why` of a pod that is on a node and not Ready asks for its own warnings, and prints them before the
// scheduler's scores.
func TestWhyNotReady(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName:   "n",
			Containers: []corev1.Container{{Name: "app", ReadinessProbe: &corev1.Probe{}}},
		},
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "app", Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
	}
	warning := func(uid types.UID, message string) corev1.Event {
		return corev1.Event{
			Type:           corev1.EventTypeWarning,
			Reason:         "Unhealthy",
			Message:        message,
			InvolvedObject: corev1.ObjectReference{UID: uid, FieldPath: "spec.containers{app}"},
			Series:         &corev1.EventSeries{Count: 4},
		}
	}
	mine := warning("u", "Readiness probe failed: HTTP probe failed with statuscode: 500")
	other := warning("earlier", "Readiness probe failed: of an earlier pod")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{
			"/keelson/v1/why/default/web": json.RawMessage(
				`{"namespace": "default", "name": "web", "node": "n", "boundBy": "system:kube-scheduler", "decision": {"chosen": "n", "nodes": 1, "fit": 1}}`),
			"/api/v1/namespaces/default/pods/web": pod,
			"/api/v1/nodes/n":                     &corev1.Node{},
		}[r.URL.Path]
		if r.URL.Path == "/api/v1/namespaces/default/events" &&
			r.URL.Query().Get("fieldSelector") == "involvedObject.kind=Pod,involvedObject.name=web" {
			answer = &corev1.EventList{Items: []corev1.Event{other, mine, other}}
		}
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	kubeconfig := kubeconfigOf(t, server)
	want := "container app runs, but is not ready: Readiness probe failed: HTTP probe failed with statuscode: 500 (4 " +
		"times, last at "
	for _, tt := range []struct {
		args []string
		line int
		want string
	}{{nil, 1, "   not ready " + want}, {[]string{"-o", "json"}, 8, `        "` + want}} {
		var out, said bytes.Buffer
		args := append([]string{"keelson", "why", "pod/web", "--kubeconfig", kubeconfig}, tt.args...)
		code := Run(t.Context(), args, Stdio{In: strings.NewReader(""), Out: &out, Err: &said})
		if lines := strings.Split(out.String(), "\n"); code != 0 || len(lines) <= tt.line ||
			!strings.Contains(lines[tt.line], tt.want) {
			t.Errorf("%v: got %d, %q and\n%s\nwant %q in line %d", args, code, said.String(), out.String(), tt.want,
				tt.line)
		}
	}
}

// TestWhyUnderPressure: `why` of a pod that no node takes says what ends the pressure for which a node is tainted.
func TestWhyUnderPressure(t *testing.T) {
	node := func(name, taint string, pressure corev1.NodeConditionType) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: pressure, Status: corev1.ConditionTrue},
			}},
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{
			"/keelson/v1/why/default/web": json.RawMessage(`{"namespace": "default", "name": "web", "decision": {
				"nodes": 3, "rejected": [{"node": "small", "plugin": "NodeResourcesFit"},
				{"node": "own", "plugin": "TaintToleration"}, {"node": "full", "plugin": "TaintToleration"}]}}`),
			"/api/v1/namespaces/default/pods/web": &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			},
			"/api/v1/nodes/small": node("small", corev1.TaintNodePIDPressure, corev1.NodePIDPressure),
			"/api/v1/nodes/own":   node("own", "example.com/own", corev1.NodeMemoryPressure),
			"/api/v1/nodes/full":  node("full", corev1.TaintNodeDiskPressure, corev1.NodeDiskPressure),
		}[r.URL.Path]
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	var out, said bytes.Buffer
	args := []string{"keelson", "why", "pod/web", "--kubeconfig", kubeconfigOf(t, server)}
	code := Run(t.Context(), args, Stdio{In: strings.NewReader(""), Out: &out, Err: &said})
	const want = "next: for node full: free space on that machine (`df -h`, `keelson image ls`)"
	if code != 0 || !strings.Contains(out.String(), want) || strings.Count(out.String(), "for node") != 1 {
		t.Errorf("got %d, %q and\n%s\nwant %q", code, said.String(), out.String(), want)
	}
}

// kubeconfigOf is a file that leads to a server.
func kubeconfigOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":%q}}],"users":[{"name":"a","user":{}}]}`, server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhyOnOtherServer: the API server of Kubernetes has no decisions. To an administrator it says 404, to others 403;
// the answer is then the pod's condition.
func TestWhyOnOtherServer(t *testing.T) {
	pending := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{
			SchedulerName: "default-scheduler",
		},
	}
	pending.Status.Conditions = []corev1.PodCondition{{
		Type:    corev1.PodScheduled,
		Status:  corev1.ConditionFalse,
		Reason:  corev1.PodReasonUnschedulable,
		Message: "0/3 nodes are available: 3 Insufficient cpu.",
	}}
	for _, answer := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) },
		func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(
				[]byte(
					`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"forbidden: User \"ann\" cannot get path","reason":"Forbidden","code":403}`))
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch path := r.URL.Path; {
			case strings.HasPrefix(path, "/keelson/"):
				answer(w)
			case path == "/api/v1/namespaces/default/pods/web":
				_ = json.NewEncoder(w).Encode(pending)
			default:
				http.NotFound(w, r)
			}
		}))
		kubeconfig := kubeconfigOf(t, server)
		for _, tt := range []struct {
			verb, want string
			code       int
		}{
			{
				"why",
				`default/web   Pending: the scheduler "default-scheduler" found no node for it: 0/3 nodes are available: 3 Insufficient cpu (the API server is not Keelson's: it has no record of each node)`,
				0,
			},
			{
				"timeline",
				"keelson: the API server is not Keelson's: it has no record of what scheduler and nodes did", 1,
			},
		} {
			var out bytes.Buffer
			code := Run(t.Context(), []string{"keelson", tt.verb, "pod/web", "--kubeconfig", kubeconfig}, Stdio{
				In:  strings.NewReader(""),
				Out: &out,
				Err: &out,
			})
			if code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%s: got %d and\n%s\nwant %d and\n%s", tt.verb, code, out.String(), tt.code, tt.want)
			}
		}
		server.Close()
	}
}
