// SPDX-License-Identifier: Apache-2.0

package configreload

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
)

// TestFiles: a file that changes is applied, one that is wrong is counted, and the metric of the one in use has its
// hash.
func TestFiles(t *testing.T) {
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
	rejected := &Rejected{}
	files := New(slog.New(slog.DiscardHandler), rejected)
	applied := make(chan string, 8)
	apply := func(_ context.Context, b []byte) error {
		applied <- string(b)
		if strings.HasPrefix(string(b), "wrong") {
			return errors.New("it is wrong")
		}
		return nil
	}
	err := files.Configuration(path, "authorization", func(b []byte) (Apply, error) {
		if string(b) != "first" {
			t.Errorf("read %q first", b)
		}
		return apply, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- files.Part()(ctx, func() {}) }() // ends with ctx
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
	cancel() // it ends when it has counted
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got := gathered(t, files.Collectors())
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: got %v, want %v", name, got[name], n)
		}
	}
}

// TestRejected: a configuration whose file is wrong or missing is listed until one of its files is good again, even the
// one that was in use.
func TestRejected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	rejected := &Rejected{}
	files := New(slog.New(slog.DiscardHandler), rejected)
	files.Watch("scheduler", path, []byte("good"), func(_ context.Context, b []byte) error {
		if string(b) != "good" {
			return errors.New("it is " + string(b))
		}
		return nil
	})
	for i, step := range []struct{ content, want string }{
		{"good", ""},
		{"wrong", "it is wrong"},
		{"bad", "it is bad"},
		{"", "no such file"},
		{"bad", "it is bad"},
		{"good", ""},
		{"", "no such file"},
		{"good", ""},
	} {
		if step.content == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		files.reload(t.Context(), files.files[0])
		got := rejected.List()
		switch {
		case step.want == "" && len(got) > 0, step.want != "" && len(got) != 1:
			t.Errorf("step %d: got %+v, want %q", i, got, step.want)
		case len(got) == 1 && (got[0].Name != "scheduler" || got[0].File != path ||
			!strings.Contains(got[0].Error, step.want)):
			t.Errorf("step %d: got %+v, want %q", i, got[0], step.want)
		}
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
