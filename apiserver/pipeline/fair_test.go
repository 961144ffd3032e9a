// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/api/flowcontrol"
	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// startFair is start with the flow schemas of a fresh cluster, few seats, and rights for everybody.
func startFair(t *testing.T) *servertest.Running {
	t.Helper()
	return servertest.Start(t, func(c *servertest.Setup) {
		c.Limits.Seats = 24
		c.Objects.Bootstrap = append(c.Objects.Bootstrap, flowcontrol.Bootstrap()...)
		plain := c.Parts
		c.Parts = func(reader *access.Reader) (apiserver.Parts, error) {
			parts, err := plain(reader)
			parts.Authorizer = servertest.Everyone{}
			return parts, err
		}
	})
}

// TestDangling: a flow schema says whether its priority level is there.
func TestDangling(t *testing.T) {
	running := startFair(t)
	ctx := t.Context()
	cs := running.Clients(t).FlowcontrolV1()
	flowSchema := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "own"},
			MatchingPrecedence:         500,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{
					{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "noxu"}},
				},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{
					{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
				},
			}},
		},
	}
	made, err := cs.FlowSchemas().Create(ctx, flowSchema, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is := func(status flowcontrolv1.ConditionStatus, reason string) func() bool {
		return func() bool {
			s, err := cs.FlowSchemas().Get(ctx, "own", metav1.GetOptions{})
			if err != nil || len(s.Status.Conditions) != 1 {
				return false
			}
			got := s.Status.Conditions[0]
			return got.Type == "Dangling" && got.Status == status && got.Reason == reason &&
				!got.LastTransitionTime.IsZero() && strings.Contains(got.Message, `named "own"`)
		}
	}
	waittest.Until(t, "it dangles", is("True", "NotFound"))
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(1)),
				LimitResponse:            flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}
	p, err := cs.PriorityLevelConfigurations().Create(ctx, level, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it does not dangle", is("False", "Found"))
	// Requests of the schema's user say where they were sorted, once the server has seen both.
	waittest.Until(t, "requests are sorted", func() bool {
		h := servertest.CallAs(t, running.User("noxu"), "GET", "/version", "").Header
		return h.Get("X-Kubernetes-Pf-Flowschema-Uid") == string(made.UID) &&
			h.Get("X-Kubernetes-Pf-Prioritylevel-Uid") == string(p.UID)
	})
	if h := servertest.CallAs(t, running.User("foo"), "GET", "/version", "").Header; h.Get("X-Kubernetes-Pf-Flowschema-Uid") == "" ||
		h.Get("X-Kubernetes-Pf-Flowschema-Uid") == string(made.UID) {
		t.Errorf("another user is sorted to %q", h.Get("X-Kubernetes-Pf-Flowschema-Uid"))
	}
	if err := cs.PriorityLevelConfigurations().Delete(ctx, "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it dangles again", is("True", "NotFound"))
	all, err := cs.FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Items {
		if len(s.Status.Conditions) != 1 || (s.Status.Conditions[0].Status == "True") != (s.Name == "own") {
			t.Errorf("%s: %+v", s.Name, s.Status.Conditions)
		}
	}
}

// TestWatchTakesASeat: while it begins, and not while it waits.
func TestWatchTakesASeat(t *testing.T) {
	running := startFair(t)
	const watches = 40 // more than the level has seats
	c := kubernetes.NewForConfigOrDie(running.User("watcher"))
	for range watches {
		w, err := c.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	waittest.Until(t, "no watch holds a seat", func() bool {
		return running.Gauge(t,
			`apiserver_flowcontrol_current_executing_seats{flow_schema="global-default",priority_level="global-default"}`) == "0"
	})
	if n := running.Gauge(t,
		`apiserver_flowcontrol_dispatched_requests_total{flow_schema="global-default",priority_level="global-default"}`); n != fmt.Sprint(
		watches) {
		t.Errorf("%s requests got a seat, want %d", n, watches)
	}
}

// TestListFlood: 64 clients that do nothing but list keep neither a node's heartbeats nor health checks from being
// answered.
func TestListFlood(t *testing.T) {
	running := startFair(t)
	ctx := t.Context()
	admin := running.Clients(t)
	for i := range 300 {
		m := servertest.ConfigMap(fmt.Sprintf("m%d", i))
		m.Data = map[string]string{"a": strings.Repeat("x", 1000)}
		if _, err := admin.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.CoordinationV1().Leases("default").Create(ctx,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(running.User("flooder"))
	if err != nil {
		t.Fatal(err)
	}
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	var flood sync.WaitGroup
	var listed atomic.Int64
	for range 64 {
		flood.Go(func() {
			for flooding.Err() == nil {
				req, err := http.NewRequestWithContext(flooding, http.MethodGet, running.Rest.Host+servertest.MapsPath,
					http.NoBody)
				if err != nil {
					return
				}
				resp, err := client.Do(req)
				if err != nil {
					continue
				}
				_ = resp.Body.Close()
				listed.Add(1)
			}
		})
	}
	waittest.Until(t, "the flood runs", func() bool { return listed.Load() > 64 })
	node := kubernetes.NewForConfigOrDie(running.User("system:node:n1", "system:nodes"))
	for range 30 {
		beat, cancel := context.WithTimeout(ctx, time.Minute)
		l, err := node.CoordinationV1().Leases("default").Get(beat, "n1", metav1.GetOptions{})
		if err == nil {
			l.Spec.RenewTime = new(metav1.NowMicro())
			_, err = node.CoordinationV1().Leases("default").Update(beat, l, metav1.UpdateOptions{})
		}
		if err == nil {
			_, err = node.CoreV1().Nodes().Patch(beat, "n1", "application/merge-patch+json",
				[]byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
		}
		cancel()
		if err != nil {
			t.Fatalf("heartbeat during the flood: %v", err)
		}
		for _, path := range []string{"/readyz", "/livez"} {
			if got := servertest.CallAs(t, running.WithToken(""), "GET", path, ""); got.Code != 200 {
				t.Errorf("%s during the flood: %d", path, got.Code)
			}
		}
	}
	stop()
	flood.Wait()
	client.CloseIdleConnections()
}
