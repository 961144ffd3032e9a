// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/csi"
	"keelson/lib/inroot"
)

// begunAt returns the file that records that the pod uses the volume of a claim.
func begunAt(uid string, v *corev1.Volume) string {
	return filepath.Join("pods", uid, "plugins", "kubernetes.io~"+plugin(v), v.Name)
}

// pathFile returns the file with the path of a local volume of the pod, so that statistics need no API request.
const pathFile = "path"

func keepPath(root *inroot.Dir, begun, path string) error {
	at := filepath.Join(begun, pathFile)
	if have, err := root.ReadFile(at, unix.PathMax); err == nil && string(have) == path {
		return nil
	}
	return root.WriteFile(at, []byte(path), 0o640)
}

// Usage returns the usage of a local volume's file system; nil: not known. As in Kubernetes' kubelet, hostPath volumes
// have none.
func (m *Manager) Usage(p *corev1.Pod, name string) *csi.Usage {
	v := find(p, name)
	if v == nil || v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
		return nil
	}
	root, err := inroot.Open(m.dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // O_PATH
	path, err := root.ReadFile(filepath.Join(begunAt(string(p.UID), v), pathFile), unix.PathMax)
	if err != nil {
		return nil
	}
	u, err := usageOf(string(path))
	if err != nil {
		return nil
	}
	return u
}

// usageOf returns the usage of a directory's file system, or the size of a block device.
func usageOf(path string) (*csi.Usage, error) {
	usage := &csi.Usage{At: time.Now()}
	i, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if isBlockDevice(i) {
		usage.Capacity, err = sizeOf(path)
		return usage, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, err
	}
	bytes := func(blocks uint64) *int64 { return new(int64(blocks) * fs.Bsize) } // sizes of file systems
	count := func(n uint64) *int64 { return new(int64(n)) }                      // numbers of files
	usage.Capacity = bytes(fs.Blocks)
	usage.Available = bytes(fs.Bavail)
	usage.Used = bytes(fs.Blocks - fs.Bfree)
	usage.Inodes = count(fs.Files)
	usage.InodesFree = count(fs.Ffree)
	usage.InodesUsed = count(fs.Files - fs.Ffree)
	return usage, nil
}

func isBlockDevice(i os.FileInfo) bool {
	return i.Mode()&os.ModeDevice != 0 && i.Mode()&os.ModeCharDevice == 0
}

func sizeOf(device string) (*int64, error) {
	f, err := os.Open(device) // an administrator has named it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	n, err := f.Seek(0, io.SeekEnd)
	return &n, err
}
