// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain is a CNI plugin where it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(plugin())
	}
	os.Exit(m.Run())
}

// call is one run of the plugin, as it notes it.
type call struct {
	Command, Plugin, ID, Netns, Args, IfName string
	Env                                      []string
	Config                                   map[string]any
}

// plugin does what its configuration says: log, fail, hang, flood, addrs, notReady.
func plugin() int {
	in, _ := io.ReadAll(os.Stdin)
	var cfg map[string]any
	_ = json.Unmarshal(in, &cfg)
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`)
		return 0
	}
	text := func(key string) string {
		s, _ := cfg[key].(string)
		return s
	}
	c := call{command, text("type"), os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS"), os.Getenv(
		"CNI_ARGS"), os.Getenv("CNI_IFNAME"), os.Environ(), cfg}
	if line, err := json.Marshal(c); err == nil && text("log") != "" {
		f, err := os.OpenFile(text("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return 1
		}
		_, _ = f.Write(append(line, '\n'))
		_ = f.Close()
	}
	failed := func(code int, msg string) int {
		b, _ := json.Marshal(map[string]any{"cniVersion": text("cniVersion"), "code": code, "msg": msg})
		fmt.Println(string(b))
		return 1
	}
	switch {
	case command == "STATUS" && text("notReady") != "":
		if _, err := os.Stat(text("notReady")); err == nil {
			return failed(50, "the daemon is down")
		}
	case command == "STATUS", command == "GC":
	case text("hang") == command:
		time.Sleep(time.Hour)
	case text("flood") == command:
		fmt.Println(strings.Repeat("x", 3<<20))
	case text("garbage") == command:
		fmt.Println("\x1b[31mnot JSON")
		return 3
	case text("fail") == command:
		return failed(11, "the store\nis locked")
	case command == "ADD":
		fmt.Println(result(cfg))
	}
	return 0
}

func result(cfg map[string]any) string {
	if prev, ok := cfg["prevResult"]; ok {
		b, _ := json.Marshal(prev)
		return string(b)
	}
	addrs, _ := cfg["addrs"].([]any)
	var ips []map[string]any
	for _, a := range addrs {
		ips = append(ips, map[string]any{"address": a, "interface": 1})
	}
	ips = append(ips, map[string]any{"address": "10.9.9.9/24", "interface": 0}) // the node's end
	b, _ := json.Marshal(map[string]any{
		"cniVersion": cfg["cniVersion"],
		"ips":        ips,
		"interfaces": []map[string]any{{"name": "veth0"}, {"name": "eth0", "sandbox": os.Getenv("CNI_NETNS")}},
	})
	return string(b)
}

// world has a configuration directory, plugins a and b, and the log of their calls.
type world struct {
	t         *testing.T
	conf, log string
	cfg       Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, conf: filepath.Join(dir, "net.d"), log: filepath.Join(dir, "log")}
	bin := filepath.Join(dir, "bin")
	for _, d := range []string{w.conf, bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.cfg = Config{
		ID:      "test",
		Dir:     filepath.Join(dir, "cni"),
		ConfDir: w.conf,
		BinDirs: []string{bin},
		RunDir:  filepath.Join(dir, "run"),
	}
	return w
}

// write makes a configuration of the plugins; each gets the log.
func (w *world) write(file, version string, plugins ...map[string]any) {
	w.t.Helper()
	for _, p := range plugins {
		p["log"] = w.log
	}
	b, err := json.Marshal(map[string]any{"cniVersion": version, "name": "podnet", "plugins": plugins})
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(file, string(b))
}

// put writes as careful installers do.
func (w *world) put(file, content string) {
	w.t.Helper()
	tmp := filepath.Join(w.t.TempDir(), file)
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(w.conf, file)); err != nil {
		w.t.Fatal(err)
	}
}

// open makes a Network that has read its configuration.
func (w *world) open() *Network {
	w.t.Helper()
	n, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	n.current.Store(n.use(w.t.Context()))
	return n
}

// calls are the plugins' runs so far, but for those that ask.
func (w *world) calls() []call {
	w.t.Helper()
	b, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var out []call
	for line := range strings.Lines(string(b)) {
		var c call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			w.t.Fatal(err)
		}
		if c.Command != "STATUS" {
			out = append(out, c)
		}
	}
	return out
}

// order returns the calls in short: verb and plugin.
func (w *world) order() string {
	var out []string
	for _, c := range w.calls() {
		out = append(out, c.Command+" "+c.Plugin)
	}
	return strings.Join(out, ", ")
}

// env is the environment's variables by name.
func (c call) env() []string {
	var names []string
	for _, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
