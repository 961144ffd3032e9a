// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// What the plugins of the test make: their bridge, and the chains of iptables that portmap and firewall leave for all
// pods. They are deleted at the script's end, those that others had before are not.
const pluginBridge = "kltest-cni0"

var pluginChains = []pluginChain{
	{"iptables", "filter", "CNI-FORWARD"},
	{"iptables", "filter", "CNI-ADMIN"},
	{"iptables", "nat", "CNI-HOSTPORT-DNAT"},
	{"iptables", "nat", "CNI-HOSTPORT-MASQ"},
	{"iptables", "nat", "CNI-HOSTPORT-SETMARK"},
	{"ip6tables", "filter", "CNI-FORWARD"},
	{"ip6tables", "filter", "CNI-ADMIN"},
	{"ip6tables", "nat", "CNI-HOSTPORT-DNAT"},
	{"ip6tables", "nat", "CNI-HOSTPORT-MASQ"},
	{"ip6tables", "nat", "CNI-HOSTPORT-SETMARK"},
}

type pluginChain struct{ program, table, chain string }

// configurePlugins VAR FILE: makes a directory of CNI configuration, sets VAR to it, and copies FILE there, in which
// $WORK and BRIDGE are replaced.
func configurePlugins(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cniplugins VAR FILE")
	}
	dir := ts.MkAbs("net.d")
	ts.Check(os.MkdirAll(dir, 0o755))
	conf := strings.NewReplacer("$WORK", ts.MkAbs("."), "BRIDGE", pluginBridge).Replace(ts.ReadFile(args[1]))
	ts.Check(os.WriteFile(ts.MkAbs("net.d/"+args[1]), []byte(conf), 0o600))
	ts.Setenv(args[0], dir)
	var made []pluginChain
	for _, c := range pluginChains {
		if exec.Command(c.program, "-w", "-t", c.table, "-S", c.chain).Run() != nil {
			made = append(made, c)
		}
	}
	ts.Defer(func() {
		_ = exec.Command("ip", "link", "delete", pluginBridge).Run()
		for _, c := range made {
			c.remove()
		}
	})
}

// remove deletes a chain with the rules that lead to it.
func (c pluginChain) remove() {
	rules, _ := exec.Command(c.program, "-w", "-t", c.table, "-S").Output()
	for rule := range strings.Lines(string(rules)) {
		if rule = strings.TrimSpace(rule); strings.HasPrefix(rule, "-A ") && strings.HasSuffix(rule, "-j "+c.chain) {
			_ = exec.Command("sh", "-c", fmt.Sprintf("%s -w -t %s -D %s", c.program, c.table,
				strings.TrimPrefix(rule, "-A "))).Run()
		}
	}
	_ = exec.Command(c.program, "-w", "-t", c.table, "-F", c.chain).Run()
	_ = exec.Command(c.program, "-w", "-t", c.table, "-X", c.chain).Run()
}
