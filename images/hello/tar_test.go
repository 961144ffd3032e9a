// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestTarThereAndBack(t *testing.T) {
	from := t.TempDir()
	to := t.TempDir()
	for name, text := range map[string]string{"d/a": "first", "d/sub/b": "second"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(from, "d/link")); err != nil {
		t.Fatal(err)
	}
	archive, errOut, code := run(t, "", "tar", "cf", "-", "-C", from, "d")
	if code != 0 {
		t.Fatalf("create: exit code %d, %s", code, errOut)
	}
	if out, _, code := run(t, archive, "tar", "-tf", "-"); code != 0 || out != "d/\nd/a\nd/link\nd/sub/\nd/sub/b\n" {
		t.Errorf("list: exit code %d, %q", code, out)
	}
	for range 2 { // again over what is there
		if _, errOut, code := run(t, archive, "tar", "--no-same-owner", "-xmf", "-", "-C", to); code != 0 {
			t.Fatalf("extract: exit code %d, %s", code, errOut)
		}
	}
	for name, text := range map[string]string{"d/a": "first", "d/sub/b": "second", "d/link": "first"} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(b) != text {
			t.Errorf("%s: %q, %v; want %q", name, b, err, text)
		}
	}
	if st, err := os.Stat(filepath.Join(to, "d/a")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", st.Mode(), err)
	}
}

// TestTarStaysInside: an archive from a stranger writes nowhere else.
func TestTarStaysInside(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"dots":      {{Name: "../evil", Typeflag: tar.TypeReg}},
		"deep dots": {{Name: "a/../../evil", Typeflag: tar.TypeReg}},
		"link":      {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/evil", Typeflag: tar.TypeReg}},
	} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range headers {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		base := t.TempDir()
		dir := filepath.Join(base, "dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, errOut, code := run(t, buf.String(), "tar", "xf", "-", "-C", dir); code == 0 || errOut == "" {
			t.Errorf("%s: exit code %d, %q; want a refusal", name, code, errOut)
		}
		if _, err := os.Lstat(filepath.Join(base, "evil")); err == nil {
			t.Errorf("%s: written outside", name)
		}
	}
	// A link is replaced, not written through; a path from the root is taken below the directory.
	var b bytes.Buffer
	writer := tar.NewWriter(&b)
	if err := writer.WriteHeader(&tar.Header{
		Name:     "/f",
		Typeflag: tar.TypeReg,
		Mode:     0o644,
		Size:     3,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	victim := filepath.Join(base, "victim")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(victim, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := run(t, b.String(), "tar", "xf", "-", "-C", dir); code != 0 {
		t.Errorf("extract over a link: exit code %d, %s", code, errOut)
	}
	if got, _ := os.ReadFile(victim); string(got) != "old" {
		t.Errorf("the link's target holds %q; want it untouched", got)
	}
}

func TestTail(t *testing.T) {
	const in = "1\n2\n3\n4"
	for _, c := range []struct {
		args []string
		out  string
	}{
		{[]string{"tail", "-n", "2"}, "3\n4"},
		{[]string{"tail", "-1"}, "4"},
		{[]string{"tail", "-n", "+3"}, "3\n4"},
		{[]string{"tail", "-c+4"}, "\n3\n4"},
		{[]string{"tail"}, in},
	} {
		if out, errOut, code := run(t, in, c.args...); code != 0 || out != c.out {
			t.Errorf("%v: exit code %d, %q %q; want %q", c.args, code, out, errOut, c.out)
		}
	}
}
