// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"
	"strings"
	"testing"
)

func TestWhichRun(t *testing.T) {
	on := row{name: "a-controller", alias: "a"}
	off := row{name: "b-controller", offByDefault: true}
	for _, c := range []struct {
		given   string
		on, off bool
	}{
		{"*", true, false},
		{"", false, false},
		{"*,b-controller", true, true},
		{"*,-a-controller", false, false},
		{"*,-a", false, false},
		{"a", true, false},
		{"b-controller", false, true},
		{"a,-a", true, false}, // the first goes before the second
		{"-a,a", false, false},
		{"-a", false, false}, // without * nothing else runs
	} {
		o := Options{Controllers: strings.Split(c.given, ",")}
		if got := o.runs(on); got != c.on {
			t.Errorf("--controllers=%s: %s runs: got %t, want %t", c.given, on.name, got, c.on)
		}
		if got := o.runs(off); got != c.off {
			t.Errorf("--controllers=%s: %s runs: got %t, want %t", c.given, off.name, got, c.off)
		}
	}
}

func TestOptionsValidate(t *testing.T) {
	for given, want := range map[string]string{
		"*":                            "",
		"*,-nodelifecycle":             "",
		"*,-node-route-controller":     "",
		"garbage-collector-controller": "",
		"node-route-controller":        `--controllers: "node-route-controller" is not in the list of known controllers`,
		"*,-job-kontroller":            `--controllers: "job-kontroller" is not in the list of known controllers`,
		"":                             `--controllers: "" is not in the list of known controllers`,
		"generic-garbage-collector,-*,*": "--controllers: \"generic-garbage-collector\" is not in the list of known " +
			"controllers\n--controllers: \"*\" is not in the list of known controllers",
	} {
		err := Options{Controllers: strings.Split(given, ",")}.Validate()
		if got := ""; err != nil {
			got = err.Error()
			if got != want {
				t.Errorf("--controllers=%s: got %q, want %q", given, got, want)
			}
		} else if want != "" {
			t.Errorf("--controllers=%s: no error, want %q", given, want)
		}
	}
	if err := (Options{Workers: map[string]int{"deployment": 0}}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "--concurrent-deployment-syncs 0") {
		t.Errorf("no workers: %v", err)
	}
}

// TestTable: names, aliases and flags mean one controller each, and rows that share a flag have the same default.
func TestTable(t *testing.T) {
	var names []string
	queues := map[string]bool{}
	workers := map[string]int{}
	for _, row := range table {
		if row.queue == "" || queues[row.queue] {
			t.Errorf("row %s: the name of its queue is %q, which is empty or another's", row.name, row.queue)
		}
		queues[row.queue] = true
		for _, n := range []string{row.name, row.alias} {
			if n != "" && slices.Contains(names, n) {
				t.Errorf("two controllers are called %s", n)
			}
			names = append(names, n)
		}
		if !strings.HasSuffix(row.name, "-controller") || row.workers < 1 || row.build == nil {
			t.Errorf("row %s: its name must end with -controller, it must have workers and be built", row.name)
		}
		if n, ok := workers[row.syncs]; ok && row.syncs != "" && n != row.workers {
			t.Errorf("--concurrent-%s-syncs has two defaults: %d and %d", row.syncs, n, row.workers)
		}
		workers[row.syncs] = row.workers
	}
	for _, syncs := range []string{"disruption", "resourceclaim"} { // since v1.37 and v1.36
		if workers[syncs] == 0 {
			t.Errorf("no controller has --concurrent-%s-syncs", syncs)
		}
	}
	o := Options{Workers: map[string]int{"deployment": 9}}
	for _, r := range table {
		want := r.workers
		if r.syncs == "deployment" {
			want = 9
		}
		if got := o.workers(r); got != want {
			t.Errorf("%s has %d workers, want %d", r.name, got, want)
		}
	}
}
