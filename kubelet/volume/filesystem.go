// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/lib/inroot"
)

// A local volume of the mode Filesystem may name a block device. The kubelet makes a file system on an empty one, once,
// and mounts it in each pod; it grows with its claim.

const (
	defaultFileSystem = "ext4"
	// blankSize is how much of a device must be zero before it is formatted: what no program recognizes may be data.
	blankSize = 4 << 20
	// growEvery is how often the claims of mounted devices are compared with their file systems.
	growEvery = time.Minute
)

// programs are those of a file system, and the package that has them.
type programs struct {
	pkg         string
	format      []string // before the device
	grow        string
	growMounted bool // grow takes the mount point, not the device
}

// programsOf returns the programs of a file system that this node makes and mounts.
func programsOf(kind string) (programs, error) {
	switch kind {
	case "ext3", "ext4":
		return programs{pkg: "e2fsprogs", format: []string{"mkfs." + kind, "-F", "-m0"}, grow: "resize2fs"}, nil
	case "xfs":
		return programs{pkg: "xfsprogs", format: []string{"mkfs.xfs"}, grow: "xfs_growfs", growMounted: true}, nil
	}
	return programs{}, fmt.Errorf("this node supports no file system %q on devices: use ext4, ext3 or xfs", kind)
}

// runner runs a program of a package and returns its output and exit code.
type runner func(ctx context.Context, pkg, name string, args ...string) (out string, code int, err error)

// runProgram is the runner of a node.
func runProgram(ctx context.Context, pkg, name string, args ...string) (string, int, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", 0, fmt.Errorf("this node has no program %s: install the package %s", name, pkg)
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	text := strings.TrimSpace(string(out[:min(len(out), maxOutput)]))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return text, exit.ExitCode(), nil
	}
	return text, 0, err
}

const maxOutput = 1 << 10 // of a program, in messages

// disk is a device that holds the file system of a volume.
type disk struct {
	run    runner
	device string
	// begun is a file that exists while a file system is being made: the device holds no data then.
	begun string
}

// deviceOf returns the block device of a local volume with a file system; empty: it is a directory.
func deviceOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.Local == nil {
		return ""
	}
	if i, err := os.Stat(pv.Spec.Local.Path); err != nil || !isBlockDevice(i) {
		return ""
	}
	return pv.Spec.Local.Path
}

// deviceTarget returns where the file system of a device is mounted for a pod.
func (m *Manager) deviceTarget(p *corev1.Pod, pv *corev1.PersistentVolume) string {
	return filepath.Join(m.PodDir(string(p.UID)), "volumes", "kubernetes.io~local-volume", pv.Name)
}

// setUpFileSystem mounts the file system of a device in the pod, and grows it if its claim has grown.
func (m *Manager) setUpFileSystem(
	ctx context.Context, root *inroot.Dir, in Input, volume *corev1.Volume, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, begun string,
) (time.Time, error) {
	var none time.Time
	if !m.tmpfs {
		return none, errors.New("the file system of a device needs root")
	}
	target := m.deviceTarget(in.Pod, pv)
	d := disk{run: runProgram, device: deviceOf(pv), begun: filepath.Join(m.dir, "formatting", string(pv.UID))}
	want := grown(claim, pv)
	if readOnly(volume) {
		want = nil
	}
	fresh, err := m.mountDevice(ctx, root, d, pv, mountRequest{target, readOnly(volume), want != nil})
	if err != nil {
		return none, err
	}
	if err := root.MkdirAll(begun, 0o750); err != nil {
		return none, err
	}
	if err := keepPath(root, begun, target); err != nil {
		return none, err
	}
	if err := m.setGroup(root, in, volume, target, fresh); err != nil || readOnly(volume) {
		return none, err
	}
	if want != nil && m.csi != nil {
		m.csi.Expanded(ctx, in.Pod, claim, pv.Name, *want, d.grow(ctx, target, want.Value()))
	}
	return time.Now().Add(growEvery + rand.N(growEvery/4)), nil // no secret
}

// mountRequest says where a device is mounted. grow: its claim asks for more than the file system has.
type mountRequest struct {
	target         string
	readOnly, grow bool
}

// mountDevice mounts a device unless it is mounted there. It reports whether it was not.
func (m *Manager) mountDevice(
	ctx context.Context, root *inroot.Dir, d disk, pv *corev1.PersistentVolume, request mountRequest,
) (fresh bool, err error) {
	m.formatting.Lock() // two pods may start with one device
	defer m.formatting.Unlock()
	if err := root.MkdirAll(m.within(request.target), 0o750); err != nil {
		return false, err
	}
	resolved, err := resolvedPath(request.target)
	if err != nil {
		return false, err
	}
	mounts, err := mountPoints()
	if err != nil || slices.Contains(mounts, resolved) {
		return false, err
	}
	kind, err := d.holds(ctx)
	if err != nil {
		return false, err
	}
	wanted := ""
	if t := pv.Spec.Local.FSType; t != nil {
		wanted = *t
	}
	if kind, err = d.prepare(ctx, kind, wanted, request.readOnly); err != nil {
		return false, err
	}
	if request.grow {
		d.growUnmounted(ctx, kind)
	}
	flags, data := mountFlags(pv.Spec.MountOptions)
	if err := unix.Mount(d.device, resolved, kind, flags, data); err != nil {
		return false, fmt.Errorf("mount %s as %s: %w", d.device, kind, err)
	}
	return true, nil
}

