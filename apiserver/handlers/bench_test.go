// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/apiserver/servertest"
	"keelson/apiserver/wire"
	"keelson/store/embed"
)

// inMemory starts a server whose store costs no disk time, so that benchmarks show the server's own work.
func inMemory(b *testing.B) *servertest.Running {
	b.Helper()
	st, err := embed.Open(embed.Options{Dir: "bench", FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	return servertest.Start(b, func(c *servertest.Setup) {
		_ = c.Store.Close() // the one on disk is not needed
		c.Store = st
	})
}

func call(
	b *testing.B, h http.Handler, method, path, contentType string, body []byte, want int,
) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequestWithContext(b.Context(), method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	if strings.HasPrefix(contentType, wire.TypeProto) {
		r.Header.Set("Accept", contentType)
	}
	r.Header.Set("User-Agent", "bench/1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != want {
		b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return w
}

func BenchmarkCreatePod(b *testing.B) {
	for _, media := range []wire.Media{wire.JSON, wire.Proto} {
		b.Run(media.String(), func(b *testing.B) {
			h := inMemory(b).As(servertest.Admin)
			p := servertest.Pod("")
			p.GenerateName = "web-"
			body, err := wire.NewEncoder(media, servertest.PodGVK).Encode(p)
			if err != nil {
				b.Fatal(err)
			}
			call(b, h, "POST", "/api/v1/namespaces/default/pods", media.String(), body, http.StatusCreated)
			b.ReportAllocs()
			for b.Loop() {
				call(b, h, "POST", "/api/v1/namespaces/default/pods", media.String(), body, http.StatusCreated)
			}
		})
	}
}

func BenchmarkGetPod(b *testing.B) {
	for _, media := range []wire.Media{wire.JSON, wire.Proto} {
		b.Run(media.String(), func(b *testing.B) {
			h := inMemory(b).As(servertest.Admin)
			body, err := json.Marshal(servertest.Pod("web"))
			if err != nil {
				b.Fatal(err)
			}
			call(b, h, "POST", "/api/v1/namespaces/default/pods", "application/json", body, http.StatusCreated)
			b.ReportAllocs()
			for b.Loop() {
				call(b, h, "GET", "/api/v1/namespaces/default/pods/web", media.String(), nil, http.StatusOK)
			}
		})
	}
}

// roomyPod has two containers with an environment each: 2 KB when stored.
func roomyPod(name string) *corev1.Pod {
	p := servertest.Pod(name)
	first := &p.Spec.Containers[0]
	first.Resources.Requests = corev1.ResourceList{
		"cpu":    resource.MustParse("100m"),
		"memory": resource.MustParse("64Mi"),
	}
	for i := range 5 {
		first.Env = append(first.Env, corev1.EnvVar{
			Name:  fmt.Sprintf("VARIABLE_%d", i),
			Value: "a value of middling length",
		})
	}
	second := first.DeepCopy()
	second.Name = "second"
	p.Spec.Containers = append(p.Spec.Containers, *second)
	return p
}

func BenchmarkUpdatePod(b *testing.B) {
	handler := inMemory(b).As(servertest.Admin)
	encoder := wire.NewEncoder(wire.Proto, servertest.PodGVK)
	body, err := encoder.Encode(roomyPod("web"))
	if err != nil {
		b.Fatal(err)
	}
	pod := &corev1.Pod{}
	read := func(w *httptest.ResponseRecorder) {
		b.Helper()
		u := &runtime.Unknown{}
		if err := errors.Join(u.Unmarshal(w.Body.Bytes()[4:]), pod.Unmarshal(u.Raw)); err != nil {
			b.Fatal(err)
		}
	}
	read(call(b, handler, "POST", "/api/v1/namespaces/default/pods", wire.TypeProto, body, http.StatusCreated))
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		pod.Annotations = map[string]string{"seen": pod.ResourceVersion}
		if body, err = encoder.Encode(pod); err != nil {
			b.Fatal(err)
		}
		*pod = corev1.Pod{}
		b.StartTimer()
		w := call(b, handler, "PUT", "/api/v1/namespaces/default/pods/web", wire.TypeProto, body, http.StatusOK)
		b.StopTimer()
		read(w)
		b.StartTimer()
	}
}

func BenchmarkStatusPatch(b *testing.B) {
	handler := inMemory(b).As(servertest.Admin)
	body, err := json.Marshal(servertest.Pod("web"))
	if err != nil {
		b.Fatal(err)
	}
	call(b, handler, "POST", "/api/v1/namespaces/default/pods", "application/json", body, http.StatusCreated)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		patch := fmt.Appendf(nil,
			`{"status":{"message":"%d","conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, n, n)
		call(b, handler, "PATCH", "/api/v1/namespaces/default/pods/web/status",
			"application/strategic-merge-patch+json",
			patch, http.StatusOK)
	}
}

func BenchmarkListPods(b *testing.B) {
	for _, media := range []wire.Media{wire.JSON, wire.Proto} {
		b.Run(media.String(), func(b *testing.B) {
			h := inMemory(b).As(servertest.Admin)
			for i := range 1000 {
				body, err := json.Marshal(servertest.Pod(fmt.Sprintf("web-%d", i)))
				if err != nil {
					b.Fatal(err)
				}
				call(b, h, "POST", "/api/v1/namespaces/default/pods", "application/json", body, http.StatusCreated)
			}
			b.ReportAllocs()
			for b.Loop() {
				call(b, h, "GET", "/api/v1/pods", media.String(), nil, http.StatusOK)
			}
		})
	}
}

// BenchmarkListByLabel lists the 500 of 30,000 pods that have a label.
func BenchmarkListByLabel(b *testing.B) {
	h := inMemory(b).As(servertest.Admin)
	for i := range 30000 {
		pod := roomyPod(fmt.Sprintf("web-%d", i))
		pod.Labels = map[string]string{"app": fmt.Sprintf("app-%d", i%60), "tier": "web"}
		body, err := json.Marshal(pod)
		if err != nil {
			b.Fatal(err)
		}
		call(b, h, "POST", "/api/v1/namespaces/default/pods", "application/json", body, http.StatusCreated)
	}
	for _, media := range []wire.Media{wire.JSON, wire.Proto} {
		for _, value := range []string{"app-7", "none"} {
			b.Run(media.String()+"/"+value, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					call(b, h, "GET", "/api/v1/pods?labelSelector=app%3D"+value, media.String(), nil, http.StatusOK)
				}
			})
		}
	}
}
