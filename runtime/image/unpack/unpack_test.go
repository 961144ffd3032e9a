// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

func unpackTar(t testing.TB, entries ...imagetest.Entry) (dir string, got Unpacked, err error) {
	t.Helper()
	dir = t.TempDir()
	got, err = Layer(t.Context(), dir, bytes.NewReader(imagetest.LayerTar(t, entries...)), Limits{Bytes: 1 << 30})
	return dir, got, err
}

func isOpaque(dir string) bool {
	b := make([]byte, 8)
	n, err := unix.Getxattr(dir, opaqueXattr, b)
	return err == nil && string(b[:n]) == "y"
}

func isWhiteout(p string) bool {
	fi, err := os.Lstat(p)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.Mode()&os.ModeCharDevice != 0 && st.Rdev == 0
}

func TestWhiteouts(t *testing.T) {
	imagetest.NeedRoot(t)
	dir, _, err := unpackTar(t,
		imagetest.File("gone/", ""), imagetest.File("gone/.wh.file", ""), // a file removed
		imagetest.File("opaque/", ""), imagetest.File("opaque/.wh..wh..opq", ""), imagetest.File("opaque/new", "1"),
		imagetest.File("early/.wh..wh..opq", ""), imagetest.File("early/", ""), // the mark before the directory
		imagetest.File(".wh.dir", ""), imagetest.File("dir/", ""), imagetest.File("dir/new", "1"), // removed and made again
		imagetest.File(".wh.implicit", ""), imagetest.File("implicit/new", "1"), // the same without an entry for the directory
		imagetest.File(".wh.back", ""), imagetest.File("back", "file again"),
		imagetest.File("kept", "1"), imagetest.File(".wh.kept", ""), // the layer's own file stays: whiteouts are for layers below
		imagetest.File("late/", ""), imagetest.File("late/x", "1"), imagetest.File(".wh.late", ""),
		imagetest.File(".wh..wh.plnk", ""), imagetest.File(".wh..wh.aufs", ""),
	)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		"gone":     false,
		"opaque":   true,
		"early":    true,
		"dir":      true,
		"implicit": true,
		"late":     true,
	} {
		if got := isOpaque(filepath.Join(dir, p)); got != want {
			t.Errorf("%s opaque: got %v, want %v", p, got, want)
		}
	}
	if !isWhiteout(filepath.Join(dir, "gone/file")) {
		t.Error("gone/file is no whiteout")
	}
	want := []string{
		"back=file again", "dir/", "dir/new=1", "early/", "gone/", "gone/file Dc---------", "implicit/",
		"implicit/new=1",
		"kept=1", "late/", "late/x=1", "opaque/", "opaque/new=1",
	}
	if d := cmp.Diff(want, imagetest.Tree(t, dir)); d != "" {
		t.Errorf("tree (-want +got):\n%s", d)
	}
}

func TestHostileTars(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("safe"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 20)
	for name, entries := range map[string][]imagetest.Entry{
		"path":     {imagetest.File(up+outside[1:], "evil")},
		"absolute": {imagetest.File(outside, "evil")},
		"symlink, through": {
			imagetest.Header(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: filepath.Dir(outside)}),
			imagetest.File("l/victim", "evil"),
		},
		"symlink, up": {imagetest.Header(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: up}), imagetest.File(
			"l"+filepath.Dir(outside)+"/victim", "evil")},
		"hard link, then write": {
			imagetest.Header(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: up + outside[1:]}), imagetest.File("h", "evil"),
		},
		"whiteout":       {imagetest.File(up+filepath.Dir(outside)[1:]+"/.wh.victim", "")},
		"whiteout of ..": {imagetest.File("a/.wh...", "")},
		"huge":           {imagetest.Header(tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: 0}), imagetest.File(".wh.", "")},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := unpackTar(t, entries...) // may fail or not
			if b, rerr := os.ReadFile(outside); rerr != nil || string(b) != "safe" {
				t.Errorf("the file outside: %q, %v (unpack: %v)", b, rerr, err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	big := imagetest.LayerTar(t, imagetest.File("a", strings.Repeat("x", 5000)), imagetest.File("b", strings.Repeat("x", 5000)))
	if _, err := Layer(t.Context(), t.TempDir(), bytes.NewReader(big), Limits{Bytes: 9000}); !errors.Is(err,
		manifest.ErrInvalid) || !strings.Contains(err.Error(), "more than 9000 bytes") {
		t.Errorf("too big: got %v", err)
	}
	if _, err := Layer(t.Context(), t.TempDir(), bytes.NewReader(big), Limits{Bytes: 10000}); err != nil {
		t.Errorf("just fits: %v", err)
	}
	if _, err := Layer(t.Context(), t.TempDir(), strings.NewReader("this is no tar"), Limits{Bytes: 1000}); !errors.Is(
		err, manifest.ErrInvalid) {
		t.Errorf("no tar: got %v", err)
	}
}

func TestDeviceThatLooksLikeAWhiteoutIsSkipped(t *testing.T) {
	imagetest.NeedRoot(t)
	dir, _, err := unpackTar(t,
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeChar,
			Name:     "zero",
			Devmajor: 0,
			Devminor: 0,
		}),
		imagetest.Header(tar.Header{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o600}))
	if err != nil {
		t.Fatal(err)
	}
	if got := imagetest.Tree(t, dir); !slices.Equal(got, []string{"fifo p---------"}) {
		t.Errorf("got %q", got)
	}
}

