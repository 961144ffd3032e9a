// SPDX-License-Identifier: Apache-2.0

package test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// profile is a kind of pod from whose inside all attempts are made.
type profile struct {
	name  string
	level string // pod security level of its namespace
	spec  string // fields of the pod's spec, indented by two
	ctr   string // fields of the container, indented by four
	// open are the attempts that this profile permits, each with what it must have reached (a prefix); every other
	// attempt must be refused.
	open map[string]string
	may  []string // may come to either, by the machine's kernel or the way in
}

// Sets of capabilities: what every container has that asks for nothing, and the same with SYS_PTRACE.
const (
	defaultCaps = "00000000a80425fb"
	ptraceCaps  = "00000000a80c25fb"
)

var profiles = []profile{
	{
		name:  "default",
		level: "privileged",
		open:  map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
	},
	{
		name:  "baseline",
		level: "baseline",
		open:  map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
	},
	{
		name:  "restricted",
		level: "restricted",
		spec:  "  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}\n",
		ctr:   "    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n",
	},
	{
		// A terminal of its own may be typed into: it belongs to the container.
		name:  "terminal",
		level: "baseline",
		ctr:   "    tty: true\n    stdin: true\n",
		open:  map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
		may:   []string{"inject into the terminal"},
	},
	{
		name:  "shared-processes",
		level: "privileged",
		spec:  "  shareProcessNamespace: true\n",
		ctr:   "    securityContext: {capabilities: {add: [SYS_PTRACE]}}\n",
		open:  map[string]string{"capabilities": ptraceCaps, "bounding set": ptraceCaps},
	},
	{
		name:  "host-network",
		level: "privileged",
		spec:  "  hostNetwork: true\n",
		open:  map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
	},
	{
		// User namespaces let a baseline pod see /proc without masks: root there is an unprivileged user outside. Every
		// user may read /proc/keys and some of /sys/firmware, of which Unmasked takes the mask too.
		name:  "user-namespace",
		level: "baseline",
		spec:  "  hostUsers: false\n",
		ctr:   "    securityContext: {procMount: Unmasked}\n",
		open:  map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
		may:   []string{"read keys", "read firmware"},
	},
	{
		// What is granted must work, or the attempts prove nothing.
		name:  "privileged",
		level: "privileged",
		ctr:   "    securityContext: {privileged: true}\n",
		open: map[string]string{
			"capabilities":       "000001ff",
			"bounding set":       "000001ff",
			"write core_pattern": "",
			"write panic_on_oom": "",
			"mount tmpfs":        "tmpfs",
			"mount proc":         "proc",
			"kernel log":         "",
			"set host name":      "",
			"perf events":        "",
			"load BPF program":   "",
		},
		may: []string{
			"write modprobe", "write sysrq-trigger", "write binfmt_misc", "write irq", "write uevent_helper",
			"write module parameters", "read kcore", "read keys",
			"read timer_list", "read sched_debug", "read firmware", "write release_agent", "write cgroup above",
			"remount proc sys writable", "unmount masks",
			"userns mount", "open by handle", "load module", "kexec", "set clock", "I/O ports", "swap on", "reboot",
			"make and open the disk",
			"make and open mem", "make and open fuse", "devices of the host", "inject into the terminal",
			"join namespaces of process 1",
		},
	},
}

// TestEscape runs every attempt of the escape program from inside pods of every profile: as the container's own
// program, through exec, and through exec with an open input.
func TestEscape(t *testing.T) {
	live := escapeCluster(t)
	var manifest strings.Builder
	for _, p := range profiles {
		fmt.Fprintf(&manifest, "apiVersion: v1\nkind: Namespace\nmetadata: {name: escape-%s, labels: "+
			"{pod-security.kubernetes.io/enforce: %s}}\n---\n", p.name, p.level)
	}
	live.apply(t, manifest.String())
	manifest.Reset()
	for _, p := range profiles {
		manifest.WriteString(live.pod("escape-"+p.name, "attempt", p.spec, p.ctr, ""))
	}
	live.apply(t, manifest.String())
	for _, profile := range profiles {
		t.Run(profile.name, func(t *testing.T) {
			ns := "escape-" + profile.name
			log := live.eventually(t, `"capabilities"`, "logs", "-n", ns, "attempt")
			profile.check(t, "program", log)
			out, err := live.kubectl(nil, "exec", "-n", ns, "attempt", "--", "/escape")
			if err != nil {
				t.Fatalf("exec: %v\n%s", err, out)
			}
			profile.check(t, "exec", out)
			if out, err = live.kubectl(strings.NewReader("input\n"), "exec", "-i", "-n", ns, "attempt", "--",
				"/escape"); err != nil {
				t.Fatalf("exec -i: %v\n%s", err, out)
			}
			profile.check(t, "exec -i", out)
		})
	}
}

