// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"keelson/lib/inroot"
	"keelson/lib/linux"
)

// TearDown unpublishes the pod's volumes and unstages those that no other pod uses. The pod must have no process left.
// The caller retries after an error; one failed volume does not stop the others.
func (m *Mounter) TearDown(ctx context.Context, uid string) error {
	root, err := inroot.Open(string(m.cfg.Dir))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the kubelet's directory: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	records, _, err := ofPod(root, uid) // the mount of a damaged record is removed with the pod's directory
	if err != nil {
		return fmt.Errorf("look for the pod's volumes: %w", err)
	}
	var errs []error
	known := map[key]bool{}
	for i := range records {
		r := &records[i]
		known[r.key()] = true
		if err := m.tearDown(ctx, root, uid, r); err != nil {
			errs = append(errs, &Error{tearDownOp(r), r.SpecVolID, err})
		}
	}
	m.release(ctx, uid, known)
	if len(errs) == 0 {
		m.tokens.forget(uid)
		m.stats.forget(uid)
	}
	return errors.Join(errs...)
}

func tearDownOp(r *record) string {
	if r.Block {
		return "UnmapVolume.UnmapPodDevice"
	}
	return "UnmountVolume.TearDown"
}

// release drops volumes for which the pod waited and of which nothing was mounted.
func (m *Mounter) release(ctx context.Context, uid string, known map[key]bool) {
	m.mu.Lock()
	var all []*volume
	for k, v := range m.volumes {
		if v.pods[uid] != nil && !known[k] {
			all = append(all, v)
		}
	}
	m.mu.Unlock()
	m.drivers.forget(uid)
	for _, v := range all {
		if m.begin(ctx, v) == nil {
			m.drop(v, uid)
			v.end()
		}
	}
}

func (m *Mounter) tearDown(ctx context.Context, root *inroot.Dir, uid string, r *record) error {
	driver := m.drivers.get(r.DriverName)
	if driver == nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: %w", missing(r.DriverName))
	}
	volume := m.loaded(r, uid)
	if err := m.begin(ctx, volume); err != nil {
		return err
	}
	defer volume.end()
	dir, target := publishedAt(uid, r.Block, r.SpecVolID)
	// Call the driver even if nothing is mounted: a call that timed out may still mount.
	_, err := call(ctx, driver.within, driver.node.NodeUnpublishVolume, &csiapi.NodeUnpublishVolumeRequest{
		VolumeId:   r.VolumeHandle,
		TargetPath: driver.pathSeen(target),
	})
	if err != nil && code(err) != codes.NotFound {
		return err
	}
	if err := clean(root, m.at(target), target); err != nil {
		return err
	}
	if !m.others(volume, uid) {
		if err := m.unstage(ctx, root, driver, volume); err != nil {
			return err
		}
	}
	if err := root.RemoveAll(dir); err != nil {
		return err
	}
	m.drop(volume, uid)
	return nil
}

func (m *Mounter) at(rel string) string { return filepath.Join(string(m.cfg.Dir), rel) }

// clean removes what a driver left at its target after it unmounted: mounts, an empty directory or a file.
func clean(root *inroot.Dir, path, rel string) error {
	i, err := root.Lstat(rel)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if i.MountRoot {
		if err := linux.Unmount(path); err != nil {
			return err
		}
	}
	err = root.Remove(rel)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// unstage unstages a volume that no pod uses. The caller holds the volume's turn.
func (m *Mounter) unstage(ctx context.Context, root *inroot.Dir, d *driver, v *volume) error {
	if !v.staged {
		return nil
	}
	dir, target := v.stagedAt(v.record.Block, v.record.SpecVolID)
	_, err := call(ctx, d.within, d.node.NodeUnstageVolume, &csiapi.NodeUnstageVolumeRequest{
		VolumeId:          v.handle,
		StagingTargetPath: d.pathSeen(target),
	})
	if err != nil && code(err) != codes.NotFound {
		return fmt.Errorf("UnmountDevice failed: %w", err)
	}
	if err := clean(root, m.at(target), target); err != nil {
		return fmt.Errorf("UnmountDevice failed: %w", err)
	}
	if err := root.RemoveAll(dir); err != nil {
		return fmt.Errorf("UnmountDevice failed: %w", err)
	}
	v.staged = false
	v.ready = false
	return nil
}

// unstageUnused unstages volumes that no pod uses: an earlier run was killed between two steps.
func (m *Mounter) unstageUnused(ctx context.Context) {
	m.mu.Lock()
	var all []*volume
	for _, v := range m.volumes {
		if len(v.pods) == 0 && m.drivers.get(v.driver) != nil {
			all = append(all, v)
		}
	}
	m.mu.Unlock()
	if len(all) == 0 {
		return
	}
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return // the next pod's SetUp reports it
	}
	defer func() { _ = root.Close() }() // O_PATH
	for _, v := range all {
		d := m.drivers.get(v.driver)
		if d == nil || m.begin(ctx, v) != nil {
			continue
		}
		if !m.others(v, "") {
			if err := m.unstage(ctx, root, d, v); err != nil {
				m.cfg.Log.Warn("unstage a volume that no pod uses", "volume", v.unique(), "err", err)
			}
			m.drop(v, "")
		}
		v.end()
	}
}
