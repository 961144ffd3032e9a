// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// merge sets the fields of resources that are set in linuxResources. Device rules never change.
func merge(resources *cgroups.Resources, linuxResources *specs.LinuxResources) {
	if c := linuxResources.CPU; c != nil {
		mergeCPU(resources, c)
	}
	if m := linuxResources.Memory; m != nil {
		if m.Limit != nil {
			resources.Memory = *m.Limit
			// The kernel refuses a memory+swap limit below the memory limit.
			if m.Swap == nil && resources.MemorySwap > 0 && resources.MemorySwap < resources.Memory {
				resources.MemorySwap = resources.Memory
			}
		}
		set(&resources.MemoryReservation, m.Reservation)
		set(&resources.MemorySwap, m.Swap)
	}
	if linuxResources.Pids != nil {
		resources.PidsLimit = linuxResources.Pids.Limit
	}
	if len(linuxResources.HugepageLimits) > 0 {
		resources.HugetlbLimit = nil
		for _, l := range linuxResources.HugepageLimits {
			resources.HugetlbLimit = append(resources.HugetlbLimit, &cgroups.HugepageLimit{
				Pagesize: l.Pagesize,
				Limit:    l.Limit,
			})
		}
	}
	if len(linuxResources.Unified) > 0 {
		if resources.Unified == nil {
			resources.Unified = map[string]string{}
		}
		maps.Copy(resources.Unified, linuxResources.Unified)
	}
}

func mergeCPU(resources *cgroups.Resources, linuxCPU *specs.LinuxCPU) {
	if linuxCPU.Shares != nil {
		resources.CpuShares = *linuxCPU.Shares
		resources.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(resources.CpuShares)
	}
	set(&resources.CpuQuota, linuxCPU.Quota)
	set(&resources.CpuPeriod, linuxCPU.Period)
	if linuxCPU.Cpus != "" {
		resources.CpusetCpus = linuxCPU.Cpus
	}
	if linuxCPU.Mems != "" {
		resources.CpusetMems = linuxCPU.Mems
	}
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
