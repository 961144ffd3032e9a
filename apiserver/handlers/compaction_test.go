// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
	"keelson/store"
)

// TestExpiredPages: after a compaction a page is refused with a token to go on without consistency, which then works.
func TestExpiredPages(t *testing.T) {
	var st store.Store
	running := servertest.Start(t, func(c *servertest.Setup) { st = c.Store })
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	for i := range 10 {
		if _, err := maps.Create(ctx, servertest.ConfigMap(fmt.Sprintf("m%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := maps.List(ctx, metav1.ListOptions{Limit: 4})
	if err != nil || first.Continue == "" {
		t.Fatalf("first page: %v, continue %q", err, first.Continue)
	}
	// The server keeps the state of a few lists that are under way; others take their place.
	for i := range 8 {
		if _, err := maps.Create(ctx, servertest.ConfigMap(fmt.Sprintf("n%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := maps.Delete(ctx, "m5", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Compact(ctx, revision(t, now.ResourceVersion)); err != nil {
		t.Fatal(err)
	}
	got := running.Call(t, "GET", servertest.MapsPath+"?limit=4&continue="+first.Continue, "")
	got.Wants(t, "a page of what is forgotten", 410,
		"The provided continue parameter is too old to display a consistent list result.")
	s := got.Status(t)
	if s.Reason != metav1.StatusReasonExpired || s.Continue == "" || s.Continue == first.Continue {
		t.Fatalf("expired page: %+v", s)
	}
	var names []string
	for next := s.Continue; next != ""; {
		page, err := maps.List(ctx, metav1.ListOptions{Limit: 4, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if page.ResourceVersion == first.ResourceVersion {
			t.Errorf("a page without consistency says that it is of version %s", page.ResourceVersion)
		}
		next = page.Continue
	}
	if want := "m4 m6 m7 m8 m9 n0 n1 n2 n3 n4 n5 n6 n7"; strings.Join(names, " ") != want {
		t.Errorf("the rest: got %v, want %s", names, want)
	}
	running.Call(t, "GET", servertest.MapsPath+"?resourceVersionMatch=Exact&resourceVersion="+first.ResourceVersion, "").
		Wants(t, "an exact list of what is forgotten", 410, "The resourceVersion for the provided list is too old.")
	running.Call(t, "GET", servertest.MapsPath+"?limit=5&resourceVersion="+first.ResourceVersion, "").
		Wants(t, "a first page of what is forgotten", 410, "The resourceVersion for the provided list is too old.")
}

// TestExpiredWatch: a watch from before the compaction begins, and says in its first event that this is gone.
func TestExpiredWatch(t *testing.T) {
	running := servertest.Start(t, func(c *servertest.Setup) {
		w, err := c.Store.Create(t.Context(), "/registry/old", []byte("1"))
		for i := 0; i < 5 && err == nil; i++ {
			w, err = c.Store.Update(t.Context(), "/registry/old", []byte{byte(i)}, w.Revision)
		}
		if err == nil {
			err = c.Store.Compact(t.Context(), w.Revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	frames, stop := running.Watch(t, servertest.MapsPath+"?watch=true&resourceVersion=1")
	defer stop()
	var s metav1.Status
	if err := json.Unmarshal(servertest.Next(t, frames, "ERROR", "").Object, &s); err != nil {
		t.Fatal(err)
	}
	if s.Kind != "Status" || s.Code != 410 || s.Reason != metav1.StatusReasonExpired ||
		!strings.HasPrefix(s.Message, "too old resource version: 1 (") {
		t.Errorf("got %+v", s)
	}
	if f, more := <-frames; more {
		t.Errorf("after the error came %s", f.Type)
	}
}

func revision(t *testing.T, rv string) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(rv, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
