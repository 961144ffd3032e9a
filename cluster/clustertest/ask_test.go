// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/cluster/clustertest"
	"keelson/lib/waittest"
	"keelson/timeline/ask"
)

// TestQuestionsAreAskedAsTheCaller: a user gets what the user could read without questions. Without rights it is 403,
// the same for what exists and for what does not.
func TestQuestionsAreAskedAsTheCaller(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{})
	ctx := t.Context()
	admin := c.Client
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "secretive"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/hold"}},
			Containers:      []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	code, doc := question(t, admin, http.MethodGet, "why/pod/secretive?namespace=default", "")
	var answer ask.Answer
	if err := json.Unmarshal([]byte(doc), &answer); err != nil || code != http.StatusOK || answer.Pod == nil ||
		!strings.Contains(answer.Pod.Reason, "example.com/hold") {
		t.Errorf("an administrator gets %d %s, %v", code, doc, err)
	}

	stranger := c.As("ann")
	for _, path := range []string{"why/pod/%s", "why/svc/%s", "why/pvc/%s", "why/deploy/%s", "why/ns/%s", "why/node/%s"} {
		code, there := question(t, stranger, http.MethodGet, strings.Replace(path, "%s", "secretive", 1), "")
		other, absent := question(t, stranger, http.MethodGet, strings.Replace(path, "%s", "absent", 1), "")
		if code != http.StatusForbidden || other != code ||
			strings.ReplaceAll(there, "secretive", "absent") != absent || strings.Contains(there, "hold") {
			t.Errorf("%s: a stranger gets %d %s\nand for what is not there %d %s", path, code, there, other, absent)
		}
	}
	const to = `{"to": {"host": "10.0.0.1", "port": "80"}}`
	if code, doc := question(t, stranger, http.MethodPost, "trace/default/secretive", to); code != http.StatusForbidden {
		t.Errorf("a stranger's trace: %d %s", code, doc)
	}

	// The rights of a user count, no more and no less.
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "claims"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims", "pods"}},
		},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "claims"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "claims"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}},
	}
	if _, err := admin.RbacV1().Roles("default").Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().RoleBindings("default").Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "404 for a claim that is not there", func() string {
		if code, doc := question(t, stranger, http.MethodGet, "why/pvc/absent", ""); code != http.StatusNotFound {
			return doc
		}
		return ""
	})
	// A pod's reader gets what the pod says, without the ledger, which names pods and nodes of others.
	code, doc = question(t, stranger, http.MethodGet, "why/pod/secretive", "")
	if code != http.StatusOK || !strings.Contains(doc, "example.com/hold") {
		t.Errorf("a reader of pods: %d %s", code, doc)
	}
}

// TestQuestionsAreBounded: what is no name of an object becomes no path, and a body has an end.
func TestQuestionsAreBounded(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{})
	admin := c.Client
	for path, body := range map[string]string{
		"why/pod/x?namespace=..":              "",
		"why/rubbish/x":                       "",
		"why/pod/x?namespace=a%2fsecrets":     "",
		"trace/default/x":                     "{",
		"trace/default/w":                     `{"to": {"name": ".."}}`,
		"trace/default/y":                     `{"to": {"kind": "pod", "namespace": "default", "name": "../x"}}`,
		"trace/default/z":                     `{"to": {"host": "` + strings.Repeat("x", 1<<20) + `"}}`,
		"why/pod/" + strings.Repeat("x", 300): "",
	} {
		verb := http.MethodGet
		if strings.HasPrefix(path, "trace") {
			verb = http.MethodPost
		}
		want := http.StatusBadRequest
		if len(body) > 1<<16 {
			want = http.StatusRequestEntityTooLarge
		}
		if code, doc := question(t, admin, verb, path, body); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, doc, want)
		}
	}
}

// question asks as a client, below /keelson/v1/ask.
func question(t *testing.T, as *client.Client, verb, path, body string) (int, string) {
	t.Helper()
	hc, err := rest.HTTPClientFor(as.Config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), verb, as.Config.Host+"/keelson/v1/ask/"+path,
		bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	doc, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(doc)
}
