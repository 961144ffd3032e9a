// SPDX-License-Identifier: Apache-2.0

package test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// criSkips are the specs of critest that cannot run here, by a part of their names, with the reason. docs/runtime.md
// lists them too.
var criSkips = map[string]string{
	"public image with digest should be pulled": "it needs one image of a public registry, byte for byte",
	"[k8s.io] AppArmor ":                        "this kernel has no AppArmor",
	" benchmark about ":                         "it measures, and only when asked to",
}

// TestCRITest runs critest of kubernetes-sigs/cri-tools against `keelson runtime`. `hack/critest` builds critest and
// runs this test.
func TestCRITest(t *testing.T) {
	critest := os.Getenv("KEELSON_CRITEST")
	if critest == "" {
		t.Skip("SKIPPED: `hack/critest` runs it")
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root: real containers")
	}
	bin := binary(t)
	registry := criRegistry(t)
	pushCRIImages(t, registry)

	before := kernelState()
	dir, err := os.MkdirTemp("", "critest-") //nolint:usetesting // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	socket := filepath.Join(dir, "cri.sock")
	defer func() {
		if out, err := exec.CommandContext(context.Background(), bin, "down", "--purge", "--data-dir", data).
			CombinedOutput(); err != nil {
			t.Errorf("keelson down: %v\n%s", err, out)
		}
		if diff := leaked(before, kernelState(), data); diff != "" {
			t.Errorf("left behind after `keelson down`:\n%s", diff)
		}
		_ = os.RemoveAll(dir)
	}()
	args := []string{"runtime", "--data-dir", data, "--listen", "unix://" + socket}
	for _, host := range []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"} {
		args = append(args, "--image-mirror", host+"=http://"+registry)
	}
	log := startUntilReady(t, exec.CommandContext(t.Context(), bin, args...), "runtime ready")
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v; want mode 0600", st, err)
	}

	var skip []string
	for what := range criSkips {
		if strings.Contains(what, "image with digest") { // critest skips the others by itself
			skip = append(skip, regexp.QuoteMeta(what))
		}
	}
	cmd := exec.CommandContext(t.Context(), critest, "--runtime-endpoint", "unix://"+socket, "--image-endpoint",
		"unix://"+socket,
		"--ginkgo.no-color", "--ginkgo.json-report", "report.json", "--ginkgo.skip", strings.Join(skip, "|"))
	if focus := os.Getenv("KEELSON_CRITEST_FOCUS"); focus != "" {
		cmd.Args = append(cmd.Args, "--ginkgo.focus", focus)
	}
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	report := os.Getenv("KEELSON_CRITEST_REPORT")
	if report != "" {
		if err := os.WriteFile(report, append(append(out, "\n--- the runtime's log\n"...), log.Bytes()...),
			0o600); err != nil {
			t.Error(err)
		}
	}
	if err != nil {
		t.Errorf("critest: %v\n%s", err, out[max(0, len(out)-4000):])
	}
	judgeSpecs(t, filepath.Join(cmd.Dir, "report.json"), os.Getenv("KEELSON_CRITEST_FOCUS") == "")
}

// judgeSpecs fails for each spec that did not pass, unless criSkips has it.
func judgeSpecs(t *testing.T, report string, all bool) {
	t.Helper()
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeType, LeafNodeText string
			State                      string
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(b, &suites); err != nil || len(suites) != 1 {
		t.Fatalf("%d suites in the report, %v", len(suites), err)
	}
	passed := 0
	for _, spec := range suites[0].SpecReports {
		name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
		switch {
		case spec.LeafNodeType != "It":
		case spec.State == "passed":
			passed++
		case spec.State != "skipped":
			t.Errorf("%s: %s: %s", name, spec.State, spec.Failure.Message)
		case all:
			reason := ""
			for what, why := range criSkips {
				if strings.Contains(name, what) {
					reason = why
				}
			}
			if reason == "" {
				t.Errorf("%s: critest skipped it: %s", name, spec.Failure.Message)
				continue
			}
			t.Logf("skipped: %s: %s", name, reason)
		}
	}
	t.Logf("%d specs passed", passed)
	if all && passed < 100 {
		t.Errorf("only %d specs passed", passed)
	}
}