// check compares what the attempts came to with what the profile permits.
func (p profile) check(t *testing.T, how, out string) {
	t.Helper()
	results := parseAttempts(t, out)
	for _, attempt := range slices.Sorted(maps.Keys(results)) {
		got := results[attempt]
		want, mayOpen := p.open[attempt]
		what, open := strings.CutPrefix(got, "open: ")
		switch {
		case open && !mayOpen && !slices.Contains(p.may, attempt):
			t.Errorf("%s: %q got out: %s", how, attempt, what)
		case mayOpen && !open:
			t.Errorf("%s: %q = %q, want open: this profile grants it, so the attempt itself may be broken", how,
				attempt, got)
		case mayOpen && !strings.HasPrefix(what, want):
			t.Errorf("%s: %q = %q, want %q", how, attempt, what, want)
		}
	}
	if testing.Verbose() {
		t.Logf("%s: %s", how, out)
	}
}

func parseAttempts(t *testing.T, out string) map[string]string {
	t.Helper()
	_, line, ok := strings.Cut(out, "{")
	results := map[string]string{}
	if !ok {
		t.Fatalf("no results in %q", out)
	}
	if err := json.NewDecoder(strings.NewReader("{" + line)).Decode(&results); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return results
}

// live is a running cluster with the escape image.
type live struct {
	bin, data, marker string
	program           string // the escape program's file
	cgroup            string // where the cluster's process runs; empty: where the test does
	listeners         []string
}

// escapeCluster starts a cluster whose pods can run the escape program; it ends with the test.
func escapeCluster(t *testing.T) *live {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: real containers")
	}
	dir := t.TempDir()
	c := &live{bin: binary(t), data: filepath.Join(dir, "data"), marker: filepath.Join(dir, "host", "marker")}
	// so that nothing but the walls keeps a container out
	if err := os.Mkdir(filepath.Dir(c.marker), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.marker, []byte("only the host has this\n"), 0o644); err != nil { // likewise
		t.Fatal(err)
	}
	c.program = filepath.Join(dir, "escape")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", c.program, "./escape")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	before := kernelState()
	t.Cleanup(func() {
		if out, err := exec.Command(c.bin, "down", "--data-dir", c.data).CombinedOutput(); err != nil {
			t.Errorf("keelson down: %v\n%s", err, out)
		}
		if diff := leaked(before, kernelState(), c.data); diff != "" {
			t.Errorf("left behind after `keelson down`:\n%s", diff)
		}
	})
	if out, err := exec.Command(c.bin, "up", "--detach", "--port", "0", "--data-dir", c.data).
		CombinedOutput(); err != nil {
		t.Fatalf("keelson up: %v\n%s", err, out)
	}
	if out, err := c.importImage(t, escapeImage, c.program, nil,
		v1.Config{Entrypoint: []string{"/escape"}}); err != nil {
		t.Fatalf("keelson image import: %v\n%s", err, out)
	}
	c.listeners = listening(t, c.data)
	if len(c.listeners) == 0 {
		t.Fatal("the cluster listens nowhere")
	}
	return c
}

const escapeImage = "keelson.test/escape:1"

// importImage makes an image of the escape program and the given entries and imports it. It returns what `keelson image
// import` said.
func (c *live) importImage(t *testing.T, ref, program string, entries []tar.Header, cfg v1.Config) (string, error) {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	writer := tar.NewWriter(&buf)
	for _, h := range append([]tar.Header{
		{Typeflag: tar.TypeReg, Name: "escape", Mode: 0o755, Size: int64(len(content))},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
	}, entries...) {
		if err := writer.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Name == "escape" {
			if _, err := writer.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())),
			nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		Config:       cfg,
		RootFS:       rootFS(t, img),
	}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(c.bin, "image", "import", file, "--data-dir", c.data).CombinedOutput()
	return string(out), err
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return f.RootFS
}

// pod is the manifest of a pod that makes the attempts and then stays.
func (c *live) pod(namespace, podName, spec, ctr, image string) string {
	if image == "" {
		image = escapeImage
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
%s  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    args: [stay]
    env: [{name: ESCAPE_MARKER, value: %q}, {name: ESCAPE_SELF, value: %q}, {name: ESCAPE_LISTENERS, value: %q}]
%s---
`, podName, namespace, spec, image, c.marker, namespace+"/"+podName, strings.Join(c.listeners, " "), ctr)
}

func (c *live) kubectl(in io.Reader, args ...string) (string, error) {
	cmd := exec.Command(c.bin, append([]string{"kubectl", "--data-dir", c.data}, args...)...)
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *live) apply(t *testing.T, manifest string) {
	t.Helper()
	out, err := c.kubectl(strings.NewReader(manifest), "apply", "-f", "-")
	// a new namespace's account comes in a moment
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end) &&
		strings.Contains(out, "serviceaccount"); {
		time.Sleep(50 * time.Millisecond)
		out, err = c.kubectl(strings.NewReader(manifest), "apply", "-f", "-")
	}
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// eventually runs kubectl until its output contains want.
func (c *live) eventually(t *testing.T, want string, args ...string) string {
	t.Helper()
	return c.eventuallyWithin(t, patience, want, args...)
}

// eventuallyWithin is eventually with a time of its own.
func (c *live) eventuallyWithin(t *testing.T, limit time.Duration, want string, args ...string) string {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		out, _ := c.kubectl(nil, args...)
		if strings.Contains(out, want) {
			return out
		}
		if time.Now().After(end) {
			more, _ := c.kubectl(nil, "get", "pods,events", "-A")
			t.Fatalf("kubectl %q never gave %q; the last output:\n%s\n%s", args, want, out, more)
		}
	}
}
