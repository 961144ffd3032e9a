// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Frame is one event of a watch as it comes over the wire.
type Frame struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// Meta returns the metadata of the frame's object.
func (f Frame) Meta(t testing.TB) metav1.PartialObjectMetadata {
	t.Helper()
	var m metav1.PartialObjectMetadata
	if err := json.Unmarshal(f.Object, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Watch reads a watch frame by frame until the test ends or stop is called.
func (r *Running) Watch(t testing.TB, path string, headers ...string) (frames <-chan Frame, stop func()) {
	t.Helper()
	client, err := rest.HTTPClientFor(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.Rest.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		t.Fatalf("watch %s: %s", path, resp.Status)
	}
	out := make(chan Frame, 100)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(out)
		in := bufio.NewReader(resp.Body)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			var f Frame
			if json.Unmarshal(line, &f) == nil {
				out <- f
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		_ = resp.Body.Close() // the reader sees it and ends
		reading.Wait()
		client.CloseIdleConnections()
	})
	t.Cleanup(stop)
	return out, stop
}

// Next is the next frame, which must be of that type and about that object.
func Next(t testing.TB, frames <-chan Frame, kind, name string) Frame {
	t.Helper()
	select {
	case f, ok := <-frames:
		if !ok {
			t.Fatalf("watch ended, want %s %s", kind, name)
		}
		if f.Type != kind || name != "" && f.Meta(t).Name != name {
			t.Fatalf("watch says %s %s, want %s %s", f.Type, Short(f.Object), kind, name)
		}
		return f
	case <-time.After(time.Minute):
		t.Fatalf("no event within a minute, want %s %s", kind, name)
	}
	return Frame{}
}
