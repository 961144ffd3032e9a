// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// build runs hack/ui, which needs Node and, the first time, the npm registry.
func build(t *testing.T, argument string) {
	t.Helper()
	needModules(t)
	if said, err := exec.CommandContext(t.Context(), "../hack/ui", argument).CombinedOutput(); err != nil {
		t.Fatalf("hack/ui %s: %v\n%s", argument, err, said)
	}
}

// needModules installs what the page is built with. Where that is not possible, the test is skipped; in CI it fails
// unless the registry cannot be reached.
func needModules(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("CI") != "" && os.Getuid() == 0 {
			t.Fatalf("hack/test-needs could not install npm: %v", err)
		}
		t.Skipf("SKIPPED, needs Node and npm: %v", err)
	}
	said, err := exec.CommandContext(t.Context(), "../hack/ui", "modules").CombinedOutput()
	if err == nil {
		return
	}
	if exec.CommandContext(t.Context(), "npm", "ping").Run() == nil && os.Getenv("CI") != "" {
		t.Fatalf("the registry answers, but the modules could not be installed: %v\n%s", err, said)
	}
	t.Skipf("SKIPPED, needs the npm registry once: %v\n%s", err, said)
}

// TestPageIsBuilt: the page that is committed is the one that its sources give.
func TestPageIsBuilt(t *testing.T) {
	dir := t.TempDir()
	build(t, dir)
	want := unpacked(t, dir)
	got := unpacked(t, "page")
	for name, text := range want {
		if !bytes.Equal(got[name], text) {
			t.Errorf("dashboard/page/%s is not what ui/ gives: run make ui, and commit what it makes", name)
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("dashboard/page/%s is not made from ui/ any more", name)
		}
	}
}

// unpacked maps the names of compressed files to what is in them, because compressors differ.
func unpacked(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.gz"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(names), err)
	}
	out := map[string][]byte{}
	for _, name := range names {
		packed, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		if out[filepath.Base(name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestPureParts runs the tests of what the page concludes, ui/test/*.test.ts.
func TestPureParts(t *testing.T) { build(t, "test") }

// TestPageIsSmall: all that is loaded before the first view is below 200 kB; with what is loaded later, 1.5 MB.
func TestPageIsSmall(t *testing.T) {
	assets, err := readAssets()
	if err != nil {
		t.Fatal(err)
	}
	first := 0
	all := 0
	var names []string
	for name, a := range assets {
		names = append(names, name)
		all += len(a.gzip)
		if !strings.HasPrefix(name, "/terminal.") { // loaded with the first terminal
			first += len(a.gzip)
		}
	}
	for _, name := range []string{"/", "/index.html", "/app.js", "/style.css", "/terminal.js", "/terminal.css"} {
		if !slices.Contains(names, name) {
			t.Errorf("the page has no %s, only %v", name, names)
		}
	}
	if first > 200<<10 || all > 3<<19 {
		t.Errorf("the page has %d bytes before its first view, %d in all", first, all)
	}
}
