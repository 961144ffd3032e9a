// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/audit"
	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// events is a sink that keeps what it gets.
type events struct {
	mu  sync.Mutex
	all []*audit.Event
}

func (s *events) Write(e *audit.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, e)
}

func (s *events) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// of are the events of one request, as "stage code".
func (s *events) of(id string) []*audit.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*audit.Event
	for _, e := range s.all {
		if e.AuditID == id {
			out = append(out, e)
		}
	}
	return out
}

// TestAudit makes requests of all sorts and reads what was recorded of them.
func TestAudit(t *testing.T) {
	policy, err := audit.ParsePolicy([]byte(`apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: ["/healthz*"]}
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: Request, verbs: [get], resources: [{group: "", resources: [configmaps]}]}
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}], omitManagedFields: true}
- {level: Metadata}
`))
	if err != nil {
		t.Fatal(err)
	}
	sink := &events{}
	running := servertest.Start(t, func(c *servertest.Setup) { c.Reports.Audit = audit.New(policy, sink) })
	get := func(what, id string, n int) []*audit.Event {
		t.Helper()
		waittest.Until(t, "events of "+what, func() bool { return len(sink.of(id)) >= n })
		got := sink.of(id)
		if len(got) != n {
			t.Fatalf("%s: %d events, want %d", what, len(got), n)
		}
		return got
	}
	made := running.Call(t, "POST", servertest.MapsPath,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}`, "Audit-Id", "create")
	if made.Header.Get("Audit-Id") != "create" {
		t.Errorf("audit id of the answer: %q", made.Header.Get("Audit-Id"))
	}
	es := get("a create", "create", 2)
	first := es[0]
	last := es[1]
	if first.Stage != audit.StageRequestReceived || first.ResponseStatus != nil ||
		last.Stage != audit.StageResponseComplete || last.ResponseStatus.Code != 201 {
		t.Errorf("stages of a create: %+v, %+v", first, last)
	}
	if last.User.Username != "admin" || last.Verb != "create" || last.RequestURI != servertest.MapsPath ||
		last.UserAgent != "tester/1" || len(last.SourceIPs) != 1 ||
		last.ObjectRef.Resource != "configmaps" || last.ObjectRef.Name != "a" ||
		last.ObjectRef.Namespace != "default" || last.ObjectRef.APIVersion != "v1" {
		t.Errorf("a create: %+v of %+v", last, last.ObjectRef)
	}
	if !strings.Contains(string(last.RequestObject), `"k":"v"`) || !strings.Contains(string(last.ResponseObject),
		`"uid":"`) || strings.Contains(string(last.ResponseObject), "managedFields") {
		t.Errorf("objects of a create: %s and %s", last.RequestObject, last.ResponseObject)
	}
	if last.Annotations["authorization.k8s.io/decision"] != "allow" ||
		last.Annotations["authorization.k8s.io/reason"] == "" {
		t.Errorf("annotations %v", last.Annotations)
	}
	running.Call(t, "GET", servertest.MapsPath+"/a", "", "Audit-Id", "get")
	if last := get("a get", "get", 2)[1]; last.Level != audit.LevelRequest || last.ResponseObject != nil {
		t.Errorf("a get: %s with %s", last.Level, last.ResponseObject)
	}
	running.Call(t, "PATCH", servertest.MapsPath+"/a?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
		"Content-Type", servertest.ApplyPatch, "Audit-Id", "apply")
	if last := get("an apply", "apply", 2)[1]; !json.Valid(last.RequestObject) ||
		!strings.Contains(string(last.RequestObject), `"name":"a"`) {
		t.Errorf("an apply: %s", last.RequestObject)
	}
	running.Call(t, "POST", "/api/v1/namespaces/default/secrets",
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"hidden"}}`, "Audit-Id", "secret")
	if last := get("a secret", "secret", 2)[1]; last.RequestObject != nil || last.ResponseObject != nil ||
		last.ResponseStatus.Code != 201 {
		t.Errorf("a secret: %+v", last)
	}
	running.Call(t, "GET", servertest.MapsPath+"/none", "", "Audit-Id", "missing")
	if last := get("a 404", "missing", 2)[1]; last.ResponseStatus.Code != 404 ||
		last.ResponseStatus.Reason != metav1.StatusReasonNotFound ||
		last.ResponseStatus.Status != metav1.StatusFailure {
		t.Errorf("a 404: %+v", last.ResponseStatus)
	}
	servertest.CallAs(t, running.User("bob"), "GET", servertest.MapsPath, "", "Audit-Id", "forbidden")
	if last := get("a 403", "forbidden", 2)[1]; last.ResponseStatus.Code != 403 ||
		last.Annotations["authorization.k8s.io/decision"] != "forbid" {
		t.Errorf("a 403: %+v %v", last.ResponseStatus, last.Annotations)
	}
	running.Call(t, "GET", servertest.MapsPath, "", "Audit-Id", "as", "Impersonate-User", "bob")
	if last := get("an impersonation", "as", 2)[1]; last.User.Username != "admin" || last.ImpersonatedUser == nil ||
		last.ImpersonatedUser.Username != "bob" {
		t.Errorf("an impersonation: %+v as %+v", last.User, last.ImpersonatedUser)
	} else if m := last.AuthenticationMetadata; m == nil || m.ImpersonationConstraint != "impersonate:user-info" {
		t.Errorf("an impersonation: by %+v", m)
	}
	servertest.CallAs(t, running.User("bob"), "GET", servertest.MapsPath, "", "Audit-Id", "not-as", "Impersonate-User", "carl")
	if last := get("a refused impersonation", "not-as", 2)[1]; last.ImpersonatedUser != nil ||
		last.ResponseStatus.Code != 403 ||
		!strings.Contains(last.ResponseStatus.Message, `cannot impersonate-on:user-info:list resource "configmaps"`) {
		t.Errorf("a refused impersonation: %+v, %+v", last.ImpersonatedUser, last.ResponseStatus)
	}
	_, stop := running.Watch(t, servertest.MapsPath+"?watch=true", "Audit-Id", "watch")
	stop()
	if es := get("a watch", "watch", 3); es[1].Stage != audit.StageResponseStarted || es[1].Verb != "watch" ||
		es[2].Stage != audit.StageResponseComplete {
		t.Errorf("a watch: %s, %s", es[1].Stage, es[2].Stage)
	}
	patched := running.Call(t, "PATCH", servertest.MapsPath+"/a", `{"data":{"k":"w"}}`, "Content-Type", servertest.MergePatch,
		"Audit-Id", "table", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if last := get("a table", "table", 2)[1]; !strings.Contains(string(last.ResponseObject), `"kind":"Table"`) ||
		!strings.Contains(string(patched.Body), `"kind":"Table"`) {
		t.Errorf("a table: %s", last.ResponseObject)
	}
	running.Call(t, "DELETE", servertest.MapsPath+"/a", "", "Audit-Id", "delete")
	if last := get("a deletion", "delete", 2)[1]; last.ResponseStatus.Status != metav1.StatusSuccess ||
		last.ResponseStatus.Details.Name != "a" || !strings.Contains(string(last.ResponseObject), `"kind":"Status"`) {
		t.Errorf("a deletion: %+v and %s", last.ResponseStatus, last.ResponseObject)
	}
	for id, accept := range map[string]string{
		"table-list": "application/json;as=Table;v=v1;g=meta.k8s.io",
		"partial":    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		running.Call(t, "DELETE", servertest.MapsPath+"?labelSelector=none", "", "Audit-Id", id, "Accept", accept)
		kind := map[string]string{"table-list": "Table", "partial": "PartialObjectMetadataList"}[id]
		if last := get(id, id, 2)[1]; !strings.Contains(string(last.ResponseObject), `"kind":"`+kind+`"`) ||
			!json.Valid(last.ResponseObject) {
			t.Errorf("%s: %s", id, last.ResponseObject)
		}
	}
	running.Call(t, "GET", "/healthz", "", "Audit-Id", "health")
	running.Call(t, "GET", "/version", "", "Audit-Id", "version")
	if v := get("a path", "version", 2)[1]; v.ObjectRef != nil || v.RequestURI != "/version" {
		t.Errorf("a path: %+v", v)
	}
	if n := len(sink.of("health")); n != 0 {
		t.Errorf("a health check left %d events", n)
	}
}

// TestAuditIsTheAnswer: the audited object of a response is what the client got, as JSON, in every form.
func TestAuditIsTheAnswer(t *testing.T) {
	policy, err := audit.ParsePolicy([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n" +
		"rules: [{level: RequestResponse}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	sink := &events{}
	running := servertest.Start(t, func(c *servertest.Setup) { c.Reports.Audit = audit.New(policy, sink) })
	const (
		asTable = "application/json;as=Table;g=meta.k8s.io;v=v1"
		partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		pods    = "/api/v1/namespaces/default/pods"
		config  = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","finalizers":["a/b"]}}`
	)
	for i, c := range []struct{ method, path, body, accept, kind string }{
		{"POST", servertest.MapsPath, config, asTable, "Table"},
		{"GET", servertest.MapsPath + "/a", "", partial, "PartialObjectMetadata"},
		{"GET", servertest.MapsPath, "", asTable, "Table"},
		{"DELETE", servertest.MapsPath + "/a", "", asTable, "Table"}, // it stays
		{"PATCH", servertest.MapsPath + "/a", `{"metadata":{"finalizers":null}}`, "application/json", "ConfigMap"},
		{"POST", servertest.MapsPath, strings.Replace(config, `,"finalizers":["a/b"]`, "", 1), "application/json", "ConfigMap"},
		{"DELETE", servertest.MapsPath + "/a", "", asTable, "Status"},
		{"DELETE", servertest.MapsPath, "", asTable, "Table"},
		{
			"POST", pods, `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
			"application/json", "Pod",
		},
		{"POST", pods + "/p/eviction", `{"metadata":{"name":"p"}}`, "application/json", "Status"},
		{"GET", pods + "/none", "", asTable, "Status"},
	} {
		id := fmt.Sprintf("answer-%d", i)
		headers := []string{"Accept", c.accept, "Audit-Id", id}
		if c.method == "PATCH" {
			headers = append(headers, "Content-Type", servertest.MergePatch)
		}
		got := running.Call(t, c.method, c.path, c.body, headers...)
		what := c.method + " " + c.path + " as " + c.kind
		waittest.Until(t, "the event of "+what, func() bool { return len(sink.of(id)) > 0 })
		var answer, audited map[string]any
		got.Into(t, &answer)
		if err := json.Unmarshal(sink.of(id)[0].ResponseObject, &audited); err != nil {
			t.Errorf("%s: audited %s: %v", what, sink.of(id)[0].ResponseObject, err)
		}
		if d := cmp.Diff(answer, audited); d != "" || answer["kind"] != c.kind {
			t.Errorf("%s: answered %s; audited (-answer +audited):\n%s", what, servertest.Short(got.Body), d)
		}
	}
}
