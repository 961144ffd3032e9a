// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// newMachine is the command "machine NAME A.B.C": a second machine, which is a network namespace with the address
// A.B.C.2 on the link NAME1, whose way out is this machine's A.B.C.1 on NAME0. However the script ends, what runs there
// on $WORK/node ends, and the machine goes.
func newMachine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: machine NAME A.B.C")
	}
	name := args[0]
	net := args[1]
	unmake(name) // what a run that was killed left
	ts.Defer(func() { leave(ts, name) })
	for _, line := range machineLinks(name, net) {
		ts.Check(ts.Exec("ip", strings.Fields(line)...))
	}
}

// machineLinks are the arguments of the program ip that make a machine.
func machineLinks(name, net string) []string {
	return []string{
		"netns add " + name,
		"link add " + name + "0 type veth peer name " + name + "1 netns " + name,
		"addr add " + net + ".1/24 dev " + name + "0",
		"link set " + name + "0 up",
		"-n " + name + " addr add " + net + ".2/24 dev " + name + "1",
		"-n " + name + " link set " + name + "1 up",
		"-n " + name + " link set lo up",
		"-n " + name + " route add default via " + net + ".1",
	}
}

// leave ends what the script's machine runs; where the script did that, there is nothing to do.
func leave(ts *testscript.TestScript, name string) {
	dir := filepath.Join(ts.Getenv("WORK"), "node")
	if _, err := os.Stat(dir); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+name, ts.Getenv("KEELSON"), "down",
			"--purge", "--data-dir", dir).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a cluster's data") {
			ts.Logf("keelson down on machine %s: %v\n%s", name, err, out)
		}
	}
	unmake(name)
}

// unmake removes a machine, and first what still runs in its namespace.
func unmake(name string) {
	pids, err := exec.CommandContext(context.Background(), "ip", "netns", "pids", name).Output()
	if err == nil {
		for f := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(f); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = exec.CommandContext(ctx, "ip", "link", "del", name+"0").Run() // there may be none
	_ = exec.CommandContext(ctx, "ip", "netns", "del", name).Run()
}
