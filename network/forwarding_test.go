// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// alone is set in the environment of a test that has started itself again.
const alone = "KEELSON_TEST_ALONE"

// uplinks makes a link that leads elsewhere, with its forwarding as given.
func uplinks(t *testing.T, name, addr, forwarding string) {
	t.Helper()
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		t.Fatal(err)
	}
	if err := setSysctl(ipv4Conf+name+"/forwarding", forwarding); err != nil {
		t.Fatal(err)
	}
}

func wantForwarding(t *testing.T, when string, want map[string]string) {
	t.Helper()
	for link, v := range want {
		if got, err := os.ReadFile(ipv4Conf + link + "/forwarding"); err != nil || strings.TrimSpace(string(got)) != v {
			t.Errorf("%s: forwarding of %s: got %q, %v, want %s", when, link, got, err, v)
		}
	}
}

// TestPurgeRestoresForwarding, when the last cluster of the machine goes that needs it, and only what it was that
// turned it on.
func TestPurgeRestoresForwarding(t *testing.T) {
	needRoot(t)
	// in a network namespace of its own: a program that turns forwarding on for the whole machine would break it
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), alone+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := setSysctl("/proc/sys/net/ipv4/ip_forward", "0"); err != nil {
		t.Fatal(err)
	}
	wantTimes := func(when, established, closeWait string) {
		t.Helper()
		for name, want := range map[string]string{
			"tcp_timeout_established": established,
			"tcp_timeout_close_wait":  closeWait,
		} {
			got, err := os.ReadFile(settingOf(tracked + name))
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s: %s: got %q, %v, want %s", when, name, got, err, want)
			}
		}
	}
	uplinks(t, "fwd-off", "192.0.2.1/25", "0")
	uplinks(t, "fwd-on", "192.0.2.129/25", "1")
	run := t.TempDir()
	var nets []*Network
	for range 2 {
		cfg := newConfig(t)
		cfg.RunDir = run
		n, stop := start(t, cfg)
		nets = append(nets, n)
		wantForwarding(t, "up", map[string]string{"fwd-off": "1", "fwd-on": "1"})
		stop()
	}
	wantTimes("up", "86400", "3600")
	again, stop := start(t, nets[0].cfg) // a restart records nothing new
	stop()
	if err := again.Purge(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantForwarding(t, "one of two is gone", map[string]string{"fwd-off": "1", "fwd-on": "1"})
	for range 2 {
		if err := nets[1].Purge(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantForwarding(t, "both are gone", map[string]string{"fwd-off": "0", "fwd-on": "1"})
		wantTimes("both are gone", "432000", "60")
	}
	if left, err := os.ReadDir(run + "/forwarding"); err != nil || len(left) != 1 {
		t.Errorf("records: got %v, %v, want the lock alone", left, err)
	}
}
