// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"keelson/lib/waittest"
)

// assets installs the programs of `keelson envtest` in a directory of the test.
func assets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "../bin/keelson", "envtest", "assets", "--dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("envtest assets: %v\n%s", err, out)
	}
	if want := "KUBEBUILDER_ASSETS=" + dir + "\n"; string(out) != want {
		t.Fatalf("envtest assets prints %q, want %q", out, want)
	}
	return dir
}

// tool returns the path of a program that `make tools` has built.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../bin/tools", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%v: `make tools` builds it", err)
	}
	return path
}

// TestEnvtestSuites runs suites of controller-runtime, unchanged, on the programs that stand for etcd, kube-apiserver
// and kubectl.
func TestEnvtestSuites(t *testing.T) {
	t.Parallel()
	kubebuilder := assets(t)
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/controller-runtime")
	list.Dir = "envtest"
	source, err := list.Output()
	if err != nil {
		t.Fatalf("where is controller-runtime: %v", err)
	}
	for _, suite := range []string{"envtest", "client"} {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), tool(t, suite+".test"), "-test.timeout=5m", "-ginkgo.no-color")
			cmd.Dir = filepath.Join(strings.TrimSpace(string(source)), "pkg", suite)
			cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+kubebuilder)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if !bytes.Contains(out, []byte("| 0 Skipped")) {
				t.Errorf("specs were skipped, or none ran:\n%s", out)
			}
		})
	}
}

// TestEnvtestDownload: setup-envtest installs a release of ours, and the programs in it run.
func TestEnvtestDownload(t *testing.T) {
	t.Parallel()
	setup := tool(t, "setup-envtest")
	dir := t.TempDir()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	if out, err := exec.CommandContext(t.Context(), "../hack/envtest-release", dir, server.URL).CombinedOutput(); err != nil {
		t.Fatalf("envtest-release: %v\n%s", err, out)
	}
	use := exec.CommandContext(t.Context(), setup, "use", "--index", server.URL+"/envtest-releases.yaml", "--bin-dir",
		t.TempDir(), "-p", "path")
	use.Stderr = os.Stderr
	path, err := use.Output()
	if err != nil {
		t.Fatalf("setup-envtest use: %v", err)
	}
	for program, want := range map[string]string{"etcd": "--unsafe-no-fsync", "kube-apiserver": "--etcd-servers"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(string(path), program), "--help").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("\n      "+want)) {
			t.Errorf("%s --help: %v\n%s", program, err, out)
		}
		if bytes.Contains(out, []byte("--insecure-port")) {
			t.Errorf("%s --help has --insecure-port, by which envtest takes it for an old one", program)
		}
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(string(path), "kubectl"), "version", "--client").
		CombinedOutput(); err != nil || !bytes.Contains(out, []byte("Client Version")) {
		t.Errorf("kubectl version: %v\n%s", err, out)
	}
}

// TestEnvtestEndsWithItsHarness: a harness that is killed leaves no process behind.
func TestEnvtestEndsWithItsHarness(t *testing.T) {
	t.Parallel()
	dir := assets(t)
	data := t.TempDir()
	client, api := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(api)
	if err != nil {
		t.Fatal(err)
	}
	harness := exec.CommandContext(t.Context(), "sh", "-c",
		`"$1/etcd" --data-dir="$2/etcd" --listen-client-urls="http://$3" --unsafe-no-fsync=true & echo $!
"$1/kube-apiserver" --etcd-servers="http://$3" --secure-port="$4" --no-such-flag=1 & echo $!
wait`, "sh", dir, data, client, port)
	harness.Stderr = os.Stderr
	var out bytes.Buffer
	harness.Stdout = &out
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the API server is healthy", func() bool { return healthy(t.Context(), api) })
	_ = harness.Process.Kill()
	_ = harness.Wait() // killed
	for text := range strings.FieldsSeq(out.String()) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "process "+text+" has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	}
}

// freeAddress returns an address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// healthy asks /healthz without credentials and without knowing the CA, as harnesses do.
func healthy(ctx context.Context, addr string) bool {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as harnesses do
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