// holds returns the file system on a device; empty: nothing that a program recognizes.
func (d disk) holds(ctx context.Context) (string, error) {
	out, code, err := d.run(ctx, "util-linux", "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", d.device)
	switch {
	case err != nil:
		return "", err
	case code == 2:
		return "", nil
	case code != 0:
		return "", fmt.Errorf("blkid does not recognize the contents of %s: exit code %d: %s", d.device, code, out)
	}
	kind := ""
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "TYPE":
			kind = value
		case "PTTYPE":
			return "", fmt.Errorf("%s has partitions (%s): name one of them in the volume", d.device, value)
		}
	}
	if kind == "" {
		return "", fmt.Errorf("blkid does not recognize the contents of %s: %s", d.device, out)
	}
	_, err = programsOf(kind)
	return kind, err
}

// prepare makes a file system on an empty device. kind is what the device holds, wanted what the volume asks for, both
// may be empty. It returns the file system to mount.
func (d disk) prepare(ctx context.Context, kind, wanted string, ro bool) (string, error) {
	if kind != "" {
		if wanted != "" && wanted != kind {
			return "", fmt.Errorf("%s holds the file system %s, the volume asks for %s: it is not formatted again",
				d.device, kind, wanted)
		}
		return kind, d.done()
	}
	if wanted == "" {
		wanted = defaultFileSystem
	}
	tools, err := programsOf(wanted)
	if err != nil {
		return "", err
	}
	if ro {
		return "", fmt.Errorf("%s has no file system, and a volume that is read-only is not formatted", d.device)
	}
	if err := d.checkBlank(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(d.begun), 0o750); err != nil {
		return "", err
	}
	if err := os.WriteFile(d.begun, nil, 0o600); err != nil {
		return "", err
	}
	out, code, err := d.run(ctx, tools.pkg, tools.format[0], append(slices.Clone(tools.format[1:]), d.device)...)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, out)
	}
	if err != nil {
		return "", fmt.Errorf("make a file system on %s: %w", d.device, err)
	}
	return wanted, d.done()
}

// done removes the mark of a file system that is being made.
func (d disk) done() error {
	if err := os.Remove(d.begun); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkBlank returns an error if a device holds something at its start, unless an earlier attempt to make its file
// system was interrupted.
func (d disk) checkBlank() error {
	if _, err := os.Lstat(d.begun); err == nil {
		return nil
	}
	f, err := os.Open(d.device) // an administrator has named it
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	start, err := io.ReadAll(io.LimitReader(f, blankSize))
	if err != nil {
		return fmt.Errorf("read %s: %w", d.device, err)
	}
	if len(bytes.Trim(start, "\x00")) > 0 {
		return fmt.Errorf("%s holds data that is no file system, and is not formatted: overwrite its first %d MiB "+
			"with zeros if it may be", d.device, blankSize>>20)
	}
	return nil
}

// grow makes a mounted file system as large as its device, which must have size bytes.
func (d disk) grow(ctx context.Context, target string, size int64) error {
	have, err := sizeOf(d.device)
	if err != nil {
		return err
	}
	if *have < size {
		return fmt.Errorf("%s has %d bytes, the claim asks for %d", d.device, *have, size)
	}
	kind, err := d.holds(ctx)
	if err != nil {
		return err
	}
	tools, err := programsOf(kind)
	if err != nil {
		return err
	}
	at := d.device
	if tools.growMounted {
		at = target
	}
	out, code, err := d.run(ctx, tools.pkg, tools.grow, at)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", tools.grow, code, out)
	}
	return err
}

// growUnmounted grows a file system of the ext family before it is mounted: in a container the kernel may forbid it
// later. It is checked first, as resize2fs requires; the check does nothing to one that another pod has mounted. A
// failure here is retried and reported once it is mounted.
func (d disk) growUnmounted(ctx context.Context, kind string) {
	tools, err := programsOf(kind)
	if err != nil || tools.growMounted {
		return
	}
	if _, code, err := d.run(ctx, tools.pkg, "e2fsck", "-f", "-p", d.device); err != nil || code > 1 {
		return
	}
	_, _, _ = d.run(ctx, tools.pkg, tools.grow, d.device)
}

// grown returns the size that a claim or its volume asks for, if it is more than the claim has.
func grown(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) *resource.Quantity {
	have, ok := claim.Status.Capacity[corev1.ResourceStorage]
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if capacity := pv.Spec.Capacity[corev1.ResourceStorage]; capacity.Cmp(want) > 0 {
		want = capacity
	}
	if !ok || want.Cmp(have) <= 0 {
		return nil
	}
	return &want
}

// mountFlags translates mount options to the kernel's flags and the file system's own options.
func mountFlags(options []string) (flags uintptr, data string) {
	known := map[string]uintptr{
		"ro":         unix.MS_RDONLY,
		"noatime":    unix.MS_NOATIME,
		"nodiratime": unix.MS_NODIRATIME,
		"relatime":   unix.MS_RELATIME,
		"nosuid":     unix.MS_NOSUID,
		"nodev":      unix.MS_NODEV,
		"noexec":     unix.MS_NOEXEC,
		"sync":       unix.MS_SYNCHRONOUS,
		"rw":         0,
		"defaults":   0,
	}
	var rest []string
	for _, list := range options {
		for option := range strings.SplitSeq(list, ",") {
			if flag, ok := known[option]; ok {
				flags |= flag
			} else if option != "" {
				rest = append(rest, option)
			}
		}
	}
	return flags, strings.Join(rest, ",")
}
