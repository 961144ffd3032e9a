// SPDX-License-Identifier: Apache-2.0

// Package storetest is the suite that every implementation of store.Store
// passes. Their tests call Run with a constructor; it is imported by tests only.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"keelson/store"
)

// Open returns an empty store that is closed, with whatever it lives in, at the end of the test.
type Open func(t *testing.T) store.Store

// Run runs the whole suite.
func Run(t *testing.T, open Open) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s store.Store)
	}{
		{"Writes", testWrites},
		{"Refusals", testRefusals},
		{"ReadAtRevision", testReadAtRevision},
		{"ListPages", testListPages},
		{"ListBounds", testListBounds},
		{"ManyVersions", testManyVersions},
		{"Compact", testCompact},
		{"ContextEnded", testContextEnded},
		{"Closed", testClosed},
		{"WatchNow", testWatchNow},
		{"WatchHistory", testWatchHistory},
		{"WatchEventShape", testWatchEventShape},
		{"WatchEnds", testWatchEnds},
		{"WatchSlowReader", testWatchSlowReader},
		{"WatchCompacted", testWatchCompacted},
		{"ConcurrentCounter", testConcurrentCounter},
		{"ConcurrentWatch", testConcurrentWatch},
		{"ReadYourWrite", testReadYourWrite},
		{"History", testHistory},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, open(t)) })
	}
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func revision(t *testing.T, s store.Store) int64 {
	t.Helper()
	rev, err := s.Revision(bounded(t))
	if err != nil {
		t.Fatalf("Revision: %v", err)
	}
	return rev
}

func create(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	w, err := s.Create(bounded(t), key, []byte(value))
	if err != nil {
		t.Fatalf("Create(%s): %v", key, err)
	}
	return w.Revision
}

func update(t *testing.T, s store.Store, key, value string, expected int64) int64 {
	t.Helper()
	w, err := s.Update(bounded(t), key, []byte(value), expected)
	if err != nil {
		t.Fatalf("Update(%s, expected %d): %v", key, expected, err)
	}
	return w.Revision
}

func remove(t *testing.T, s store.Store, key string, expected int64) int64 {
	t.Helper()
	_, w, err := s.Delete(bounded(t), key, expected)
	if err != nil {
		t.Fatalf("Delete(%s, expected %d): %v", key, expected, err)
	}
	return w.Revision
}

func list(t *testing.T, s store.Store, r store.Range) store.Page {
	t.Helper()
	p, err := s.List(bounded(t), r)
	if err != nil {
		t.Fatalf("List(%+v): %v", r, err)
	}
	return p
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got error %v, want %v", what, got, want)
	}
}

func show(items []store.KV) string {
	var s strings.Builder
	for _, kv := range items {
		fmt.Fprintf(&s, "%s=%s@%d (created at %d, version %d) ", kv.Key, kv.Value, kv.Revision, kv.Created, kv.Version)
	}
	return s.String()
}

func wantItems(t *testing.T, what string, got []store.KV, want ...store.KV) {
	t.Helper()
	if show(got) != show(want) {
		t.Errorf("%s: got %q, want %q", what, show(got), show(want))
	}
}

// kv is a key as the write at rev created it.
func kv(key, value string, rev int64) store.KV {
	return store.KV{
		Key:      key,
		Value:    []byte(value),
		Revision: rev,
		Created:  rev,
		Version:  1,
	}
}

// again is cur as an update at rev leaves it.
func again(cur store.KV, value string, rev int64) store.KV {
	return store.KV{
		Key:      cur.Key,
		Value:    []byte(value),
		Revision: rev,
		Created:  cur.Created,
		Version:  cur.Version + 1,
	}
}
