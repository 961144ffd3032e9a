// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/event"
	"keelson/timeline/story"
	"keelson/timeline/text"
)

// trusted is a sender that may send everything.
func trusted(*http.Request) Sender { return Sender{Name: "admin"} }

func post(t *testing.T, h http.Handler, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/keelson/v1/marks",
		strings.NewReader(body)))
	return w
}

func encode(t *testing.T, marks []event.Event) string {
	t.Helper()
	var b bytes.Buffer
	for _, m := range marks {
		if err := json.NewEncoder(&b).Encode(m); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestTakesMarksWholeOrNotAtAll(t *testing.T) {
	tl := New(Config{})
	good := encode(t, journey())
	w := post(t, tl.Handler(trusted), good+`{"step":"dance","subject":{"resource":"pods","name":"x"}}`+"\n")
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "line 18") || tl.Pods() != 0 {
		t.Errorf("bad line: %d %s, %d pods; want 400 naming line 18, none", w.Code, w.Body, tl.Pods())
	}
	if w := post(t, tl.Handler(trusted), good); w.Code != http.StatusNoContent {
		t.Errorf("good lines: %d %s, want 204", w.Code, w.Body)
	}
	if s, err := storyOf(tl, "default", podName); err != nil || s.ReadyAfter != us(48100) {
		t.Errorf("ready after %v, %v; want 48.1ms", s.ReadyAfter, err)
	}
}

func FuzzReadMarks(f *testing.F) {
	f.Add(
		[]byte(
			`{"step":"queued","component":"s","at":"2026-07-01T14:40:10Z","subject":{"resource":"pods","namespace":"d","name":"x","uid":"u"},"detail":{"why":"PodAdd"}}`))
	f.Add(
		[]byte(
			`{"step":"request","at":"2026-07-01T14:40:10Z","subject":{"resource":"pods","name":"x","uid":"u"},"detail":{"verb":"POST","auditID":"1"}}` +
				"\n\n"))
	f.Add([]byte("null\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		marks, err := readMarks(bytes.NewReader(b))
		if err != nil {
			return
		}
		var plain []event.Event
		for _, m := range marks {
			plain = append(plain, m.Event)
		}
		tl := listening(plain)
		for name := range tl.names {
			ns, pod, _ := strings.Cut(name, "/")
			s, err := storyOf(tl, ns, pod)
			if err != nil {
				continue
			}
			if s.Accounted > s.Total {
				t.Errorf("accounted %v of %v", s.Accounted, s.Total)
			}
			var out bytes.Buffer
			text.Render(&out, &s, true, 0)
			record, owners, _ := tl.Pod(ns, pod)
			w := story.WhyOf(record, owners, time.Now())
			text.FillWhy(&w)
			text.RenderWhy(&out, &w, true, 0)
		}
	})
}

func TestForwards(t *testing.T) {
	tl := New(Config{})
	arrived := make(chan struct{}, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tl.Handler(trusted).ServeHTTP(w, r)
		arrived <- struct{}{}
	}))
	defer srv.Close()
	c, err := client.Remote(&rest.Config{Host: srv.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	f := NewForwarder(c, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, func() {}) }() // ends with ctx
	for _, m := range journey() {
		f.Listen(m)
	}
	deadline := time.After(time.Minute)
	for {
		if s, err := storyOf(tl, "default", podName); err == nil && s.Done {
			break
		}
		select {
		case <-arrived:
		case <-deadline:
			t.Fatal("marks did not arrive")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestForwarderGivesUpOldestAndNeverBlocks(t *testing.T) {
	f := NewForwarder(nil, nil)
	for i := range 2 * maxHeld {
		f.Listen(event.Event{Step: event.StepQueued, At: at(i)})
	}
	if len(f.held) != maxHeld || !f.held[len(f.held)-1].At.Equal(at(2*maxHeld-1)) {
		t.Errorf("%d held, last at %v; want %d with the latest", len(f.held), f.held[len(f.held)-1].At, maxHeld)
	}
}
