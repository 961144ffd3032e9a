// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/auth/authz"
)

// TestLiveFiles: a file that changes is applied, one that is wrong is counted, and the one in use is told by its hash.
func TestLiveFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	l := &liveFiles{log: slog.New(slog.DiscardHandler)}
	f, err := l.add(path, "authorization")
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan string, 8)
	f.apply = func(_ context.Context, b []byte) error {
		applied <- string(b)
		if strings.HasPrefix(string(b), "wrong") {
			return errors.New("it is wrong")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.part()(ctx, func() {}) }() // ends with ctx
	for _, text := range []string{"second", "wrong", "third"} {
		write(text)
		select {
		case got := <-applied:
			if got != text {
				t.Fatalf("applied %q, want %q", got, text)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q was not applied", text)
		}
	}
	want := map[string]float64{
		"apiserver_authorization_config_controller_automatic_reloads_total success":             2,
		"apiserver_authorization_config_controller_automatic_reloads_total failure":             1,
		"apiserver_authorization_config_controller_last_config_info " + hashOf([]byte("third")): 1,
	}
	deadline := time.Now().Add(time.Minute) // the counters come after the call
	for {
		got := gathered(t, l.collectors())
		missing := ""
		for name, n := range want {
			if got[name] != n {
				missing = name
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %v", missing, got)
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// gathered are values by the metric's name and its status or hash.
func gathered(t *testing.T, c []prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if name := label.GetName(); name == "status" || name == "hash" {
					out[f.GetName()+" "+label.GetValue()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return out
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		o    APIOptions
		want string // of modes, or in the error
	}{
		{APIOptions{}, "Node RBAC"},
		{APIOptions{AuthorizationWebhook: "f"}, "Node RBAC Webhook"},
		{APIOptions{AuthorizationModes: []string{"RBAC"}}, "RBAC"},
		{APIOptions{AuthorizationModes: []string{"Webhook", "RBAC"}, AuthorizationWebhook: "f"}, "Webhook RBAC"},
		{APIOptions{AuthorizationModes: []string{"ABAC"}}, `authorization-mode "ABAC" is not a valid mode`},
		{APIOptions{AuthorizationModes: []string{"RBAC", "RBAC"}}, `authorization-mode "RBAC" is specified more than once`},
		{APIOptions{AuthorizationModes: []string{"RBAC"}, AuthorizationWebhook: "f"}, "must be given together"},
		{APIOptions{AuthorizationModes: []string{authz.ModeWebhook}}, "must be given together"},
		{APIOptions{AuthorizationModes: []string{"RBAC"}, AuthorizationConfig: "f"}, "exclude each other"},
		{APIOptions{Tokens: TokenOptions{JWKSURI: "http://x"}}, "service-account-jwks-uri requires https scheme, parsed as: http://x"},
		{APIOptions{Tokens: TokenOptions{Longest: time.Minute}}, "must be between 1 hour and 2^32 seconds"},
	} {
		got := strings.Join(c.o.modes(), " ")
		if err := c.o.Validate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.o, got, c.want)
		}
	}
}
