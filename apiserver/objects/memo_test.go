// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
	"keelson/store"
)

// TestMemoGivesBack: the memo keeps no more than its budget, what was encoded lately, and nothing when nothing has been
// encoded for long; then it looks no more.
func TestMemoGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memo := NewMemo(1000)
		expect := func(when string, entries, bytes int) {
			t.Helper()
			synctest.Wait()
			memo.mu.Lock()
			defer memo.mu.Unlock()
			if len(memo.queue) != entries || memo.bytes != bytes || memo.sweepScheduled != (entries > 0) {
				t.Errorf("%s: %d entries of %d bytes, looks %v; want %d of %d", when, len(memo.queue), memo.bytes,
					memo.sweepScheduled, entries, bytes)
			}
		}
		keep := func(n int) {
			for range n {
				b := make([]byte, 100)
				memo.add(&b)
			}
		}
		keep(25)
		large := make([]byte, 126)
		memo.add(&large)
		expect("full", 10, 1000)
		time.Sleep(memoAge + time.Second)
		expect("after one look", 10, 1000)
		keep(3)
		expect("the oldest made room", 10, 1000)
		time.Sleep(memoAge)
		expect("after two", 3, 300)
		time.Sleep(memoAge)
		expect("after three", 0, 0)
		keep(1)
		expect("again", 1, 100)
		time.Sleep(2*memoAge + time.Second)
		expect("and over", 0, 0)
	})
}

// tenBytes encodes any object as ten bytes.
type tenBytes struct{}

func (tenBytes) Encode(runtime.Object) ([]byte, error) { return make([]byte, 10), nil }

func (tenBytes) Key() string { return "ten bytes" }

// TestPackedIsNotMemoized: the encodings of a packed resource, which are large and rarely needed, take no room from
// those of others, whether the entry was written or decoded.
func TestPackedIsNotMemoized(t *testing.T) {
	for _, packed := range []bool{false, true} {
		memo := NewMemo(1000)
		pods := Config{
			GVK:    corev1.SchemeGroupVersion.WithKind("Pod"),
			New:    func() kind.Object { return &corev1.Pod{} },
			Prefix: "pods",
			Packed: packed,
		}
		records := Cached(pods, nil, memo, nil, nil)
		value, written, err := records.encode("/registry/pods/p", &corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := records.Decoded(store.KV{Key: "/registry/pods/p", Value: value, Revision: 2}, memo)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []*Entry{written, decoded} {
			if _, err := e.Encoded(tenBytes{}); err != nil {
				t.Fatal(err)
			}
		}
		want := 20
		if packed {
			want = 0
		}
		if memo.bytes != want {
			t.Errorf("packed %v: the memo has %d bytes, want %d", packed, memo.bytes, want)
		}
	}
}
