// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"keelson/lib/waittest"
)

// TestDashboardBrowser: the page is served while the program that opens the browser runs, which may be the browser. The
// file with the link is gone at the end.
func TestDashboardBrowser(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	forever := filepath.Join(dir, "forever")
	if err := syscall.Mkfifo(forever, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"xdg-open": "#!/bin/sh\ncp \"$1\" " + seen + ".part\nmv " + seen +
			".part " + seen + "\nexec cat " + forever + "\n",
		"kubeconfig": "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: " +
			"'https://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n" +
			"users: [{name: a, user: {token: x}}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DISPLAY", ":1")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int, 1)
	go func() { // ends with ctx
		ended <- Run(ctx, []string{"keelson", "dashboard", "--kubeconfig", filepath.Join(dir, "kubeconfig")},
			Stdio{Out: io.Discard, Err: io.Discard})
	}()
	var link string
	waittest.Until(t, "the browser gets the link", func() bool {
		page, _ := os.ReadFile(seen) // it may not exist yet
		link = regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+/`).FindString(string(page))
		return link != ""
	})
	resp, err := (&http.Client{Timeout: time.Minute}).Get(link)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the page: %s", resp.Status)
	}
	cancel()
	<-ended
	if left, err := os.ReadDir(os.Getenv("XDG_RUNTIME_DIR")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
