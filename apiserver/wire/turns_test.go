// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"keelson/lib/cpusem"
)

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// withGate runs f with a gate of one place of its own.
func withGate(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		old := cpusem.Processors
		cpusem.Processors = cpusem.New(1)
		defer func() { cpusem.Processors = old }()
		f(t)
	})
}

// TestPanicGivesTurnBack: an item that cannot be encoded, or a client's connection that panics, does not take a turn
// for good.
func TestPanicGivesTurnBack(t *testing.T) {
	withGate(t, func(t *testing.T) {
		for range 3 {
			l := &List{
				Envelope:   []byte(`{"apiVersion":"v1","items":[]}`),
				Field:      "items",
				Len:        1,
				AppendJSON: func([]byte, int) ([]byte, error) { panic("odd item") },
			}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if !panics(func() {
				_ = WriteList(t.Context(), httptest.NewRecorder(), r, l, MediaTypeOptions{Media: JSON})
			}) {
				t.Fatal("no panic")
			}
		}
		cpusem.Processors.Do(func() {}) // blocks forever if one was kept
	})
}

// TestYAMLWaitsWithoutTurn: a list in YAML that waits for one of YAML's slots holds up no other list and no watch.
func TestYAMLWaitsWithoutTurn(t *testing.T) {
	withGate(t, func(t *testing.T) {
		slots := yamlSlots
		yamlSlots = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
		defer func() { yamlSlots = slots }()
		var back []func()
		for range cap(yamlSlots) {
			back = append(back, acquireYAMLSlot())
		}
		done := make(chan error, 1)
		go func() { // ends when the slots are given back
			l := &List{
				Envelope:   []byte(`{"apiVersion":"v1","items":[]}`),
				Field:      "items",
				Len:        1,
				AppendJSON: func(b []byte, _ int) ([]byte, error) { return append(b, `{"a":1}`...), nil },
			}
			done <- WriteList(context.Background(), httptest.NewRecorder(),
				httptest.NewRequest(http.MethodGet, "/", nil), l, MediaTypeOptions{Media: YAML})
		}()
		synctest.Wait()
		cpusem.Processors.Do(func() {}) // blocks forever if the list above has the only one
		for _, f := range back {
			f()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestListWaitsForItsTurn: a list is encoded when it has a place, and not before.
func TestListWaitsForItsTurn(t *testing.T) {
	withGate(t, func(t *testing.T) {
		cpusem.Processors.Enter()
		var encoded atomic.Bool
		done := make(chan error, 1)
		go func() { // ends when it has had the place
			l := &List{
				Envelope: []byte(`{"apiVersion":"v1","items":[]}`),
				Field:    "items",
				Len:      1,
				AppendJSON: func(b []byte, _ int) ([]byte, error) {
					encoded.Store(true)
					return append(b, `{"a":1}`...), nil
				},
			}
			done <- WriteList(context.Background(), httptest.NewRecorder(),
				httptest.NewRequest(http.MethodGet, "/", nil), l, MediaTypeOptions{Media: JSON})
		}()
		synctest.Wait()
		if encoded.Load() {
			t.Error("encoded while another one had the only place")
		}
		cpusem.Processors.Leave()
		if err := <-done; err != nil || !encoded.Load() {
			t.Errorf("with a place: encoded %v, %v", encoded.Load(), err)
		}
	})
}
