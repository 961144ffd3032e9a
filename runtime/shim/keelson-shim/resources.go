// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// merge sets the fields of r that are set in u. Device rules never change.
func merge(r *cgroups.Resources, u *specs.LinuxResources) {
	if c := u.CPU; c != nil {
		mergeCPU(r, c)
	}
	if m := u.Memory; m != nil {
		if m.Limit != nil {
			r.Memory = *m.Limit
			// The kernel refuses a memory+swap limit below the memory limit.
			if m.Swap == nil && r.MemorySwap > 0 && r.MemorySwap < r.Memory {
				r.MemorySwap = r.Memory
			}
		}
		set(&r.MemoryReservation, m.Reservation)
		set(&r.MemorySwap, m.Swap)
	}
	if u.Pids != nil {
		r.PidsLimit = u.Pids.Limit
	}
	if len(u.HugepageLimits) > 0 {
		r.HugetlbLimit = nil
		for _, l := range u.HugepageLimits {
			r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
		}
	}
	if len(u.Unified) > 0 {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		maps.Copy(r.Unified, u.Unified)
	}
}

func mergeCPU(r *cgroups.Resources, c *specs.LinuxCPU) {
	if c.Shares != nil {
		r.CpuShares = *c.Shares
		r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(r.CpuShares)
	}
	set(&r.CpuQuota, c.Quota)
	set(&r.CpuPeriod, c.Period)
	if c.Cpus != "" {
		r.CpusetCpus = c.Cpus
	}
	if c.Mems != "" {
		r.CpusetMems = c.Mems
	}
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
