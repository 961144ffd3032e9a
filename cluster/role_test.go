// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"keelson/cluster/flags"
)

// TestRoles shows which roles start in which order.
func TestRoles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"up": {func(*Config) {}, "apiserver configuration network container-runtime | certificates controllers " +
			"scheduler fake-nodes proxy networkpolicy dns kubelet pod-routes"},
		"up, etcd's API": {func(c *Config) { c.EtcdListen = "127.0.0.1:0" }, "apiserver configuration etcd-API " +
			"network container-runtime | certificates controllers scheduler fake-nodes proxy networkpolicy dns kubelet " +
			"pod-routes"},
		"rootless": {
			func(c *Config) { c.Rootless = true },
			"apiserver configuration | certificates controllers scheduler fake-nodes",
		},
		"scheduler none": {func(c *Config) {
			c.NoNode = true
			c.Without = []string{"scheduler"}
		}, "apiserver configuration | certificates controllers fake-nodes"},
		"no node": {
			func(c *Config) { c.NoNode = true },
			"apiserver configuration | certificates controllers scheduler fake-nodes",
		},
		"API server alone": {func(c *Config) {
			c.NoNode = true
			c.NoAgents = true
		}, "apiserver configuration | certificates"},
		"with fake nodes": {func(c *Config) {
			c.NoNode = true
			c.NoAgents = true
			c.Fake.Count = 3
		}, "apiserver configuration | certificates fake-nodes"},
	} {
		cfg := Default()
		c.change(&cfg)
		if got := order(waves(table(), func(r *role) bool { return r.on(cfg) })); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
	if got, want := order(waves(table(), func(r *role) bool { return r.node })),
		"network container-runtime | proxy networkpolicy dns no-dns kubelet pod-routes"; got != want {
		t.Errorf("kubelet:\n got %s\nwant %s", got, want)
	}
}

func order(waves [][]role) string {
	var out []string
	for _, w := range waves {
		var names []string
		for _, r := range w {
			names = append(names, strings.ReplaceAll(r.name, " ", "-"))
		}
		out = append(out, strings.Join(names, " "))
	}
	return strings.Join(out, " | ")
}

// TestTable: what a row needs stands above it, and names and files are one role's.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	once := func(what, name string) {
		if name != "" && seen[what+name] {
			t.Errorf("%s %q is there twice", what, name)
		}
		seen[what+name] = true
	}
	for _, role := range table() {
		for _, n := range role.needs {
			if !seen["role "+n] {
				t.Errorf("%s needs %s, which does not stand above it", role.name, n)
			}
		}
		once("role ", role.name)
		once("command ", role.word)
		once("file ", role.file)
		once("choice ", role.choice)
		if (role.file != "" || len(role.rules) > 0 || role.bound != "" || len(role.steps) > 0) &&
			(role.user == nil || role.agent == "") {
			t.Errorf("%s has no user", role.name)
		}
		if role.word != "" && role.run == nil && role.file == "" {
			t.Errorf("%s: a process of its own needs a kubeconfig", role.name)
		}
	}
}

// TestChoice: a role that users may do without has a flag for it, also of the process in the background.
func TestChoice(t *testing.T) {
	var options Options
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	r := role{name: "service proxy", choice: "proxy", node: true}
	flags.Add(fl, r.optionRows(&options))
	if fl.Lookup("proxy").DefValue != "builtin" {
		t.Errorf("default %q", fl.Lookup("proxy").DefValue)
	}
	for _, c := range []struct {
		arg string
		on  bool
	}{{"--proxy=none", false}, {"--proxy=builtin", true}, {"--proxy=none", false}, {"--proxy=none", false}} {
		if err := fl.Parse([]string{c.arg}); err != nil {
			t.Fatal(err)
		}
		if on := r.on(Config{Options: options}); on != c.on || len(options.Without) > 1 {
			t.Errorf("%s: on %t, without %q", c.arg, on, options.Without)
		}
	}
	if err := fl.Parse([]string{"--proxy=cilium"}); err == nil ||
		!strings.Contains(err.Error(), "neither builtin nor none") {
		t.Errorf("a strange choice: %v", err)
	}
}
