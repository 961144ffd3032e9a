// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// mute is a server that takes connections and says nothing.
func mute(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// TestSilentServer: a command about a server that accepts and never answers ends with a sentence that names it.
func TestSilentServer(t *testing.T) {
	at := mute(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":"https://%s","insecure-skip-tls-verify":true}}],"users":[{"name":"a","user":{}}]}`,
		at)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"timeline", "pod/a"},
		{"timeline", "deploy/a", "--follow"},
		{"why", "pod/a"},
		{"why", "svc/a"},
		{"trace", "--from", "pod/a", "--to", "svc/a:80"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var said bytes.Buffer
			code := Run(ctx, append([]string{"keelson"}, append(args, "--kubeconfig", kubeconfig)...), Stdio{
				In:  strings.NewReader(""),
				Out: io.Discard,
				Err: &said,
			})
			if code != 1 || ctx.Err() != nil || !strings.Contains(said.String(), at+" has been silent for ") {
				t.Errorf("got %d and %q, want the server and for how long it was silent", code, said.String())
			}
		})
	}
}

// TestSilentAmidAnswer: an answer that stops half way is given up, one that goes on slowly is not, nor one that
// follows.
func TestSilentAmidAnswer(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w)
		_, _ = io.WriteString(w, "begun")
		_ = flush.Flush()
		if strings.HasPrefix(r.URL.Path, "/stops") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	limitSilence(cfg, 50*time.Millisecond)
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			return "", err
		}
		resp, err := hc.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	var silent *silentError
	if got, err := get("/stops"); !errors.As(err, &silent) || got != "begun" {
		t.Errorf("stops: got %q, %v; want what came and that it is silent", got, err)
	}
	if got, err := get("/whole"); err != nil || got != "begun" {
		t.Errorf("whole: got %q, %v", got, err)
	}
	timer := time.AfterFunc(300*time.Millisecond, func() { close(release) })
	defer timer.Stop()
	if got, err := get("/stops?follow=true"); err != nil || got != "begun" {
		t.Errorf("follow: got %q, %v", got, err)
	}
	cl, err := kubernetes.NewForConfig(&rest.Config{
		Host:          "http://" + mute(t),
		Timeout:       time.Minute,
		WrapTransport: cfg.WrapTransport,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.CoreV1().Pods("a").Get(t.Context(), "a", metav1.GetOptions{}); !errors.As(err, &silent) {
		t.Errorf("by client-go: got %v", err)
	}
}
