// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/eviction"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
	"keelson/lib/inroot"
	"keelson/lib/linux"
)

// Machine has capacity and available amounts of the node.
type Machine struct {
	MemoryTotal, MemoryAvailable int64
	NodeFs, ImageFs              Filesystem
	// Split: images and writable layers have a file system of their own.
	Split             bool
	Processes, MaxPID int64
}

// Machine measures the node. It costs a few system calls, and one CRI call the first time.
func (s *Source) Machine(ctx context.Context) (Machine, error) {
	var machine Machine
	var errs []error
	var err error
	if machine.MemoryTotal, machine.MemoryAvailable, err = memoryOf("/proc/meminfo"); err != nil {
		errs = append(errs, err)
	}
	if machine.NodeFs, err = Statfs(s.RootDir); err != nil {
		errs = append(errs, err)
	}
	machine.ImageFs = machine.NodeFs
	if where := s.imageDir(ctx); where != "" {
		if fs, err := Statfs(where); err == nil && fs.Device != machine.NodeFs.Device {
			machine.ImageFs = fs
			machine.Split = true
		}
	}
	if machine.Processes, machine.MaxPID, err = processes(); err != nil {
		errs = append(errs, err)
	}
	return machine, errors.Join(errs...)
}

// imageDir returns the runtime's image directory; empty if the runtime does not report it. The result is cached, since
// some runtimes walk through the directory for each call.
func (s *Source) imageDir(ctx context.Context) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked || s.Images == nil {
		return s.images
	}
	resp, err := s.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "" // the next call tries again
	}
	s.asked = true
	if all := resp.GetImageFilesystems(); len(all) > 0 {
		s.images = all[0].GetFsId().GetMountpoint()
	}
	return s.images
}

// memoryOf returns the machine's memory.
func memoryOf(path string) (total, available int64, err error) {
	info, err := memoryInfo(path)
	if err != nil {
		return 0, 0, err
	}
	return info["MemTotal"], availableOf(info), nil
}

// availableOf returns the available memory as Kubernetes defines it: free memory and inactive page cache.
func availableOf(info map[string]int64) int64 { return info["MemFree"] + info["Inactive(file)"] }

// memoryInfo reads /proc/meminfo, in bytes.
func memoryInfo(path string) (map[string]int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read memory: %w", err)
	}
	fields := map[string]int64{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			fields[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	if fields["MemTotal"] == 0 {
		return nil, fmt.Errorf("read memory: %s has no MemTotal", path)
	}
	return fields, nil
}

// processes returns the number of threads and the maximum number of process IDs.
func processes() (running, most int64, err error) {
	load, err := os.ReadFile("/proc/loadavg") // 0.20 0.18 0.12 1/80 11206
	if err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	f := strings.Fields(string(load))
	if len(f) < 4 {
		return 0, 0, fmt.Errorf("count processes: %.80q is not understood", load)
	}
	_, all, _ := strings.Cut(f[3], "/")
	if running, err = strconv.ParseInt(all, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	return running, linux.MaxProcesses(), nil
}

// NodeStats implements eviction.Source. A signal that cannot be measured is missing.
func (s *Source) NodeStats(ctx context.Context) (eviction.Observations, bool, error) {
	machine, err := s.Machine(ctx)
	observations := eviction.Observations{}
	put := func(sig eviction.Signal, available, capacity int64, format resource.Format) {
		if capacity > 0 {
			observations[sig] = eviction.Observation{
				Available: resource.NewQuantity(available, format),
				Capacity:  resource.NewQuantity(capacity, format),
			}
		}
	}
	put(eviction.MemoryAvailable, machine.MemoryAvailable, machine.MemoryTotal, resource.BinarySI)
	put(eviction.NodeFsAvailable, machine.NodeFs.Available, machine.NodeFs.Capacity, resource.BinarySI)
	put(eviction.NodeFsInodesFree, machine.NodeFs.InodesFree, machine.NodeFs.Inodes, resource.DecimalSI)
	put(eviction.ImageFsAvailable, machine.ImageFs.Available, machine.ImageFs.Capacity, resource.BinarySI)
	put(eviction.ImageFsInodesFree, machine.ImageFs.InodesFree, machine.ImageFs.Inodes, resource.DecimalSI)
	put(eviction.PIDAvailable, machine.MaxPID-machine.Processes, machine.MaxPID, resource.DecimalSI)
	return observations, machine.Split, err
}

// PodStats implements eviction.Source: memory and processes from the runtime, and with disk the disk usage.
func (s *Source) PodStats(ctx context.Context, pods []*corev1.Pod, disk bool) (eviction.Usages, error) {
	resp, err := s.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod stats: %w", err)
	}
	by := map[string]*runtimeapi.PodSandboxStats{}
	for _, st := range resp.GetStats() {
		by[st.GetAttributes().GetLabels()[runtimestate.LabelPodUID]] = st
	}
	out := eviction.Usages{}
	var errs []error
	for _, pod := range pods {
		st := by[string(pod.UID)]
		if st == nil {
			continue
		}
		u := eviction.Usage{
			Memory:     signed(st.GetLinux().GetMemory().GetWorkingSetBytes()),
			Processes:  signed(st.GetLinux().GetProcess().GetProcessCount()),
			Containers: s.containers(ctx, pod, st),
		}
		if disk {
			if u.Volumes, err = s.volumes(ctx, pod); err != nil {
				errs = append(errs, err)
			}
		}
		out[string(pod.UID)] = u
	}
	return out, errors.Join(errs...)
}

// PodDisk implements eviction.Source: the pod's volumes, and with an ephemeral-storage limit also the writable layers
// and logs.
func (s *Source) PodDisk(ctx context.Context, pod *corev1.Pod) (eviction.Usage, error) {
	var usage eviction.Usage
	var err error
	if usage.Volumes, err = s.volumes(ctx, pod); err != nil || !eviction.HasStorageLimit(pod) {
		return usage, err
	}
	resp, err := s.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{
		Filter: &runtimeapi.PodSandboxStatsFilter{
			LabelSelector: map[string]string{runtimestate.LabelPodUID: string(pod.UID)},
		},
	})
	if err != nil {
		return usage, fmt.Errorf("list stats of pod: %w", err)
	}
	for _, st := range resp.GetStats() {
		usage.Containers = s.containers(ctx, pod, st)
	}
	return usage, nil
}

