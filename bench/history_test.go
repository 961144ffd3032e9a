// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHistoryIsAppended: each run adds a line for each figure, and keeps those of earlier runs.
func TestHistoryIsAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	figures := []Result{
		{Scenario: "start", Figure: "to Ready", Value: 302, Unit: "ms", Limit: 1000},
		{Scenario: "schedule", Figure: "bound", Value: 2115, Unit: "pods/s", Higher: true},
	}
	for range 2 {
		h, err := openHistory(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.add(figures); err != nil {
			t.Fatal(err)
		}
		if err := h.close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %d lines, want 4:\n%s", len(lines), text)
	}
	for i, line := range lines {
		var got entry
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if got.Result != figures[i%2] {
			t.Errorf("line %d has %+v, want %+v", i+1, got.Result, figures[i%2])
		}
		if got.Program == "" || got.Machine == "" || got.Load == "" || got.Calibration <= 0 ||
			time.Since(got.Time) > time.Hour {
			t.Errorf("line %d does not say what was measured where: %s", i+1, line)
		}
	}
}

// TestScheduledResults: a workload has a rate with its goal, and a restart its first decision.
func TestScheduledResults(t *testing.T) {
	load := Scheduled{Workload: "plain", Nodes: 5, Pods: 10, Rate: 7, Target: 8, P99: time.Millisecond}
	if got := load.results(); len(got) != 3 || got[0].ok() || got[0].Unit != "pods/s" || got[1].Value != 1 {
		t.Errorf("got %+v", got)
	}
	restart := Scheduled{Workload: "restart", First: time.Second, StateMB: 3}
	if got := restart.results(); len(got) != 2 || got[0].Value != 1000 || got[1].Value != 3 {
		t.Errorf("got %+v", got)
	}
}

// TestHistoryFailsBeforeMeasuring: a path that cannot be written ends the run before the first scenario.
func TestHistoryFailsBeforeMeasuring(t *testing.T) {
	cfg := Config{
		Program:   "/nonexistent/keelson",
		Scenarios: []string{"start"},
		History:   filepath.Join(t.TempDir(), "no", "history.jsonl"),
	}
	if err := Run(t.Context(), cfg, io.Discard); err == nil || !strings.Contains(err.Error(), "open history") {
		t.Errorf("got %v, want an error of the history file", err)
	}
}

// TestTheHistoryInDocs: each line of docs/performance.jsonl is one that a run could have appended.
func TestTheHistoryInDocs(t *testing.T) {
	file, err := os.Open("../docs/performance.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	dec := json.NewDecoder(file)
	dec.DisallowUnknownFields()
	for n := 1; ; n++ {
		var e entry
		if err := dec.Decode(&e); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("entry %d: %v", n, err)
		}
		if e.Time.IsZero() || e.Machine == "" || e.Figure == "" || e.Unit == "" {
			t.Errorf("entry %d has no time, machine, figure or unit: %+v", n, e)
		}
	}
}
