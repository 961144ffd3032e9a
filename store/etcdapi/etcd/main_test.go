// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/lib/waittest"
)

// get returns the status and the body of a GET; 0 while there is no answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestServe: health and version over HTTP, keys by etcd's client at the same port, also after a restart.
func TestServe(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	o := options{dataDir: t.TempDir(), clients: []string{url}, noSync: true}
	for round := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- serve(ctx, o) }() // ends with ctx; the test waits for it
		waittest.Until(t, "healthy", func() bool {
			code, body := get(t, url+"/health")
			return code == http.StatusOK && strings.Contains(body, `"health":"true"`)
		})
		if code, body := get(t, url+"/version"); code != http.StatusOK || !strings.Contains(body, `"etcdserver":"3.5`) {
			t.Errorf("version: %d %s", code, body)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			if _, err := client.Put(t.Context(), "/registry/a", "1"); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := client.Get(t.Context(), "/registry/a"); err != nil || len(got.Kvs) != 1 ||
			string(got.Kvs[0].Value) != "1" {
			t.Errorf("round %d: %v, %v", round, got, err)
		}
		_ = client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

// TestLoopbackOnly: without authentication no address but loopback is served.
func TestLoopbackOnly(t *testing.T) {
	for _, url := range []string{"http://0.0.0.0:2379", "http://192.0.2.1:2379", "https://127.0.0.1:2379", "nonsense"} {
		if at, err := loopback(url); err == nil {
			t.Errorf("%s is served at %s", url, at)
		}
	}
	for _, url := range []string{"http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379"} {
		if _, err := loopback(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestFlags: those of a harness are known, those of the real etcd that it lacks are no error.
func TestFlags(t *testing.T) {
	var o options
	err := flags(&o).Parse([]string{
		"--advertise-client-urls=http://127.0.0.1:1", "--data-dir=/d", "--listen-client-urls=http://127.0.0.1:1",
		"--listen-peer-urls=http://127.0.0.1:2", "--unsafe-no-fsync=true", "--quota-backend-bytes=1",
	})
	if err != nil || o.dataDir != "/d" || !o.noSync || len(o.clients) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	if err := run(t.Context(), []string{"--unsafe-no-fsync=maybe"}, io.Discard); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a wrong value: %v", err)
	}
}
