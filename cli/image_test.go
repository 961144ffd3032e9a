// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLookingAtImagesMakesNothing: a data directory that is missing stays missing.
func TestLookingAtImagesMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	for _, args := range [][]string{{"ls"}, {"rm", "a:1"}} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson", "image", "--data-dir", dir}, args...),
			Stdio{Out: &out, Err: &errs})
		if want := "there are no images in " + dir; code != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("image %s: %d, %q, %q; want 1, %q", args, code, out.String(), errs.String(), want)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory: %v, want none", err)
	}
}

// TestImportOfSomethingElse: who imports what is no archive of images reads what it is, and how to make one.
func TestImportOfSomethingElse(t *testing.T) {
	dir := t.TempDir()
	var packed, other bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte("garbage")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(&other)
	if err := w.WriteHeader(&tar.Header{Name: "etc/passwd", Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":   {nil, "it is empty"},
		"garbage": {bytes.Repeat([]byte("garbage"), 200), "it is no tar archive, plain or compressed by gzip or zstd"},
		"packed":  {packed.Bytes(), "it is no tar archive, plain or compressed by gzip or zstd"},
		"damaged": {packed.Bytes()[:20], "its compression is damaged (unexpected EOF)"},
		"export": {other.Bytes(), "it is a tar archive, but has neither index.json (OCI) nor manifest.json " +
			"(docker); docker export writes no image"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		wantImportError(t, file, file, "", c.want)
		wantImportError(t, "-", "-", string(c.content), c.want)
	}
	wantImportError(t, dir, dir, "", "it is a directory")
}

func wantImportError(t *testing.T, arg, name, stdin, why string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"keelson", "image", "import", arg, "--data-dir", t.TempDir()}, Stdio{
		In:  strings.NewReader(stdin),
		Out: &out,
		Err: &errs,
	})
	if want := "keelson: import " + name + ": not an image archive: " + why + "; " + makeArchive + "\n"; code != 1 ||
		errs.String() != want {
		t.Errorf("%s: got %d, %q, want 1, %q", name, code, errs.String(), want)
	}
}
