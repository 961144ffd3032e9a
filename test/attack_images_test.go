// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageAttacks are what images and registries do to the node that pulls them.
var imageAttacks = []attack{
	{name: "manifests-of-90-MB", run: attackManifests},
	{name: "redirect-to-the-nodes-loopback", run: attackRedirect},
	{name: "a-byte-every-20-seconds", run: attackSlowImages},
	{name: "image-that-takes-the-helpers-memory", run: attackHelper},
}

// loopbackRegistry is a registry on loopback behind a handler that may interfere, once armed: until then images are
// pushed.
func loopbackRegistry(
	t *testing.T, interfere func(w http.ResponseWriter, r *http.Request, next http.Handler),
) (host string, arm func()) {
	t.Helper()
	var armed atomic.Bool
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if armed.Load() {
			interfere(w, r, reg)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections() // some are never answered
		srv.Close()
	})
	return strings.TrimPrefix(srv.URL, "http://"), func() { armed.Store(true) }
}

// pushLayer pushes an image of one layer and returns the layer's digest.
func pushLayer(t *testing.T, ref string, layer v1.Layer) string {
	t.Helper()
	to, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

// pulling is a pod that pulls an image.
func pulling(namespace, podName, image string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, command: [x]}]
---
`, podName, namespace, image)
}

// warnings are the messages of a pod's warning events.
func warnings(podName string) []string {
	return []string{"get", "events", "-A", "--field-selector=involvedObject.name=" + podName +
		",type=Warning", "-o", "jsonpath={.items[*].message}"}
}

// attackManifests serves manifests of 90 MB whose parse would take gigabytes, to three pods at once.
func attackManifests(t *testing.T, c *live) {
	manifest := []byte(`{"schemaVersion":2,"config":{},"layers":[` + strings.Repeat("{},", 30_000_000) + `{}]}`)
	host, arm := loopbackRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_, _ = w.Write(manifest) // without its length
	})
	arm()
	c.resetPeak(t)
	c.alive(t, func() {
		for i := range 3 {
			c.apply(t, pulling("default", fmt.Sprintf("big-%d", i), fmt.Sprintf("%s/big%d:1", host, i)))
		}
		for i := range 3 {
			c.eventually(t, "more than 4194304 bytes", warnings(fmt.Sprintf("big-%d", i))...)
		}
	})
	if peak := c.memory(t, "VmHWM"); peak > 400 {
		t.Errorf("the process took %d MB", peak)
	} else {
		t.Logf("the process took %d MB", peak)
	}
}

// attackRedirect leads pulls from a registry to a service on the node's loopback, whose answer would stand in an event.
func attackRedirect(t *testing.T, c *live) {
	const secret = "the-password-of-the-node"
	var asked atomic.Int32
	victim := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, secret, http.StatusInternalServerError)
	}))
	defer victim.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(victim.URL, "http://"), ":")
	for podName, to := range map[string]string{
		"address": victim.URL + "/",
		"named":   "http://localhost:" + port + "/",
		"tls":     "https://127.0.0.1:" + port + "/",
	} {
		for how, answer := range map[string]http.HandlerFunc{
			"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) },
			"realm": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"x\"", to))
				http.Error(w, secret, http.StatusUnauthorized)
			},
		} {
			host, arm := loopbackRegistry(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				answer(w, r)
			})
			arm()
			c.apply(t, pulling("default", podName+"-"+how, host+"/app:1"))
			out := c.eventually(t, "Failed to pull image", warnings(podName+"-"+how)...)
			if strings.Contains(out, secret) {
				t.Errorf("%s to %s: the event has the answer: %s", how, to, out)
			}
		}
	}
	if got := asked.Load(); got > 0 {
		t.Errorf("the service on the node's loopback was asked %d times", got)
	}
	host, _ := loopbackRegistry(t, nil) // one on loopback that the image names goes on
	pushLayer(t, host+"/app:1", static.NewLayer(emptyTar, types.OCIUncompressedLayer))
	c.apply(t, pulling("default", "honest", host+"/app:1"))
	c.eventually(t, "Successfully pulled image", "get", "events", "--field-selector=involvedObject.name=honest", "-o",
		"jsonpath={.items[*].message}")
}

// emptyTar is a layer without entries.
var emptyTar = make([]byte, 1024)

// attackSlowImages pulls images that never come to an end in one namespace, and a good one in another.
func attackSlowImages(t *testing.T, c *live) {
	var slow sync.Map // paths of layers
	var open atomic.Int32
	host, arm := loopbackRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if _, ok := slow.Load(r.URL.Path); !ok {
			next.ServeHTTP(w, r)
			return
		}
		open.Add(1)
		defer open.Add(-1)
		for {
			_, _ = w.Write([]byte{0})
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(20 * time.Second):
			case <-r.Context().Done():
				return
			}
		}
	})
	const pods = 8
	var manifests strings.Builder
	for i := range pods {
		layer := static.NewLayer(append(bytes.Clone(emptyTar), make([]byte, 512*(i+1))...), types.OCIUncompressedLayer)
		slow.Store(fmt.Sprintf("/v2/slow%d/blobs/%s", i, pushLayer(t, fmt.Sprintf("%s/slow%d:1", host, i), layer)),
			true)
		manifests.WriteString(pulling("greedy", fmt.Sprintf("slow-%d", i), fmt.Sprintf("%s/slow%d:1", host, i)))
	}
	pushLayer(t, host+"/good:1", static.NewLayer(emptyTar, types.OCIUncompressedLayer))
	arm()
	c.must(t, "create", "namespace", "greedy")
	c.must(t, "create", "namespace", "other")
	c.apply(t, manifests.String())
	c.waitFor(t, "the greedy namespace pulls", func() bool { return open.Load() >= 3 })
	c.apply(t, pulling("other", "good", host+"/good:1"))
	c.eventuallyWithin(t, 10*time.Second, "Successfully pulled image", "get", "events", "-n", "other", "-o",
		"jsonpath={.items[*].message}")
	if got := open.Load(); got < 3 || got > 4 {
		t.Errorf("%d slow downloads run at the same time", got)
	}
	c.eventuallyWithin(t, 3*time.Minute, "sends less than 4 KiB a second", "get", "events", "-n", "greedy", "-o",
		"jsonpath={.items[*].message}")
	c.must(t, "delete", "pods", "-n", "greedy", "--all", "--wait=false")
	c.waitFor(t, "the downloads end with their pods", func() bool { return open.Load() == 0 })
}

// waitFor waits until something is so.
func (c *live) waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so in %v: %s", patience, what)
		}
	}
}

// attackHelper pulls in one namespace an image that makes its helper process die, and others in another namespace.
func attackHelper(t *testing.T, c *live) {
	stop := make(chan struct{})
	var slow sync.Map
	host, arm := loopbackRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if _, ok := slow.Load(r.URL.Path); ok {
			select {
			case <-stop:
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
	digest := pushLayer(t, host+"/held:1", static.NewLayer(emptyTar, types.OCIUncompressedLayer))
	slow.Store("/v2/held/blobs/"+digest, true)
	arm()
	c.must(t, "create", "namespace", "greedy")
	before := c.pid(t)
	c.apply(t, pulling("greedy", "held", host+"/held:1"))
	var helper int
	c.waitFor(t, "a helper pulls", func() bool {
		helper = c.imageHelper(t)
		return helper != 0
	})
	c.waitFor(t, "the helper is limited, and ended before others", func() bool {
		return strings.TrimSpace(readHost(t, fmt.Sprintf("/proc/%d/oom_score_adj", helper))) == "900"
	})
	limits := readHost(t, fmt.Sprintf("/proc/%d/limits", helper))
	_, data, _ := strings.Cut(limits, "Max data size")
	var most int64
	if _, err := fmt.Sscan(data, &most); err != nil || most < 512<<20 || most > 768<<20 {
		t.Errorf("data of the helper is limited to %d bytes, %v:\n%s", most, err, limits)
	}
	p, err := os.FindProcess(helper)
	if err == nil {
		err = p.Kill() // as the kernel does when memory is gone
	}
	if err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "helper process ended (signal: killed)", warnings("held")...)
	close(stop)
	c.eventuallyWithin(t, time.Minute, "Successfully pulled image", "get", "events", "-n", "greedy", "-o",
		"jsonpath={.items[*].message}")
	if c.pid(t) != before {
		t.Error("the cluster's process died")
	}
	c.waitFor(t, "the idle helper ends", func() bool { return c.imageHelper(t) == 0 })
}

// imageHelper is a helper process of the cluster; 0: it has none.
func (c *live) imageHelper(t *testing.T) int {
	t.Helper()
	parent := c.pid(t)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var pid, ppid int
		var state string
		_, rest, _ := strings.Cut(string(b), ") ")
		if _, err := fmt.Sscan(rest, &state, &ppid); err != nil || ppid != parent {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err == nil && strings.Contains(string(command), "\x00image-helper\x00") {
			if _, err := fmt.Sscan(string(b), &pid); err == nil {
				return pid
			}
		}
	}
	return 0
}