func (s *Source) containers(
	ctx context.Context, p *corev1.Pod, st *runtimeapi.PodSandboxStats,
) []eviction.ContainerUsage {
	var out []eviction.ContainerUsage
	for _, c := range st.GetLinux().GetContainers() {
		cu := eviction.ContainerUsage{
			Name:   c.GetAttributes().GetMetadata().GetName(),
			Memory: signed(c.GetMemory().GetWorkingSetBytes()),
			Rootfs: layer(c),
		}
		if d, err := s.logs(ctx, p, cu.Name); err == nil {
			cu.Logs = &d
		}
		out = append(out, cu)
	}
	return out
}

func layer(c *runtimeapi.ContainerStats) *eviction.Disk {
	w := c.GetWritableLayer()
	if w.GetUsedBytes() == nil {
		return nil
	}
	// sizes of files
	return &eviction.Disk{Bytes: int64(w.GetUsedBytes().GetValue()), Inodes: int64(w.GetInodesUsed().GetValue())}
}

// logs returns the disk usage of a container's logs.
func (s *Source) logs(ctx context.Context, p *corev1.Pod, container string) (eviction.Disk, error) {
	d, err := inroot.Measure(ctx, filepath.Join(translate.PodLogDir(s.LogDir, p.Namespace, p.Name, string(p.UID)),
		container))
	return eviction.Disk(d), err
}

// volumes returns the usage of the pod's local volumes, on disk and in memory.
func (s *Source) volumes(ctx context.Context, pod *corev1.Pod) (map[string]eviction.Disk, error) {
	out := map[string]eviction.Disk{}
	var errs []error
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		memory := volume.EmptyDir != nil && volume.EmptyDir.Medium != corev1.StorageMediumDefault
		if !memory && !eviction.LocalEphemeral(volume) {
			continue
		}
		dir, err := s.VolumePath(ctx, pod, volume.Name)
		if err == nil {
			var d Disk
			d, err = s.meter.Measure(ctx, dir, memory)
			out[volume.Name] = eviction.Disk(d)
		}
		if err != nil {
			delete(out, volume.Name)
			errs = append(errs, fmt.Errorf("volume %q of pod %s: %w", volume.Name, podinfo.FullName(pod), err))
		}
	}
	return out, errors.Join(errs...)
}

// Forget drops the measurements of pods that are not on the node any more.
func (s *Source) Forget(there func(uid string) bool) {
	s.meter.Retain(func(dir string) bool {
		for part := range strings.SplitSeq(dir, string(filepath.Separator)) {
			if there(part) {
				return true
			}
		}
		return false
	})
}

func signed(v *runtimeapi.UInt64Value) *int64 {
	if v == nil {
		return nil
	}
	return new(int64(v.GetValue())) // bytes and counts
}
