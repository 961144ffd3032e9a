// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

type hostFacts = linux.Facts

// minShares is the kernel's minimum of cpu.shares.
const minShares = 2

// Resources translates CRI's limits to OCI's; a zero means unset. Limits without a cgroup controller on this machine
// are left out.
func Resources(resources *runtimeapi.LinuxContainerResources, host linux.Facts) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}}
	if resources.GetCpuPeriod() > 0 {
		p := uint64(resources.GetCpuPeriod())
		out.CPU.Period = &p
	}
	if q := resources.GetCpuQuota(); q != 0 {
		out.CPU.Quota = &q
	}
	if resources.GetCpuShares() > 0 {
		s := max(minShares, uint64(resources.GetCpuShares()))
		out.CPU.Shares = &s
	}
	out.CPU.Cpus = resources.GetCpusetCpus()
	out.CPU.Mems = resources.GetCpusetMems()
	if l := resources.GetMemoryLimitInBytes(); l != 0 {
		out.Memory.Limit = &l
		// memory and swap together get the memory limit, so no swap: Kubernetes' default when no swap limit is set.
		if host.Swap && l > 0 {
			out.Memory.Swap = &l
		}
	}
	if s := resources.GetMemorySwapLimitInBytes(); s != 0 && host.Swap {
		out.Memory.Swap = &s
	}
	if slices.Contains(host.Controllers, "hugetlb") {
		for _, h := range resources.GetHugepageLimits() {
			out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{
				Pagesize: h.GetPageSize(),
				Limit:    h.GetLimit(),
			})
		}
	}
	if host.Cgroups == linux.CgroupV2 {
		out.Unified = resources.GetUnified()
	}
	return out
}

// devicesOf sets the device cgroup rules: in.Devices, and for privileged containers all devices. libcontainer adds the
// default ones.
func devicesOf(l *specs.Linux, in Input, sec *runtimeapi.LinuxContainerSecurityContext) {
	if sec.GetPrivileged() {
		l.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	} else {
		l.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	for _, d := range in.Devices {
		l.Devices = append(l.Devices, d.LinuxDevice)
		if !sec.GetPrivileged() {
			major := d.Major
			minor := d.Minor
			l.Resources.Devices = append(l.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow:  true,
				Type:   d.Type,
				Major:  &major,
				Minor:  &minor,
				Access: d.Access,
			})
		}
	}
}
