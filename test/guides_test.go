// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGuides runs the commands of the tutorial and of the pages in docs/guides, each on a cluster of its own.
func TestGuides(t *testing.T) {
	pages, err := filepath.Glob("../docs/guides/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no guides: %v", err)
	}
	pages = append(pages, "../docs/tutorial.md")
	bin, err := filepath.Abs("../bin/keelson")
	if err != nil || !isFile(bin) {
		t.Skip("bin/keelson is not built: `make build`")
	}
	needs := map[string]string{"etcd-values": "etcdctl", "two-nodes": "ip"}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			if tool := needs[name]; tool != "" {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skip(tool + " is not there")
				}
			}
			runGuide(t, bin, page)
		})
	}
}

func runGuide(t *testing.T, bin, page string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	script := typed(string(text))
	if script == "" {
		t.Fatal("nothing to type in it")
	}
	// Machines that run tests have other clusters, and little room on their disks.
	script = strings.ReplaceAll(script, "keelson up --detach",
		"keelson up --port 0 --eviction-hard 'memory.available<1Mi' --detach")
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	env := append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "KEELSON_DATA_DIR="+data, "HOME="+dir,
		"KUBECONFIG=")
	t.Cleanup(func() {
		for _, d := range []string{filepath.Join(dir, "second"), data} {
			down := exec.CommandContext(context.Background(), bin, "down", "--purge", "--yes", "--data-dir", d)
			_ = down.Run() // a page ends its cluster itself
		}
		if strings.Contains(script, "ip netns add second") {
			_ = exec.CommandContext(context.Background(), "ip", "netns", "del", "second").Run()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	// With -m a background job has a process group of its own, as in the shell that one types into.
	cmd := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail -xm\n"+script)
	cmd.Dir = dir
	cmd.Env = env
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("the page leaves its cluster behind")
	}
}

// typed are the blocks of a page that begin with ```sh.
func typed(page string) string {
	var b strings.Builder
	in := false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "```"):
			in = strings.TrimSpace(line) == "```sh"
		case in:
			b.WriteString(line)
		}
	}
	return b.String()
}