func TestOwnersModesAndAttributes(t *testing.T) {
	imagetest.NeedRoot(t)
	dir, _, err := unpackTar(t,
		imagetest.Entry{
			Content: "x",
			Hdr: &tar.Header{
				Typeflag: tar.TypeReg,
				Name:     "su",
				Mode:     0o4755,
				Uid:      5,
				Gid:      6,
				Size:     1,
			},
		},
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeLink,
			Name:     "link",
			Linkname: "su",
			Mode:     0o4755,
			Uid:      5,
			Gid:      6,
		}),
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeReg,
			Name:     "cap",
			Mode:     0o755,
			PAXRecords: map[string]string{
				"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			},
		}),
		imagetest.Header(tar.Header{
			Typeflag:   tar.TypeDir,
			Name:       "d/",
			Mode:       0o755,
			PAXRecords: map[string]string{"SCHILY.xattr." + opaqueXattr: "y"},
		}))
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "link"), &st); err != nil || st.Mode&0o7777 != 0o4755 || st.Uid != 5 ||
		st.Gid != 6 || st.Nlink != 2 {
		t.Errorf("link: %+v, %v", st, err)
	}
	if n, err := unix.Getxattr(filepath.Join(dir, "cap"), "security.capability", nil); err != nil || n == 0 {
		t.Errorf("capability: %d, %v", n, err)
	}
	if isOpaque(filepath.Join(dir, "d")) {
		t.Error("a tar made a directory opaque through its attributes")
	}
}

// TestEntriesOfLayers has the rules of single entries.
func TestEntriesOfLayers(t *testing.T) {
	imagetest.NeedRoot(t)
	for _, bad := range []string{".wh.", "d/.wh.", "d/.wh..", "d/.wh..."} {
		if _, _, err := unpackTar(t, imagetest.File("d/", ""), imagetest.File(bad, "")); !errors.Is(err, manifest.ErrInvalid) {
			t.Errorf("whiteout %q: got %v, want it refused", bad, err)
		}
	}
	then := time.Unix(1_000_000_000, 0)
	dir, _, err := unpackTar(t,
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeDir,
			Name:     "dir/",
			Mode:     0o700,
			ModTime:  then,
		}),
		imagetest.File("dir/file", "1"), imagetest.File("file", "1"),
		imagetest.File("file/", ""), imagetest.File("file/in", "2"), // a file becomes a directory
		imagetest.File("was/", ""), imagetest.File("was/in", "1"), imagetest.File("was", "2"), // and the other way round
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeDir,
			Name:     "dir/",
			Mode:     0o711,
			ModTime:  then,
		}),
		symlink("link", "file/in"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"dir/", "dir/file=1", "file/", "file/in=2", "link L---------", "was=2"}
	if got := imagetest.Tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	info, err := os.Stat(filepath.Join(dir, "dir"))
	if err != nil || info.Mode().Perm() != 0o711 || !info.ModTime().Equal(then) {
		t.Errorf("dir: got %v, %v, want mode 711 and %v", info, err, then)
	}
}
