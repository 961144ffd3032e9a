// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// fakeDisk is a file in place of a device, with what blkid says of it.
func fakeDisk(t *testing.T, content, blkid string, code int) (d disk, ran *[]string) {
	t.Helper()
	dir := t.TempDir()
	d.device = filepath.Join(dir, "disk")
	d.begun = filepath.Join(dir, "formatting", "uid")
	if err := os.WriteFile(d.device, append(make([]byte, 1<<20), content...), 0o600); err != nil {
		t.Fatal(err)
	}
	ran = &[]string{}
	d.run = func(_ context.Context, _, name string, args ...string) (string, int, error) {
		if name == "blkid" {
			return blkid, code, nil
		}
		*ran = append(*ran, strings.Join(append([]string{name}, args[:len(args)-1]...), " "))
		return "", 0, nil
	}
	return d, ran
}

// TestFormat: an empty device gets a file system once, and nothing else is ever formatted.
func TestFormat(t *testing.T) {
	ext4 := "DEVNAME=/dev/x\nTYPE=ext4\n"
	for name, test := range map[string]struct {
		content, blkid string
		code           int
		wanted         string
		ro, begun      bool
		kind, err, ran string
	}{
		"empty":                  {code: 2, kind: "ext4", ran: "mkfs.ext4 -F -m0"},
		"empty, xfs":             {code: 2, wanted: "xfs", kind: "xfs", ran: "mkfs.xfs"},
		"formatted":              {blkid: ext4, kind: "ext4"},
		"formatted, as wanted":   {blkid: ext4, wanted: "ext4", kind: "ext4"},
		"formatted otherwise":    {blkid: ext4, wanted: "xfs", err: "holds the file system ext4, the volume asks for xfs"},
		"partitions":             {blkid: "PTTYPE=gpt\n", err: "has partitions (gpt)"},
		"another file system":    {blkid: "TYPE=ntfs\n", err: `supports no file system "ntfs"`},
		"data":                   {content: "by-a-pod", code: 2, err: "holds data that is no file system"},
		"several signatures":     {blkid: "ambivalent", code: 8, err: "exit code 8: ambivalent"},
		"read-only":              {code: 2, ro: true, err: "a volume that is read-only is not formatted"},
		"a program by its path":  {code: 2, wanted: "x/../sh", err: "supports no file system"},
		"interrupted formatting": {content: "tables", code: 2, begun: true, kind: "ext4", ran: "mkfs.ext4 -F -m0"},
	} {
		t.Run(name, func(t *testing.T) {
			d, ran := fakeDisk(t, test.content, test.blkid, test.code)
			if test.begun {
				if err := os.Mkdir(filepath.Dir(d.begun), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(d.begun, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			kind, err := d.holds(t.Context())
			if err == nil {
				kind, err = d.prepare(t.Context(), kind, test.wanted, test.ro)
			}
			switch {
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error: got %v, want %q", err, test.err)
			case test.err == "" && (err != nil || kind != test.kind):
				t.Errorf("got %q, %v, want %q", kind, err, test.kind)
			}
			if got := strings.Join(*ran, "; "); got != test.ran {
				t.Errorf("ran %q, want %q", got, test.ran)
			}
			if _, err := os.Lstat(d.begun); err == nil {
				t.Error("the mark of a file system that is being made is left")
			}
		})
	}
}

// TestGrow: a file system grows to its device, before it is mounted or after, but not beyond the device.
func TestGrow(t *testing.T) {
	d, ran := fakeDisk(t, "", "TYPE=ext4\n", 0)
	d.growUnmounted(t.Context(), "ext4")
	if err := d.grow(t.Context(), "/mnt", 1<<20); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(*ran, "; "); got != "e2fsck -f -p; resize2fs; resize2fs" {
		t.Errorf("ran %q", got)
	}
	if err := d.grow(t.Context(), "/mnt", 1<<21); err == nil || !strings.Contains(err.Error(), "the claim asks for") {
		t.Errorf("a device that is too small: got %v", err)
	}
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	claim := &corev1.PersistentVolumeClaim{}
	claim.Status.Capacity = size("1Gi")
	claim.Spec.Resources.Requests = size("1Gi")
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: size("1Gi")}}
	if got := grown(claim, pv); got != nil {
		t.Errorf("a claim that has what it asks for: got %v", got)
	}
	claim.Spec.Resources.Requests = size("2Gi")
	if got := grown(claim, pv); got == nil || got.String() != "2Gi" {
		t.Errorf("a claim that asks for more: got %v, want 2Gi", got)
	}
	pv.Spec.Capacity = size("3Gi")
	if got := grown(claim, pv); got == nil || got.String() != "3Gi" {
		t.Errorf("a volume that has more: got %v, want 3Gi", got)
	}
}

// TestNoProgram: the error says which package to install.
func TestNoProgram(t *testing.T) {
	_, _, err := runProgram(t.Context(), "e2fsprogs", "keelson-no-such-program")
	if err == nil || !strings.Contains(err.Error(), "install the package e2fsprogs") {
		t.Errorf("got %v, want the package", err)
	}
}

func TestMountFlags(t *testing.T) {
	flags, data := mountFlags([]string{"noatime,nosuid", "discard", "rw", "errors=remount-ro"})
	if flags != unix.MS_NOATIME|unix.MS_NOSUID || data != "discard,errors=remount-ro" {
		t.Errorf("got %#x %q", flags, data)
	}
}
