// SPDX-License-Identifier: Apache-2.0

package test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/testscript"
)

// Who may use a registry started with "locked": htpasswd knows the hash.
const (
	registryUser     = "ali"
	registryPassword = "open sesame"
	registryHash     = "$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW"
)

// freePort VAR: sets VAR to a port without a listener, from below those that the kernel gives to programs that ask for
// any: what is started on it later, or again, finds it free.
func freePort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: freeport VAR")
	}
	ts.Setenv(args[0], findPort(ts))
}

func findPort(ts *testscript.TestScript) string {
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(10000)) // no secret
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			ts.Check(l.Close())
			return port
		}
	}
	ts.Fatalf("no free port")
	return ""
}

// startRegistry VAR [locked]: runs docker-registry until the script ends and sets VAR to its HOST:PORT.
func startRegistry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 || len(args) == 2 && args[1] != "locked" {
		ts.Fatalf("usage: registry VAR [locked]")
	}
	dir := ts.MkAbs("registry-" + args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	addr := "127.0.0.1:" + findPort(ts)
	conf := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "+
		"%q}\n", dir, addr)
	if len(args) == 2 {
		passwords := filepath.Join(dir, "htpasswd")
		ts.Check(os.WriteFile(passwords, []byte(registryUser+":"+registryHash+"\n"), 0o600))
		conf += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %s}}\n", passwords)
	}
	file := filepath.Join(dir, "config.yml")
	ts.Check(os.WriteFile(file, []byte(conf), 0o600))
	cmd := exec.Command("docker-registry", "serve", file)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &out
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + addr + "/v2/")
		if err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ts.Fatalf("docker-registry does not answer: %v\n%s", err, &out)
		}
	}
	ts.Setenv(args[0], addr)
}

// pushImage REF: pushes an image with the built-in image's program and 6 MB of noise, so that there is something to
// pull.
func pushImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: pushimage REF")
	}
	ref, err := name.ParseReference(args[0], name.Insecure)
	ts.Check(err)
	ts.Check(remote.Write(ref, testImage(ts, args[0]),
		remote.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})))
}

// saveImage oci|docker FILE REF: writes the image of pushImage to an archive.
func saveImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: saveimage oci|docker FILE REF")
	}
	file := ts.MkAbs(args[1])
	img := testImage(ts, args[2])
	if args[0] == "docker" {
		ref, err := name.NewTag(args[2])
		ts.Check(err)
		ts.Check(tarball.WriteToFile(file, ref, img))
		return
	}
	dir := file + ".layout"
	l, err := layout.Write(dir, empty.Index)
	ts.Check(err)
	ts.Check(
		l.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": args[2]})))
	f, err := os.Create(file)
	ts.Check(err)
	w := tar.NewWriter(f)
	ts.Check(w.AddFS(os.DirFS(dir)))
	ts.Check(w.Close())
	ts.Check(f.Close())
}

func testImage(ts *testscript.TestScript, ref string) v1.Image { return helloImage(ts.Check, ref) }

// helloImage is an image with the built-in image's program and noise. check ends the test after an error.
func helloImage(check func(error), ref string) v1.Image {
	packed, err := os.Open("../runtime/embedded/hello.zst")
	check(err)
	defer func() { _ = packed.Close() }()
	d, err := zstd.NewReader(packed)
	check(err)
	defer d.Close()
	program, err := io.ReadAll(d)
	check(err)
	noise := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	img, err := mutate.AppendLayers(empty.Image, layer(check, "hello", program, 0o755),
		layer(check, "noise", noise, 0o644))
	check(err)
	file, err := img.ConfigFile()
	check(err)
	file = file.DeepCopy()
	file.OS = "linux"
	file.Architecture = runtime.GOARCH // others than Keelson want to know
	file.Config = v1.Config{Entrypoint: []string{"/hello"}, Env: []string{"IMAGE=" + ref}}
	img, err = mutate.ConfigFile(img, file)
	check(err)
	return img
}

func layer(check func(error), file string, content []byte, mode fs.FileMode) v1.Layer {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	check(w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg,
		Name:     file,
		Mode:     int64(mode),
		Size:     int64(len(content)),
	}))
	_, err := w.Write(content)
	check(err)
	check(w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())),
			nil
	})
	check(err)
	return l
}

// killContainer POD CONTAINER: kills the container's first process from the host, as `kill -9` does.
func killContainer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: killcontainer POD CONTAINER")
	}
	out, err := exec.Command(lookPath(ts, "keelson"), "kubectl", "--kubeconfig",
		filepath.Join(ts.Getenv("KEELSON_DATA_DIR"), "kubeconfig"),
		"get", "pod", args[0], "-o", "jsonpath={.status.containerStatuses[?(@.name=='"+args[1]+"')].containerID}").
		Output()
	ts.Check(err)
	_, id, ok := strings.Cut(string(out), "://")
	if !ok {
		ts.Fatalf("container id of %s: got %q", args[0], out)
	}
	var pid int
	_, err = fmt.Sscan(readString(ts, firstOf(ts, "/sys/fs/cgroup/*/keelson-*/pods/*/"+id+"/cgroup.procs",
		"/sys/fs/cgroup/keelson-*/pods/*/"+id+"/cgroup.procs")), &pid)
	ts.Check(err)
	p, err := os.FindProcess(pid)
	ts.Check(err)
	ts.Check(p.Kill())
}

func firstOf(ts *testscript.TestScript, patterns ...string) string {
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		ts.Check(err)
		for _, f := range found {
			if strings.TrimSpace(readString(ts, f)) != "" {
				return f
			}
		}
	}
	ts.Fatalf("no process in %q", patterns)
	return ""
}

func readString(ts *testscript.TestScript, file string) string {
	b, err := os.ReadFile(file)
	ts.Check(err)
	return string(b)
}
