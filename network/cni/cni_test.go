// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ownNetns = "/proc/self/ns/net"

func pod(id string) Pod {
	return Pod{
		ID:           id,
		Netns:        ownNetns,
		Namespace:    "default",
		Name:         "web",
		UID:          "u1",
		CgroupParent: "/kubepods/u1",
		Annotations:  map[string]string{"kubernetes.io/ingress-bandwidth": "10M"},
		Ports:        []PortMapping{{Protocol: "TCP", HostPort: 8080, ContainerPort: 80}},
	}
}

// TestLife: plugins run in order with what they ask for and nothing else, and are undone in reverse by the
// configuration of then.
func TestLife(t *testing.T) {
	t.Setenv("SECRET", "x")
	world := newWorld(t)
	world.cfg.IPRanges = []netip.Prefix{netip.MustParsePrefix("10.42.7.0/24")}
	world.write("10-pods.conflist", "1.0.0",
		map[string]any{
			"type":         "a",
			"addrs":        []string{"10.1.0.2/24", "fd00::2/64", "10.1.0.3/24"},
			"capabilities": map[string]bool{"ipRanges": true},
		},
		map[string]any{"type": "b", "capabilities": map[string]bool{"portMappings": true, "bandwidth": true}})
	network := world.open()
	got, err := network.Attach(t.Context(), pod("one"))
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")}
	if !slices.Equal(got.Addrs, want) || got.Network != "podnet" || len(got.Plugins) != 2 ||
		got.Plugins[1].Plugin != "b" || got.Plugins[1].Command != "ADD" {
		t.Errorf("Attach gave %+v", got)
	}
	if again, err := network.Attach(t.Context(), pod("one")); err != nil || !slices.Equal(again.Addrs, want) {
		t.Errorf("Attach again gave %+v, %v", again, err)
	}
	if !network.Has(want[1]) || network.Has(netip.MustParseAddr("10.9.9.9")) {
		t.Error("Has does not distinguish the pod's addresses from others")
	}
	firstConfig := world.calls()[0]
	second := world.calls()[1]
	if want := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=one;K8S_POD_UID=u1"; firstConfig.Args != want ||
		firstConfig.IfName != "eth0" || firstConfig.Netns != ownNetns {
		t.Errorf("ADD got %+v", firstConfig)
	}
	if diff := cmp.Diff(
		[]string{"CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH", "PATH"},
		firstConfig.env()); diff != "" {
		t.Error("environment:", diff)
	}
	if got, want := fmt.Sprint(firstConfig.Config["runtimeConfig"]),
		"map[ipRanges:[[map[subnet:10.42.7.0/24]]]]"; got != want {
		t.Errorf("a gets %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(second.Config["runtimeConfig"]), "map[bandwidth:map[ingressBurst:4.294967295e+09 "+
		"ingressRate:1e+07] portMappings:[map[containerPort:80 hostPort:8080 protocol:tcp]]]"; got != want {
		t.Errorf("b gets %s, want %s", got, want)
	}

	// A restart, and another configuration.
	world.write("10-pods.conflist", "1.0.0", map[string]any{"type": "a"})
	network = world.open()
	if got := network.Attached(); !slices.Equal(got, []string{"one"}) || !network.Has(want[0]) {
		t.Errorf("after a restart %v are attached", got)
	}
	for range 2 {
		if err := network.Detach(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	if err := network.Detach(t.Context(), "never"); err != nil {
		t.Error(err)
	}
	if got, want := world.order(), "ADD a, ADD b, DEL b, DEL a"; got != want {
		t.Errorf("plugins were called with %s, want %s", got, want)
	}
	if world.calls()[2].Config["prevResult"] == nil {
		t.Error("DEL does not get the result of ADD")
	}
	if len(network.Attached()) > 0 || network.Has(want[0]) {
		t.Error("something is attached still")
	}
	if left, _ := filepath.Glob(filepath.Join(world.cfg.Dir, "*", "*", "*")); len(left) > 0 {
		t.Error("left on disk:", left)
	}
}

// TestInterrupted: an ADD that failed, or whose process was killed, is undone also by the next process, whose
// configuration may be broken, and when the sandbox's namespace is gone.
func TestInterrupted(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.0.0",
		map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}}, map[string]any{
			"type": "b",
			"fail": "ADD",
		})
	network := world.open()
	p := pod("half")
	p.Netns = "/nonexistent"
	got, err := network.Attach(t.Context(), p)
	if want := `failed to setup network for sandbox "half": plugin type="b" failed (add): the store is locked (CNI error 11: try again later)`; err == nil ||
		err.Error() != want {
		t.Errorf("Attach says %v, want %s", err, want)
	}
	if len(got.Plugins) != 2 {
		t.Errorf("ran %+v, want both plugins", got.Plugins)
	}
	world.put("10-pods.conflist", "{")
	network = world.open()
	if got := network.Attached(); !slices.Equal(got, []string{"half"}) {
		t.Fatalf("%v are attached, want the half-made one", got)
	}
	if err := network.Detach(t.Context(), "half"); err != nil {
		t.Fatal(err)
	}
	if got, want := world.order(), "ADD a, ADD b, DEL b, DEL a"; got != want {
		t.Errorf("plugins were called with %s, want %s", got, want)
	}
	if ns := world.calls()[2].Netns; ns != "" {
		t.Errorf("DEL got the namespace %q, which is gone", ns)
	}
}

// TestDetachFails: what plugins could not undo is tried again.
func TestDetachFails(t *testing.T) {
	w := newWorld(t)
	w.write("10-pods.conflist", "1.0.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}, "fail": "DEL"})
	n := w.open()
	if _, err := n.Attach(t.Context(), pod("one")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Detach(t.Context(), "one"); err == nil || !strings.HasPrefix(err.Error(),
			`failed to destroy network for sandbox "one": plugin type="a" failed (delete): the store is locked`) {
			t.Errorf("Detach says %v", err)
		}
	}
	if len(n.Attached()) != 1 {
		t.Error("what could not be detached is forgotten")
	}
}

// TestBadPlugins: a plugin that hangs, floods, fails without a word of CNI's or gives no usable address is an error of
// bounded length.
func TestBadPlugins(t *testing.T) {
	for _, tt := range []struct{ key, value, want string }{
		{"flood", "ADD", "its output is larger than 1048576 bytes"},
		{"garbage", "ADD", "exit status 3: [31mnot JSON"},
		{"addrs", "", "result has no address"},
	} {
		w := newWorld(t)
		w.write("10-pods.conflist", "1.0.0", map[string]any{"type": "a", tt.key: tt.value})
		_, err := w.open().Attach(t.Context(), pod("one"))
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 3000 {
			t.Errorf("%s: Attach says %v, want %s", tt.key, err, tt.want)
		}
	}
	w := newWorld(t)
	w.write("10-pods.conflist", "1.0.0", map[string]any{"type": "a", "addrs": []string{"127.0.0.1/8"}})
	if _, err := w.open().Attach(t.Context(), pod("one")); err == nil ||
		!strings.Contains(err.Error(), "the invalid address 127.0.0.1") {
		t.Errorf("the node's loopback as a pod's address: %v", err)
	}
}

// TestHang: a plugin that does not end is killed in time, with what it holds, and when its caller gives up.
func TestHang(t *testing.T) {
	w := newWorld(t)
	e := &executor{slots: make(chan struct{}, 1), limit: 200 * time.Millisecond}
	_, err := e.ExecPlugin(t.Context(), filepath.Join(w.cfg.BinDirs[0], "a"), []byte(`{"hang":"ADD"}`),
		[]string{"CNI_COMMAND=ADD"})
	if err == nil || !strings.Contains(err.Error(), "did not end in 200ms and was killed") {
		t.Errorf("a plugin that hangs: %v", err)
	}
	e.slots <- struct{}{}
	gone := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := e.ExecPlugin(ctx, "never", nil, nil); !errors.Is(err, gone) {
		t.Errorf("waiting for others: %v", err)
	}
}

// TestWatch: the configuration may come late, go, be wrong and be repaired, in a directory that comes late; plugins may
// too.
func TestWatch(t *testing.T) {
	world := newWorld(t)
	world.conf = filepath.Join(world.conf, "deep", "net.d")
	world.cfg.ConfDir = world.conf
	late := filepath.Join(t.TempDir(), "opt", "bin")
	world.cfg.BinDirs = append(world.cfg.BinDirs, late)
	down := filepath.Join(t.TempDir(), "down")
	network, err := New(world.cfg)
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- network.Watch(ctx, func(err error) { reports <- err }) }() // ends with ctx
	expect := func(what string) {
		t.Helper()
		select {
		case err := <-reports:
			if text(err) != what && (what == "" || !strings.Contains(text(err), what)) {
				t.Errorf("reported %v, want %q", err, what)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing reported, want %q", what)
		}
	}
	says := func(want string) {
		t.Helper()
		if got, err := Status(world.cfg.Dir); err != nil || got != want {
			t.Errorf("says %q, %v; want %q", got, err, want)
		}
	}
	expect("cni plugin not initialized: no network config found in " + world.conf)
	says("not ready: cni plugin not initialized: no network config found in " + world.conf +
		": put a .conflist file there")
	if _, err := network.Attach(t.Context(), pod("early")); err == nil || len(network.Attached()) > 0 {
		t.Errorf("attached without a configuration: %v", err)
	}
	if err := os.MkdirAll(world.conf, 0o755); err != nil {
		t.Fatal(err)
	}
	world.put("20-other.conf", `{"cniVersion":"1.0.0","name":"single","type":"a"}`)
	expect("")
	says("single of " + filepath.Join(world.conf, "20-other.conf") + ": a")
	world.put("10-pods.conflist", `{"cniVersion":"1.0.0","name":"podnet","plugins":[{"type":"../a"}]}`)
	expect(`10-pods.conflist: plugin type "../a" is not a file name`)
	world.put("10-pods.conflist", `{"cniVersion":"9.9.9","name":"podnet","plugins":[{"type":"a"}]}`)
	expect("9.9.9")
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "latecomer", "notReady": down})
	expect(`failed to find plugin "latecomer"`)
	if err := os.MkdirAll(late, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(down, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(world.cfg.BinDirs[0], "a"), filepath.Join(late, "latecomer")); err != nil {
		t.Fatal(err)
	}
	expect("the daemon is down (CNI error 50: plugin not available)")
	if err := os.Remove(down); err != nil { // no file event: the plugin is asked again
		t.Fatal(err)
	}
	expect("")
	if err := os.RemoveAll(world.conf); err != nil {
		t.Fatal(err)
	}
	for { // file by file
		if err := <-reports; err != nil && strings.Contains(err.Error(), "no network config found") {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := New(world.cfg); err != nil { // the next process, whose pods the built-in network attaches
		t.Error(err)
	}
	says("")
}

// TestIdle: a network that is ready asks nothing.
func TestIdle(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}})
	network, err := New(world.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- network.Watch(ctx, func(err error) { ready <- err }) }() // ends with ctx
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	if _, err := network.Attach(t.Context(), pod("one")); err != nil {
		t.Fatal(err)
	}
	if err := network.Detach(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(world.log)
	if err != nil {
		t.Fatal(err)
	}
	if asked := strings.Count(string(b), `"Command":"STATUS"`); asked != 1 {
		t.Errorf("asked %d times for its status, want once", asked)
	}
}

// TestCollect: plugins are called once with the list of sandboxes: those of all clusters of the machine.
func TestCollect(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}})
	n := world.open()
	if _, err := n.Attach(t.Context(), pod("mine")); err != nil {
		t.Fatal(err)
	}
	n.collect(t.Context(), n.current.Load().list)
	other := newWorld(t)
	other.conf = world.conf
	other.log = world.log
	other.cfg.ConfDir = world.conf
	other.cfg.RunDir = world.cfg.RunDir
	other.cfg.ID = "other"
	m := other.open()
	if _, err := m.Attach(t.Context(), pod("theirs")); err != nil {
		t.Fatal(err)
	}
	m.collect(t.Context(), m.current.Load().list)
	calls := world.calls()
	got := fmt.Sprint(calls[len(calls)-1].Config["cni.dev/valid-attachments"])
	if !strings.Contains(got, "mine") || !strings.Contains(got, "theirs") {
		t.Errorf("the second cluster has plugins keep %s, want those of both", got)
	}
	if err := m.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := world.order(); !strings.HasSuffix(got, "GC a, DEL a") {
		t.Errorf("plugins were called with %s", got)
	}
	if _, err := os.Stat(other.cfg.Dir); !os.IsNotExist(err) {
		t.Errorf("the directory is there still: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(world.cfg.RunDir, "cni")); len(left) != 1 {
		t.Errorf("registered are %v, want the first cluster alone", left)
	}
}

// TestCollectAlone: nothing is collected while a sandbox is attached or detached, for its addresses could pass for
// leftovers.
func TestCollectAlone(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}})
	network := world.open()
	list := network.current.Load().list
	other := newWorld(t)
	other.cfg.RunDir = world.cfg.RunDir
	for _, who := range []*Network{network, other.open()} { // a sandbox of this cluster's, and of another one
		done, err := who.lockShared()
		if err != nil {
			t.Fatal(err)
		}
		brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if network.collect(brief, list) || strings.Contains(world.order(), "GC") {
			t.Error("plugins collect while a sandbox is attached")
		}
		cancel()
		done()
	}
	if !network.collect(t.Context(), list) || !strings.HasSuffix(world.order(), "GC a") {
		t.Errorf("plugins do not collect when no call is running: %s", world.order())
	}
	if _, err := network.Attach(t.Context(), pod("one")); err != nil { // it was given back
		t.Fatal(err)
	}
}

