// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/servertest"
)

// TestWatchStarts is about where a watch begins.
func TestWatchStarts(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	var versions []string
	for i := range 3 {
		m, err := maps.Create(ctx, servertest.ConfigMap(fmt.Sprintf("m%d", i)), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, m.ResourceVersion)
	}
	for _, q := range []string{"", "&resourceVersion=0"} {
		t.Run("any"+q, func(t *testing.T) {
			frames, stop := running.Watch(t, servertest.MapsPath+"?watch=true"+q)
			defer stop()
			for i := range 3 {
				servertest.Next(t, frames, "ADDED", fmt.Sprintf("m%d", i))
			}
		})
	}
	t.Run("version", func(t *testing.T) {
		frames, stop := running.Watch(t, servertest.MapsPath+"?watch=1&resourceVersion="+versions[0])
		defer stop()
		servertest.Next(t, frames, "ADDED", "m1")
		servertest.Next(t, frames, "ADDED", "m2")
	})
	t.Run("initial events", func(t *testing.T) {
		frames, stop := running.Watch(t,
			servertest.MapsPath+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		defer stop()
		for i := range 3 {
			servertest.Next(t, frames, "ADDED", fmt.Sprintf("m%d", i))
		}
		mark := servertest.Next(t, frames, "BOOKMARK", "").Meta(t)
		if mark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || mark.ResourceVersion == "" ||
			mark.Kind != "ConfigMap" {
			t.Errorf("end of the initial events: %+v", mark)
		}
	})
	t.Run("no initial events", func(t *testing.T) {
		frames, stop := running.Watch(t,
			servertest.MapsPath+"?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		defer stop()
		if _, err := maps.Create(ctx, servertest.ConfigMap("later"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		servertest.Next(t, frames, "ADDED", "later")
	})
	t.Run("too old", func(t *testing.T) {
		// The store keeps its history: only what never was is too old here.
		frames, stop := running.Watch(t, servertest.MapsPath+"?watch=true&resourceVersion=1")
		defer stop()
		f := <-frames
		if f.Type != "ERROR" && f.Type != "ADDED" {
			t.Errorf("watch from version 1: %s", f.Type)
		}
	})
	for _, c := range []struct {
		query string
		code  int
		text  string
	}{
		{
			"watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=5", 422,
			"resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
		},
		{
			"watch=true&sendInitialEvents=true", 422, "resourceVersionMatch: Forbidden: sendInitialEvents requires " +
				"setting resourceVersionMatch to NotOlderThan",
		},
		{"watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", 422, "sendInitialEvents"},
		{"watch=true&resourceVersion=abc", 500, `Invalid value: "abc"`},
		{"watch=true&fieldSelector=spec.color%3Dred", 400, "is not a known field selector"},
		{"watch=true&timeoutSeconds=x", 400, "invalid syntax"},
	} {
		got := running.Call(t, "GET", servertest.MapsPath+"?"+c.query, "")
		if got.Code != c.code || !strings.Contains(got.Status(t).Message, c.text) {
			t.Errorf("%s: %d %s, want %d %s", c.query, got.Code, servertest.Short(got.Body), c.code, c.text)
		}
	}
}

// TestWatchSelects is about what a watcher with selectors sees.
func TestWatchSelects(t *testing.T) {
	r := servertest.Start(t, nil)
	ctx := t.Context()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	byLabel, _ := r.Watch(t, servertest.MapsPath+"?watch=true&labelSelector=color%3Dred")
	byName, _ := r.Watch(t, servertest.MapsPath+"?watch=true&fieldSelector=metadata.name%3Da")
	oneName, _ := r.Watch(t, "/api/v1/watch/namespaces/default/configmaps/a")
	color := func(name, value string) {
		t.Helper()
		m, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.Labels = map[string]string{"color": value}
		if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := maps.Create(ctx, servertest.ConfigMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	color("a", "red")
	color("b", "blue")
	color("a", "blue")
	color("b", "red")
	if err := maps.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	added := servertest.Next(t, byLabel, "ADDED", "a").Meta(t)
	gone := servertest.Next(t, byLabel, "DELETED", "a").Meta(t)
	if gone.Labels["color"] != "red" || gone.ResourceVersion == added.ResourceVersion {
		t.Errorf("an object that stops matching: labels %v at version %s, added at %s", gone.Labels,
			gone.ResourceVersion, added.ResourceVersion)
	}
	servertest.Next(t, byLabel, "ADDED", "b")
	servertest.Next(t, byLabel, "DELETED", "b")
	for _, frames := range []<-chan servertest.Frame{byName, oneName} {
		for _, kind := range []string{"ADDED", "MODIFIED", "MODIFIED", "DELETED"} {
			servertest.Next(t, frames, kind, "a")
		}
	}
}

// TestWatchShapes streams metadata and tables.
func TestWatchShapes(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	m := servertest.ConfigMap("a")
	m.Data = map[string]string{"x": "secret text"}
	if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	partial, _ := running.Watch(t,
		servertest.MapsPath+"?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	f := servertest.Next(t, partial, "ADDED", "a")
	if p := f.Meta(t); p.Kind != "PartialObjectMetadata" || p.APIVersion != "meta.k8s.io/v1" ||
		strings.Contains(string(f.Object), "secret") {
		t.Errorf("metadata: %s", f.Object)
	}
	mark := servertest.Next(t, partial, "BOOKMARK", "").Meta(t)
	if mark.Kind != "PartialObjectMetadata" || mark.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("bookmark as metadata: %+v", mark)
	}
	tables, _ := running.Watch(t,
		servertest.MapsPath+"?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	var first, second metav1.Table
	if err := json.Unmarshal(servertest.Next(t, tables, "ADDED", "").Object, &first); err != nil {
		t.Fatal(err)
	}
	if first.Kind != "Table" || len(first.ColumnDefinitions) == 0 || len(first.Rows) != 1 ||
		first.Rows[0].Cells[0] != "a" {
		t.Errorf("first event as a table: %+v", first)
	}
	servertest.Next(t, tables, "BOOKMARK", "")
	if _, err := maps.Create(ctx, servertest.ConfigMap("b"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(servertest.Next(t, tables, "ADDED", "").Object, &second); err != nil {
		t.Fatal(err)
	}
	if len(second.ColumnDefinitions) != 0 || len(second.Rows) != 1 || second.Rows[0].Cells[0] != "b" {
		t.Errorf("second event as a table: %+v", second)
	}
}

// TestWatchEnds: by its time, and many of them share one connection.
func TestWatchEnds(t *testing.T) {
	servertest.NoLeaks(t)
	r := servertest.Start(t, nil)
	ctx := t.Context()
	clientset := r.Clients(t)
	w, err := clientset.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{
		TimeoutSeconds:      new(int64(1)),
		AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for ev := range w.ResultChan() {
		if ev.Type != watch.Bookmark {
			t.Errorf("a quiet watch said %s", ev.Type)
		}
	}
	const many = 300
	var watches []watch.Interface
	for range many {
		w, err := clientset.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	if _, err := clientset.CoreV1().ConfigMaps("default").Create(ctx, servertest.ConfigMap("seen"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, w := range watches {
		ev, ok := <-w.ResultChan()
		if m, is := ev.Object.(*corev1.ConfigMap); !ok || !is || ev.Type != watch.Added || m.Name != "seen" {
			t.Fatalf("one of many watches: %v %v", ok, ev)
		}
		w.Stop()
	}
}

// TestWatchesAgree: watchers that begin at different versions see the same changes in the same order.
func TestWatchesAgree(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	begin, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions := []string{begin.ResourceVersion}
	all, stop := running.Watch(t, servertest.MapsPath+"?watch=true&resourceVersion="+begin.ResourceVersion)
	defer stop()
	var writers sync.WaitGroup
	const each, many = 8, 4
	for i := range many {
		writers.Go(func() {
			for n := range each {
				m := servertest.ConfigMap(fmt.Sprintf("w%d-%d", i, n))
				if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
				if err := maps.Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var seen []string
	for range 2 * each * many {
		select {
		case f := <-all:
			seen = append(seen, f.Type+" "+f.Meta(t).ResourceVersion)
			versions = append(versions, f.Meta(t).ResourceVersion)
		case <-time.After(30 * time.Second):
			t.Fatalf("%d events came", len(seen))
		}
	}
	writers.Wait()
	for i := 0; i < len(versions)-1; i += 7 {
		frames, stop := running.Watch(t, servertest.MapsPath+"?watch=true&resourceVersion="+versions[i])
		for n, want := range seen[i:] {
			f := servertest.Next(t, frames, strings.Fields(want)[0], "")
			if got := f.Type + " " + f.Meta(t).ResourceVersion; got != want {
				t.Fatalf("from %s, event %d: got %s, want %s", versions[i], n, got, want)
			}
		}
		stop()
	}
}
