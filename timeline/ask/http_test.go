// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/event"
	"keelson/timeline/ledger"
	"keelson/timeline/story"
	"keelson/timeline/storytest"
)

func listening(marks []event.Event) *ledger.Ledger {
	kept := ledger.New(ledger.Config{})
	for _, m := range marks {
		kept.Listen(m)
	}
	return kept
}

func get(t *testing.T, url string) (*http.Response, func()) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp, func() { _ = resp.Body.Close() }
}

func TestServesStoryAndWhy(t *testing.T) {
	srv := httptest.NewServer(Handler(listening(storytest.Journey()), nil))
	defer srv.Close()
	resp, done := get(t, srv.URL+"/keelson/v1/timeline/default/"+storytest.PodName)
	defer done()
	var s story.Story
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || s.Node != "node-1" || len(s.Steps) < 8 {
		t.Errorf("story: node %q, %d steps, %v; want node-1 and at least 8", s.Node, len(s.Steps), err)
	}
	resp, done = get(t, srv.URL+"/keelson/v1/why/default/"+storytest.PodName)
	defer done()
	var w story.Why
	if err := json.NewDecoder(resp.Body).Decode(&w); err != nil || w.Node != "node-1" || w.Decision == nil {
		t.Errorf("why: %+v, %v; want node-1 with a decision", w, err)
	}
	resp, done = get(t, srv.URL+"/keelson/v1/timeline/default/no-such")
	defer done()
	var st metav1.Status
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil || resp.StatusCode != http.StatusNotFound ||
		!strings.Contains(st.Message, "default/no-such") {
		t.Errorf("unknown pod: %d %q, %v; want 404 naming it", resp.StatusCode, st.Message, err)
	}
}

func TestFollowStreamsUntilReady(t *testing.T) {
	tl := ledger.New(ledger.Config{})
	srv := httptest.NewServer(Handler(tl, nil))
	defer srv.Close()
	resp, done := get(t, srv.URL+"/keelson/v1/timeline/default/"+storytest.PodName+"?follow=true")
	defer done()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	marks := storytest.Journey()
	last := 0
	for _, upTo := range []int{5, len(marks)} {
		for _, m := range marks[last:upTo] {
			tl.Listen(m)
		}
		last = upTo
		if !lines.Scan() {
			t.Fatalf("stream ended: %v", lines.Err())
		}
	}
	var s story.Story
	for {
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if s.Done {
			break
		}
		if !lines.Scan() {
			t.Fatalf("stream ended before the pod was ready: %v", lines.Err())
		}
	}
	if lines.Scan() {
		t.Errorf("after the end came %q", lines.Text())
	}
}

// TestRefused: where nothing listens, the error says how to start the cluster.
func TestRefused(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	body, err := Get(t.Context(), server.Client(), server.URL, "/")
	if err == nil {
		_ = body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "`keelson up` starts it") {
		t.Errorf("got %v, want what to do", err)
	}
}
