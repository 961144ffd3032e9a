// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/eviction"
	"keelson/lib/linux"
)

// node returns the node's part of the summary.
func (s *Source) node(ctx context.Context) (node, error) {
	m, err := s.Machine(ctx)
	if err != nil {
		return node{}, err
	}
	now := metav1.NewTime(time.Now())
	n, err := s.usage(now.Time)
	n.Fs = fsStats(m.NodeFs, now)
	waits := linux.MachinePressures()
	if n.CPU != nil && n.Memory != nil {
		n.CPU.PSI = machinePressure(waits.CPU)
		n.Memory.PSI = machinePressure(waits.Memory)
	}
	if psi := machinePressure(waits.IO); psi != nil {
		n.IO = &ioUsage{Time: now, PSI: psi}
	}
	n.Runtime = &runtimeStats{ImageFs: fsStats(m.ImageFs, now)}
	n.Rlimit = &rlimit{Time: now, MaxPID: &m.MaxPID, Processes: &m.Processes}
	return n, err
}

// usage returns the node's cpu and memory.
func (s *Source) usage(at time.Time) (node, error) {
	now := metav1.NewTime(at)
	n := node{Name: s.NodeName}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return n, fmt.Errorf("read processor time: %w", err)
	}
	used, boot, err := processorTime(stat)
	if err != nil {
		return n, err
	}
	n.Start = metav1.NewTime(boot)
	n.CPU = &cpu{Time: now, UsageCoreNanoSeconds: &used, UsageNanoCores: s.cpu.update(at, used)}
	info, err := memoryInfo("/proc/meminfo")
	if err != nil {
		return n, err
	}
	total := info["MemTotal"]
	available := availableOf(info)
	n.Memory = &memory{
		Time:            now,
		AvailableBytes:  unsigned(available),
		WorkingSetBytes: unsigned(total - available),
		UsageBytes:      unsigned(total - info["MemFree"]),
		RSSBytes:        unsigned(info["AnonPages"]),
	}
	n.Swap = &swap{
		Time:           now,
		AvailableBytes: unsigned(info["SwapFree"]),
		UsageBytes: unsigned(
			info["SwapTotal"] - info["SwapFree"]),
	}
	return n, nil
}

// nodeRate has the last reading of the machine's CPU time.
type nodeRate struct {
	mu   sync.Mutex
	at   time.Time
	used uint64
	rate uint64
}

// update returns the CPU usage since the last reading; nil: this is the first one.
func (r *nodeRate) update(now time.Time, used uint64) *uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := now.Sub(r.at)
	if r.at.IsZero() || used < r.used {
		r.at = now
		r.used = used
		r.rate = 0
		return nil
	}
	if took >= time.Second {
		r.rate = uint64(float64(used-r.used) / took.Seconds())
		r.at = now
		r.used = used
	}
	rate := r.rate
	return &rate
}

// tick is the unit of /proc/stat (USER_HZ), which is the same on all architectures.
const tick = uint64(10 * time.Millisecond)

// processorTime parses /proc/stat: the CPU time used, in nanoseconds, and the boot time.
func processorTime(stat []byte) (used uint64, boot time.Time, err error) {
	for line := range bytes.Lines(stat) {
		f := strings.Fields(string(line))
		switch {
		case len(f) >= 8 && f[0] == "cpu": // user nice system idle iowait irq softirq; a guest's time is user's
			for _, i := range []int{1, 2, 3, 6, 7} {
				n, err := strconv.ParseUint(f[i], 10, 64)
				if err != nil {
					return 0, time.Time{}, fmt.Errorf("read processor time: %w", err)
				}
				used += n * tick
			}
		case len(f) == 2 && f[0] == "btime":
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, time.Time{}, fmt.Errorf("read start of the machine: %w", err)
			}
			boot = time.Unix(n, 0)
		}
	}
	if used == 0 {
		return 0, time.Time{}, errors.New("read processor time: /proc/stat has no line for all processors")
	}
	return used, boot, nil
}

// addDisk adds the disk usage of pods.
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
		add := func(d eviction.Disk) {
			sum.Bytes = sum.Bytes + d.Bytes
			sum.Inodes = sum.Inodes + d.Inodes
		}
		for j := range pods[i].Containers {
			c := &pods[i].Containers[j]
			if c.Rootfs != nil {
				// sizes of files
				add(eviction.Disk{Bytes: int64(*c.Rootfs.UsedBytes), Inodes: int64(*c.Rootfs.InodesUsed)})
			}
			if d, err := s.logs(ctx, p, c.Name); err == nil {
				c.Logs = usageStats(d)
				add(d)
			}
		}
		volumes, err := s.volumes(ctx, p)
		if err != nil && ctx.Err() != nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			pods[i].Volumes = append(pods[i].Volumes, volume{Name: name, fileSystem: *usageStats(volumes[name])})
			v := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
			if eviction.LocalEphemeral(&p.Spec.Volumes[v]) {
				add(volumes[name])
			}
		}
		pods[i].Ephemeral = usageStats(sum)
	}
	s.addClaims(ctx, pods, specs)
}

func usageStats(d eviction.Disk) *fileSystem {
	return &fileSystem{Time: metav1.NewTime(time.Now()), UsedBytes: unsigned(d.Bytes), InodesUsed: unsigned(d.Inodes)}
}

func fsStats(f Filesystem, now metav1.Time) *fileSystem {
	return &fileSystem{
		Time:           now,
		AvailableBytes: unsigned(f.Available),
		CapacityBytes:  unsigned(f.Capacity),
		UsedBytes:      unsigned(f.Used),
		InodesFree:     unsigned(f.InodesFree),
		Inodes:         unsigned(f.Inodes),
		InodesUsed:     unsigned(f.Inodes - f.InodesFree),
	}
}

func unsigned(n int64) *uint64 { return new(uint64(max(n, 0))) } // not negative