// TestCollectAgain: another configuration in use is another network, with leftovers of its own.
func TestCollectAgain(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}})
	n := world.open()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Watch(ctx, func(error) {}) }() // ends with ctx
	collected := func(want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if b, _ := os.ReadFile(world.log); len(b) > 0 && b[len(b)-1] == '\n' && strings.Contains(world.order(),
				want) {
				return
			}
		}
		t.Errorf("plugins were called with %s, want %s", world.order(), want)
	}
	collected("GC a")
	world.write("10-pods.conflist", "1.1.0", map[string]any{"type": "b", "addrs": []string{"10.2.0.2/24"}})
	collected("GC b")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := strings.Count(world.order(), "GC a"); got != 1 {
		t.Errorf("asked %d times by the first configuration, want once", got)
	}
}

// TestDamaged: a record that is damaged is restored from its copy; without one it is set aside.
func TestDamaged(t *testing.T) {
	world := newWorld(t)
	world.write("10-pods.conflist", "1.0.0", map[string]any{"type": "a", "addrs": []string{"10.1.0.2/24"}})
	network := world.open()
	for _, id := range []string{"one", "two"} {
		if _, err := network.Attach(t.Context(), pod(id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{network.path("one"), network.path("two"), network.path("two") + ".copy"} {
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	network = world.open()
	if got := network.Attached(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("%v are attached, want the one with a good copy", got)
	}
	if _, err := os.ReadDir(filepath.Join(world.cfg.Dir, "damaged")); err != nil {
		t.Error(err)
	}
}

// TestBandwidth: annotations are read as Kubernetes reads them.
func TestBandwidth(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"10M", "map[ingressBurst:4294967295 ingressRate:10000000]"},
		{"1", `unreasonably small (< 1kbit)`},
		{"2P", `unreasonably large (> 1Pbit)`},
		{"fast", `"fast": `},
		{strings.Repeat("9", 100), "is not a quantity"},
	} {
		got, err := bandwidth(map[string]string{ingressAnnotation: tt.in})
		if text := fmt.Sprint(got, err); !strings.Contains(text, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.in, text, tt.want)
		}
	}
}

// FuzzRate: no annotation of a pod gets past the limits.
func FuzzRate(f *testing.F) {
	for _, s := range []string{"10M", "1e30", "-1", "0.5k", "1Ei", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if rate, err := rateOf(s); err == nil && (rate < 1000 || rate > 1e15) {
			t.Errorf("%q is %d", s, rate)
		}
	})
}

// FuzzWords: what a plugin says becomes one line of bounded length that no terminal obeys.
func FuzzWords(f *testing.F) {
	f.Add([]byte("a\x1b[0m\nb"))
	f.Add([]byte(strings.Repeat("ü", 3000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := words(b)
		if len(s) > maxMessage+3 || strings.ContainsFunc(s, func(r rune) bool {
			return r < ' ' || r >= 0x7f && r < 0xa0
		}) {
			t.Errorf("%q became %q", b, s)
		}
	})
}
