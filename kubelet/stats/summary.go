// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/eviction"
)

// node is the node's part of the summary.
func (s *Source) node(ctx context.Context) (node, error) {
	m, err := s.Machine(ctx)
	now := metav1.NewTime(time.Now())
	return node{
		Name:    s.NodeName,
		Memory:  &memory{Time: now, AvailableBytes: unsigned(m.MemoryAvailable), WorkingSetBytes: unsigned(m.MemoryTotal - m.MemoryAvailable)},
		Fs:      whole(m.NodeFs, now),
		Runtime: &runtimeStats{ImageFs: whole(m.ImageFs, now)},
		Rlimit:  &rlimit{Time: now, MaxPID: &m.MaxPID, Processes: &m.Processes},
	}, err
}

// addDisk adds what pods take of the disk, as eviction sees it.
func (s *Source) addDisk(ctx context.Context, pods []pod) {
	if s.Pods == nil || s.VolumePath == nil {
		return
	}
	specs := map[string]*corev1.Pod{}
	for _, p := range s.Pods() {
		specs[string(p.UID)] = p
	}
	for i := range pods {
		p := specs[pods[i].Ref.UID]
		if p == nil {
			continue
		}
		var sum eviction.Disk
		add := func(d eviction.Disk) { sum.Bytes, sum.Inodes = sum.Bytes+d.Bytes, sum.Inodes+d.Inodes }
		for j := range pods[i].Containers {
			c := &pods[i].Containers[j]
			if c.Rootfs != nil {
				add(eviction.Disk{Bytes: int64(*c.Rootfs.UsedBytes), Inodes: int64(*c.Rootfs.InodesUsed)}) //nolint:gosec // sizes of files
			}
			if d, err := s.logs(ctx, p, c.Name); err == nil {
				c.Logs = taken(d)
				add(d)
			}
		}
		volumes, err := s.volumes(ctx, p)
		if err != nil && ctx.Err() != nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			pods[i].Volumes = append(pods[i].Volumes, volume{Name: name, fileSystem: *taken(volumes[name])})
			v := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
			if eviction.LocalEphemeral(&p.Spec.Volumes[v]) {
				add(volumes[name])
			}
		}
		pods[i].Ephemeral = taken(sum)
	}
}

func taken(d eviction.Disk) *fileSystem {
	return &fileSystem{Time: metav1.NewTime(time.Now()), UsedBytes: unsigned(d.Bytes), InodesUsed: unsigned(d.Inodes)}
}

func whole(f Filesystem, now metav1.Time) *fileSystem {
	return &fileSystem{
		Time: now, AvailableBytes: unsigned(f.Available), CapacityBytes: unsigned(f.Capacity), UsedBytes: unsigned(f.Used),
		InodesFree: unsigned(f.InodesFree), Inodes: unsigned(f.Inodes), InodesUsed: unsigned(f.Inodes - f.InodesFree),
	}
}

func unsigned(n int64) *uint64 { return new(uint64(max(n, 0))) } //nolint:gosec // not negative