// output is what a program says, to be read while it runs.
type output struct {
	word string
	file *os.File
}

func (o *output) Bytes() []byte {
	b, err := os.ReadFile(o.file.Name())
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// startUntilReady starts cmd, waits until it says word, and ends it with the test.
func startUntilReady(t *testing.T, cmd *exec.Cmd, word string) *output {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	o := &output{file: file, word: word}
	cmd.Stdout = file
	cmd.Stderr = file
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // t.Context has ended
		_ = cmd.Wait()
		_ = file.Close()
	})
	for end := time.Now().Add(time.Minute); !bytes.Contains(o.Bytes(), []byte(word)); time.Sleep(
		20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is not ready:\n%s", cmd, o.Bytes())
		}
	}
	return o
}

// criRegistry runs docker-registry and returns its HOST:PORT.
func criRegistry(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yml")
	conf := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "+
		"%q}\n", dir, addr)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "docker-registry", "serve", file)
	if err := cmd.Start(); err != nil {
		t.Fatalf("docker-registry, which serves critest's images: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + addr + "/v2/")
		if err == nil {
			_ = resp.Body.Close()
			return addr
		}
		if time.Now().After(end) {
			t.Fatalf("docker-registry does not answer: %v", err)
		}
	}
}

// pushCRIImages makes the images that critest pulls: busybox with what each is known for.
func pushCRIImages(t *testing.T, registry string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("busybox, which critest's images are made of: %v", err)
	}
	program := filepath.Join(t.TempDir(), "criprogram")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./criprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	box := busyboxLayer(t, busybox, program)
	e2e := "/e2e-test-images/"
	cri := "/k8s-staging-cri-tools/"
	push := func(path string, conf v1.Config, layers ...v1.Layer) {
		ref, err := name.ParseReference(registry+path, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, imageOf(t, conf, layers...)); err != nil {
			t.Fatalf("push %s: %v", path, err)
		}
	}
	sh := v1.Config{Cmd: []string{"sh"}}
	push(e2e+"busybox:1.29-2", sh, box)
	push("/pause:3.9", v1.Config{Cmd: []string{"sleep", "100000"}}, box)
	push(e2e+"nginx:1.14-2", v1.Config{Cmd: []string{"nginx"}}, box, programLayer(t, program, "usr/sbin/nginx", 0o755))
	push(e2e+"httpd:2.4.39-4", v1.Config{Cmd: []string{"httpd"}}, box,
		programLayer(t, program, "usr/sbin/httpd", 0o755))
	push(e2e+"nonewprivs:1.3", v1.Config{Entrypoint: []string{"/nnp"}}, box, programLayer(t, program, "nnp", 0o4755))
	push(cri+"hostnet-nginx-"+runtime.GOARCH, v1.Config{Cmd: []string{"nginx"}, Env: []string{"PORT=12003"}}, box,
		programLayer(t, program, "usr/sbin/nginx", 0o755))
	for image, user := range map[string]string{
		"test-image-user-uid":            "1002",
		"test-image-user-username":       "www-data",
		"test-image-user-uid-group":      "1003:users",
		"test-image-user-username-group": "www-data:100",
		"test-image-predefined-group":    "1000",
	} {
		push(cri+image, v1.Config{Cmd: []string{"sh"}, User: user}, box)
	}
	for _, image := range []string{
		"test-image-latest", "test-image-tag:test", "test-image-tag:all", "test-image-1", "test-image-2",
		"test-image-3",
	} {
		push(cri+image, v1.Config{Cmd: []string{"sh"}, Env: []string{"IMAGE=" + image}}, box)
	}
	for _, tag := range []string{"1", "2", "3"} {
		push(cri+"test-image-tags:"+tag, v1.Config{Cmd: []string{"sh"}, Env: []string{"IMAGE=tags"}}, box)
	}
}

