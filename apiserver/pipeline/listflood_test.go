// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// ask gets url and returns how long that took.
func ask(t *testing.T, client *http.Client, url string) time.Duration {
	t.Helper()
	begin := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return time.Since(begin)
}

// TestHealthUnderLists: while an administrator, who waits for no seat, asks for thousands of lists at once, health
// checks are answered before a probe gives up: what encodes takes turns at the processors.
func TestHealthUnderLists(t *testing.T) {
	const objects, lists, perConnection, checks = 500, 1500, 750, 100
	// when a probe of a health check gives up; that encoding takes turns is tested in wire, without a clock
	const soon = 15 * time.Second
	running := servertest.Start(t, nil)
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	for i := range objects {
		m := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d", i)},
			Data: map[string]string{
				"a": strings.Repeat("x", 2<<10),
			},
		}
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	health := must(t, rest.AnonymousClientConfig(running.Rest))
	ask(t, health, running.Rest.Host+"/livez")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range lists / perConnection {
		client := must(t, running.Rest)
		ask(t, client, running.Rest.Host+"/version") // so that there is one connection for all
		for range perConnection {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, running.Rest.Host+"/api/v1/configmaps",
					http.NoBody)
				if err != nil {
					return
				}
				req.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
				if resp, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
	}
	var worst time.Duration
	for range checks {
		worst = max(worst, ask(t, health, running.Rest.Host+"/livez"))
	}
	t.Logf("the slowest answer of /livez took %s", worst)
	if worst > soon {
		t.Errorf("/livez took %s, want it within %s", worst, soon)
	}
}

func must(t *testing.T, cfg *rest.Config) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(rest.CopyConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	return client
}
