// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"keelson/cluster/datadir"
)

// TestCheckPodRange: a start whose pod range another cluster has in this network namespace is refused, with its
// directory; its own link is no reason.
func TestCheckPodRange(t *testing.T) {
	const other = datadir.Dir("/srv/other")
	at := func(name string, third byte) []link {
		network := &net.IPNet{IP: net.IPv4(10, 42, third, 1), Mask: net.CIDRMask(24, 32)}
		return []link{{name: name, addrs: []net.Addr{network}}}
	}
	for name, test := range map[string]struct {
		links []link
		want  string
	}{
		"nothing":           {},
		"its own link":      {links: at(podLinkPrefix+"me", 7)},
		"a running cluster": {links: at(podLinkPrefix+other.ID(), 7), want: "keelson down --data-dir /srv/other"},
		"a stopped cluster": {links: at(podLinkPrefix+"left", 7), want: "ip link delete kl-left"},
		"another range":     {links: at(podLinkPrefix+"x", 8)},
	} {
		err := checkPodRange([]netip.Prefix{netip.MustParsePrefix("10.42.7.0/24")}, "me", test.links, func() []datadir.Dir {
			return []datadir.Dir{other}
		})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// TestInNetworkOf: what status reads of the network is that of the instance's network namespace.
func TestInNetworkOf(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: makes a network namespace, needs root")
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := inNetworkOf(cmd.Process.Pid, func() { got, _ = os.Readlink("/proc/thread-self/ns/net") }); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("read in %s, want %s", got, want)
	}
}
