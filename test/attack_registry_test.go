// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// hostileRegistry is a registry on this machine. Its images are KIND/NAME, where the kind says what it does to who
// pulls:
//
//	manifest20, manifest90   a manifest of so many MiB
//	redirect                 leads to a port of this machine that the kubelet must not reach
//	slow                     sends a byte each 20 seconds
//	good                     is an image
type hostileRegistry struct {
	addr string
	done chan struct{}

	mu   sync.Mutex
	seen map[string]int // requests by KIND/NAME, and what attacks count
}

func startHostileRegistry(t *testing.T) *hostileRegistry {
	t.Helper()
	r := &hostileRegistry{done: make(chan struct{}), seen: map[string]int{}}
	good := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/")
		image, _, _ := strings.Cut(rest, "/")
		r.count(kind + "/" + image)
		switch kind {
		case "manifest20":
			manifest(w, 20<<20)
		case "manifest90":
			manifest(w, 90<<20)
		case "redirect":
			http.Redirect(w, req, "http://127.0.0.1:10250/pods", http.StatusTemporaryRedirect)
		case "slow":
			r.drip(w)
		default:
			good.ServeHTTP(w, req)
		}
	}))
	r.addr = srv.Listener.Addr().String()
	t.Cleanup(func() {
		close(r.done)
		srv.CloseClientConnections()
		srv.Close()
	})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ref, err := name.ParseReference(r.good(), name.Insecure)
	check(err)
	check(remote.Write(ref, helloImage(check, r.good())))
	return r
}

// good is an image that can be pulled.
func (r *hostileRegistry) good() string { return r.addr + "/good/hello:1" }

func (r *hostileRegistry) count(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[what]++
}

func (r *hostileRegistry) requests(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[what]
}

// manifest sends a manifest of a size: as many layers as fit, of which each becomes much more in memory.
func manifest(w http.ResponseWriter, size int) {
	const kind = "application/vnd.oci.image.manifest.v1+json"
	b := []byte(`{"schemaVersion":2,"mediaType":"` + kind + `","config":{},"layers":[{}`)
	b = append(b, bytes.Repeat([]byte(",{}"), size/len(",{}"))...)
	b = append(b, "]}"...)
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256(b)))
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	_, _ = w.Write(b)
}

// drip announces a manifest and sends a byte of it each 20 seconds.
func (r *hostileRegistry) drip(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%064x", 0))
	w.Header().Set("Content-Length", "1000")
	for {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // an error ends the next write
		select {
		case <-r.done:
			return
		case <-time.After(20 * time.Second):
		}
	}
}

// portOf is the port in a URL's host.
func portOf(t *testing.T, url string) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	var n int32
	if _, err := fmt.Sscan(port, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
