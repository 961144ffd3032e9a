// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
)

// The pod network of the test's containerd. Its bridge is deleted at the script's end.
const (
	cniBridge = "kltest-ctd0"
	cniConfig = `{"cniVersion": "0.4.0", "name": "kltest", "plugins": [{"type": "bridge", "bridge": "` + cniBridge +
		`", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.213.77.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`
	containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "test.local/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`
)

// startContainerd VAR: runs containerd until the script ends, with the built-in image imported under its own name, and
// sets VAR to its socket. It stands in a directory with a short name: containerd makes sockets in it.
func startContainerd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: containerd VAR")
	}
	dir, err := os.MkdirTemp("", "ctd")
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	ts.Check(os.Mkdir(filepath.Join(dir, "cni"), 0o700))
	ts.Check(os.WriteFile(filepath.Join(dir, "cni", "10-test.conflist"),
		fmt.Appendf(nil, cniConfig, filepath.Join(dir, "ipam")), 0o600))
	config := filepath.Join(dir, "config.toml")
	ts.Check(os.WriteFile(config, fmt.Appendf(nil, containerdConfig, dir), 0o600))
	cmd := exec.Command("containerd", "--config", config)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &out
	ts.Check(cmd.Start())
	socket := filepath.Join(dir, "containerd.sock")
	ts.Defer(func() {
		// What a script that failed half way leaves running.
		left, _ := exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "tasks", "ls", "-q").Output()
		for id := range strings.FieldsSeq(string(left)) {
			_ = exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "tasks", "delete", "--force",
				id).Run()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = exec.Command("ip", "link", "delete", cniBridge).Run()
	})
	for end := time.Now().Add(time.Minute); exec.Command("ctr", "--address", socket, "version").
		Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ts.Fatalf("containerd does not answer:\n%s", &out)
		}
	}
	hello := testImage(ts, "keelson.local/hello:latest")
	pause, err := mutate.Config(hello, v1.Config{Entrypoint: []string{"/hello", "sleep", "1000000"}})
	ts.Check(err)
	for ref, img := range map[string]v1.Image{"keelson.local/hello:latest": hello, "test.local/pause:1": pause} {
		tag, err := name.NewTag(ref)
		ts.Check(err)
		file := filepath.Join(dir, "image.tar")
		ts.Check(tarball.WriteToFile(file, tag, img))
		out, err := exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import",
			"--snapshotter", "native", file).CombinedOutput()
		if err != nil {
			ts.Fatalf("ctr import: %v\n%s", err, out)
		}
	}
	ts.Setenv(args[0], socket)
}