func imageOf(t *testing.T, conf v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS = "linux"
	file.Architecture = runtime.GOARCH
	file.Config = conf
	file.Config.Env = append(file.Config.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// entry is a file of a layer: a directory without content and target, a hard link with target.
type entry struct {
	name, target string
	mode         fs.FileMode
	content      []byte
}

func layerOf(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	writer := tar.NewWriter(&buf)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     e.name,
			Mode:     int64(e.mode),
			Size:     int64(len(e.content)),
		}
		switch {
		case e.target != "":
			header.Typeflag = tar.TypeLink
			header.Linkname = e.target
		case e.content == nil:
			header.Typeflag = tar.TypeDir
		}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(e.content); err != nil {
			t.Fatal(err)
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
	return l
}

func programLayer(t *testing.T, program, as string, mode fs.FileMode) v1.Layer {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return layerOf(t, entry{name: as, mode: mode, content: b})
}

// busyboxLayer is a root file system with busybox, all its commands, and the users and groups that critest asks for.
func busyboxLayer(t *testing.T, busybox, program string) v1.Layer {
	t.Helper()
	if err := exec.CommandContext(t.Context(), busybox, "sh", "-c", "PATH=/nowhere; ls").Run(); err == nil {
		t.Fatalf("%s runs its own commands without looking for them, which a spec about masked paths must not meet: "+
			"install Debian's busybox in place of busybox-static", busybox)
	}
	list, err := exec.CommandContext(t.Context(), busybox, "--list").Output()
	if err != nil {
		t.Fatalf("busybox --list: %v", err)
	}
	b, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	const passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n" +
		"default-user:x:1000:1000:Linux User,,,:/home/default-user:/bin/sh\n"
	const group = "root:x:0:\nwww-data:x:33:\nusers:x:100:\nnobody:x:65534:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"
	entries := []entry{
		{name: "bin/", mode: 0o755},
		{name: "usr/", mode: 0o755},
		{name: "usr/sbin/", mode: 0o755},
		{name: "etc/", mode: 0o755},
		{name: "root/", mode: 0o700},
		{name: "home/", mode: 0o755},
		{name: "var/", mode: 0o755},
		{name: "var/run/", mode: 0o755},
		{name: "tmp/", mode: 0o1777},
		{name: "etc/passwd", mode: 0o644, content: []byte(passwd)},
		{name: "etc/group", mode: 0o644, content: []byte(group)},
		{name: "bin/busybox", mode: 0o755, content: b},
		{name: "bin/pgrep", mode: 0o755, content: ours},
		{name: "bin/ipcs", mode: 0o755, target: "bin/pgrep"},
	}
	entries = append(entries, libraries(t, busybox)...)
	for applet := range strings.FieldsSeq(string(list)) {
		if !slices.Contains([]string{"busybox", "httpd", "pgrep", "ipcs"}, applet) {
			// one may be masked without the others
			entries = append(entries, entry{name: "bin/" + applet, mode: 0o755, target: "bin/busybox"})
		}
	}
	return layerOf(t, entries...)
}

// libraries are the shared libraries that the program at path needs, and the directories that they are in.
func libraries(t *testing.T, path string) []entry {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", path).Output()
	if err != nil {
		return nil // it is static
	}
	var entries []entry
	made := map[string]bool{}
	for _, lib := range regexp.MustCompile(`(?m)(/lib\S*) \(0x`).FindAllStringSubmatch(string(out), -1) {
		var dirs []entry
		for dir := filepath.Dir(lib[1]); dir != "/" && !made[dir]; dir = filepath.Dir(dir) {
			made[dir] = true
			dirs = append(dirs, entry{name: dir[1:] + "/", mode: 0o755})
		}
		slices.Reverse(dirs)
		b, err := os.ReadFile(lib[1])
		if err != nil {
			t.Fatal(err)
		}
		entries = append(append(entries, dirs...), entry{name: lib[1][1:], mode: 0o755, content: b})
	}
	return entries
}
