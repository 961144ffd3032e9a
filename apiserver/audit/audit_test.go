// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/auth/remote"
)

const policyHead = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"

func TestPolicy(t *testing.T) {
	policy, err := ParsePolicy([]byte(policyHead + `
omitStages: [RequestReceived]
rules:
- {level: None, users: [system:kube-proxy], verbs: [watch], resources: [{group: "", resources: [endpoints, services]}]}
- {level: None, userGroups: [system:nodes], verbs: [get], resources: [{group: "", resources: [nodes/*]}]}
- {level: RequestResponse, namespaces: [kube-system], resources: [{group: "", resources: [configmaps], resourceNames: [important]}], omitManagedFields: true}
- {level: Metadata, resources: [{group: "", resources: [secrets, "*/token"]}]}
- {level: Request, resources: [{group: apps}], omitStages: [ResponseStarted]}
- {level: None, nonResourceURLs: ["/healthz*", /version]}
- {level: Metadata, namespaces: [""], resources: [{group: "", resources: ["*"]}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	in := func(ns, group, resource, sub, name, verb, user string, groups ...string) Request {
		return Request{
			IsResource:  true,
			Namespace:   ns,
			Group:       group,
			Resource:    resource,
			Subresource: sub,
			Name:        name,
			Verb:        verb,
			User:        user,
			Groups:      groups,
		}
	}
	for _, c := range []struct {
		r     Request
		level Level
	}{
		{in("x", "", "services", "", "", "watch", "system:kube-proxy"), LevelNone},
		{in("x", "", "secrets", "", "", "watch", "system:kube-proxy"), LevelMetadata},
		{in("", "", "nodes", "status", "n", "get", "n", "system:nodes"), LevelNone},
		{in("", "", "nodes", "", "n", "get", "n", "system:nodes"), LevelNone},
		{in("", "", "nodes", "", "n", "list", "n", "system:nodes"), LevelMetadata},
		{in("kube-system", "", "configmaps", "", "important", "get", "u"), LevelRequestResponse},
		{in("kube-system", "", "configmaps", "", "other", "get", "u"), LevelNone},
		{in("x", "", "serviceaccounts", "token", "a", "create", "u"), LevelMetadata},
		{in("x", "apps", "deployments", "", "a", "create", "u"), LevelRequest},
		{Request{Path: "/healthz/ping", Verb: "get"}, LevelNone},
		{Request{Path: "/version", Verb: "get"}, LevelNone},
		{Request{Path: "/metrics", Verb: "get"}, LevelNone},
		{in("x", "", "pods", "", "a", "create", "u"), LevelNone},
	} {
		v := policy.evaluate(&c.r)
		if v.Level != c.level {
			t.Errorf("%+v: %s, want %s", c.r, v.Level, c.level)
		}
		if v.Level != LevelNone && v.Wants(StageRequestReceived) ||
			!v.Wants(StageResponseComplete) && v.Level != LevelNone {
			t.Errorf("%+v: stages %v", c.r, v.OmitStages)
		}
		if v.OmitManagedFields != (c.level == LevelRequestResponse) {
			t.Errorf("%+v: managed fields omitted: %v", c.r, v.OmitManagedFields)
		}
	}
	if v := (RequestAuditConfig{Level: LevelRequest}); !v.AtLeast(LevelMetadata) || !v.AtLeast(LevelRequest) ||
		v.AtLeast(LevelRequestResponse) {
		t.Error("the order of levels is wrong")
	}
	for text, want := range map[string]string{
		"kind: Pod":                           "it is a Pod",
		policyHead:                            "rules: at least one",
		policyHead + "rules: [{level: Loud}]": `rules[0].level: "Loud" is no level`,
		policyHead + "rules: [{level: None, omitStages: [Later]}]":                    `"Later" is no stage`,
		policyHead + "rules: [{level: None, nonResourceURLs: [x]}]":                   "is no path",
		policyHead + "rules: [{level: None, nonResourceURLs: [/x], namespaces: [a]}]": "cannot apply to both",
		policyHead + "rules: [{level: None, resources: [{resourceNames: [a]}]}]":      "requires at least one resource",
		policyHead +
			"rules: [{levle: None}]": "unknown field", //nolint:misspell // meant to be wrong
	} {
		if _, err := ParsePolicy([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func event(i int) *Event {
	e := NewEvent()
	e.Level = LevelMetadata
	e.AuditID = fmt.Sprint(i)
	e.Stage = StageResponseComplete
	return e
}

func TestLogRotates(t *testing.T) {
	dir := t.TempDir()
	log, err := OpenLog(LogConfig{
		Path:       filepath.Join(dir, "audit.log"),
		MaxSize:    1000,
		MaxBackups: 2,
		MaxAge:     time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	log.now = func() time.Time {
		now = now.Add(time.Second)
		return now
	}
	stranger := filepath.Join(dir, "audit-mine.log")
	if err := os.WriteFile(stranger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		log.Write(event(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Run(ctx); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "audit-2*.log"))
	if err != nil || len(files) != 2 {
		t.Errorf("old files: %v, %v; want two", files, err)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("a file that is none of ours: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil || len(b) > 1000 {
		t.Errorf("the log has %d bytes, %v", len(b), err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var last Event
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.AuditID != "49" ||
		last.Kind != "Event" || last.APIVersion != "audit.k8s.io/v1" {
		t.Errorf("last line %s: %v", lines[len(lines)-1], err)
	}
}

func TestWebhookBatches(t *testing.T) {
	var mu sync.Mutex
	var got []string
	failures := 1
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if failures > 0 {
			failures--
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		var list eventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil || list.Kind != "EventList" {
			t.Errorf("got a %q: %v", list.Kind, err)
		}
		for _, e := range list.Items {
			got = append(got, e.AuditID)
		}
	}))
	defer server.Close()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["hook"] = &clientcmdapi.Cluster{
		Server: server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{
			Type:  "CERTIFICATE",
			Bytes: server.Certificate().Raw,
		}),
	}
	cfg.Contexts["c"] = &clientcmdapi.Context{Cluster: "hook"}
	cfg.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	webhook, err := NewWebhook(file, remote.Via{})
	if err != nil {
		t.Fatal(err)
	}
	webhook.wait = 10 * time.Millisecond
	webhook.retry = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- webhook.Run(ctx) }() // ends with ctx, which is waited for below
	for i := range 1000 {
		webhook.Write(event(i))
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got)+int(webhook.Dropped()) != 1000 || len(got) < 600 {
		t.Errorf("%d of 1000 events arrived, %d are known to be lost", len(got), webhook.Dropped())
	}
}

func TestWithoutManagedFields(t *testing.T) {
	for in, want := range map[string]string{
		`{"metadata":{"name":"a","managedFields":[{}]}}`:                          `{"metadata":{"name":"a"}}`,
		`{"items":[{"metadata":{"managedFields":[]}},{"metadata":{"name":"b"}}]}`: `{"items":[{"metadata":{}},{"metadata":{"name":"b"}}]}`,
		`not json`: `not json`,
	} {
		if got := string(WithoutManagedFields([]byte(in))); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(policyHead + "rules: [{level: Metadata}]")
	f.Add(policyHead + "omitStages: [RequestReceived]\nrules: [{level: None, users: [a], nonResourceURLs: " +
		"['/healthz*']}, {level: Request, resources: [{group: '', resources: [pods/log, '*/status']}]}]")
	f.Add(policyHead + "rules: [{level: Everything, resources: [{group: apps}], namespaces: [''], nonResourceURLs: " +
		"[x]}]")
	f.Fuzz(func(_ *testing.T, text string) {
		if p, err := ParsePolicy([]byte(text)); err == nil {
			p.evaluate(&Request{IsResource: true, Resource: "pods"})
		}
	})
}
