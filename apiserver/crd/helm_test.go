// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/servertest"
	"keelson/pki"
)

// TestHelm installs, upgrades, rolls back and uninstalls a chart with a definition, an object of it, and hooks, with
// the real helm.
func TestHelm(t *testing.T) {
	helm, err := exec.LookPath("helm")
	if err != nil {
		if helm, err = exec.LookPath("../bin/tools/helm"); err != nil {
			t.Skip("SKIPPED: there is no helm in PATH or bin/tools; `make tools` builds it")
		}
	}
	custom := servertest.StartCustom(t)
	config, err := pki.Kubeconfig("tester", custom.Rest.Host, "", custom.Rest.CAData, pki.Pair{
		CertPEM: custom.Rest.CertData,
		KeyPEM:  custom.Rest.KeyData,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), helm, append(args, "--kubeconfig", kubeconfig, "-n", "ns")...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir,
			"HELM_DATA_HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	charted := custom.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "charted"}).
		Namespace("ns")
	maps := custom.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("ns")
	size := func() int64 {
		t.Helper()
		u, err := charted.Get(t.Context(), "rel", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n, _, _ := unstructured.NestedInt64(u.Object, "spec", "size")
		return n
	}
	hooked := func(name, revision string) {
		t.Helper()
		u, err := maps.Get(t.Context(), "rel-"+name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(u.Object, "data", "revision"); got != revision {
			t.Errorf("%s is of revision %s, want %s", name, got, revision)
		}
	}
	run("install", "rel", "testdata/chart", "--wait")
	if n := size(); n != 1 {
		t.Errorf("installed size is %d", n)
	}
	hooked("pre-install", "1")
	hooked("post-install", "1")
	run("upgrade", "rel", "testdata/chart", "--set", "size=5", "--wait")
	if n := size(); n != 5 {
		t.Errorf("upgraded size is %d", n)
	}
	hooked("pre-upgrade", "2")
	run("rollback", "rel", "1", "--wait")
	if n := size(); n != 1 {
		t.Errorf("rolled back size is %d", n)
	}
	hooked("post-rollback", "1") // what was rendered then
	if out := run("list"); !strings.Contains(out, "deployed") {
		t.Errorf("list: %s", out)
	}
	if out := run("history", "rel"); !strings.Contains(out, "Rollback to 1") {
		t.Errorf("history: %s", out)
	}
	run("uninstall", "rel", "--wait")
	if _, err := charted.Get(t.Context(), "rel", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after uninstall: %v", err)
	}
	hooked("post-delete", "1")
}
