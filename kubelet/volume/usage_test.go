// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// bound is an API server with one claim.
type bound struct {
	objects
	pv *corev1.PersistentVolume
}

func (b *bound) Claim(
	context.Context, string, string,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	return &corev1.PersistentVolumeClaim{}, b.pv, nil
}

func claimOf(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
		ClaimName: name,
	}})
}

// TestUsageOfLocalVolumes: a local volume is measured by its file system while the pod has it; a hostPath volume is
// not.
func TestUsageOfLocalVolumes(t *testing.T) {
	src := &bound{pv: &corev1.PersistentVolume{}}
	m := manager(t, &src.objects)
	m.sources = src
	dir := t.TempDir()
	pod := volumes(claimOf("data"))
	if u := m.Usage(pod, "data"); u != nil {
		t.Errorf("before it is set up: got %+v, want nothing", u)
	}
	src.pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: dir}
	setUp(t, m, pod)
	if u := m.Usage(pod, "data"); u != nil {
		t.Errorf("hostPath: got %+v, want nothing", u)
	}
	src.pv.Spec.HostPath = nil
	src.pv.Spec.Local = &corev1.LocalVolumeSource{Path: dir}
	for range 2 {
		setUp(t, m, pod)
	}
	u := m.Usage(pod, "data")
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if u == nil || u.Inodes == nil || *u.Inodes != int64(fs.Files) || *u.Capacity != int64(fs.Blocks)*fs.Bsize ||
		*u.Used <= 0 || *u.Available <= 0 || *u.InodesFree+*u.InodesUsed != *u.Inodes || u.At.IsZero() {
		t.Errorf("local: got %+v, want what statfs says: %+v", u, fs)
	}
	if u := m.Usage(pod, "other"); u != nil {
		t.Errorf("no volume of the pod: got %+v", u)
	}
	if err := m.TearDown(t.Context(), string(pod.UID)); err != nil {
		t.Fatal(err)
	}
	if u := m.Usage(pod, "data"); u != nil {
		t.Errorf("after the pod: got %+v, want nothing", u)
	}
}
