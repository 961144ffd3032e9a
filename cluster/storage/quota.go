// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"keelson/cluster/datadir"
	"keelson/lib/linux"
	"keelson/lib/option"
	"keelson/store"
	"keelson/store/etcd"
)

// The default quota of the embedded store. The objects are in memory too, small ones in about eight times their stored
// size, so it is a sixteenth of the memory; and half of what images leave free on the disk, because history and files
// that are being merged need room in addition to the objects. More than etcd's own default needs the flag.
const (
	memoryPart     = 16
	diskPart       = 2
	greatestQuota  = 2 << 30
	smallestQuota  = 32 << 20
	reserveLargest = 4 << 30
	reserveLeast   = 128 << 20
)

// QuotaRow is the option of processes with an embedded store.
func (e *Config) QuotaRow() option.Row {
	return option.New(&e.QuotaBytes, "quota-backend-bytes", 0,
		"refuse new and larger objects above `BYTES` in the embedded store; 0: a sixteenth of the memory, at most 2 "+
			"GiB "+
			"and what the disk allows; negative: no quota")
}

// quota is the quota of the embedded store in dir; 0: none.
func (e Config) quota(dir datadir.Dir) int64 {
	switch {
	case e.QuotaBytes > 0:
		return e.QuotaBytes
	case e.QuotaBytes < 0:
		return 0
	}
	return defaultQuota(MemoryLimit(), datadir.DiskSize(string(dir)))
}

// defaultQuota is the quota for a machine with this memory and disk, in bytes; 0: not known.
func defaultQuota(memory, disk int64) int64 {
	quota := int64(greatestQuota)
	if memory > 0 {
		quota = min(quota, memory/memoryPart)
	}
	if disk > 0 {
		quota = min(quota, diskReserve(disk)/diskPart)
	}
	return max(quota, smallestQuota)
}

// diskReserve is what images leave free on a disk (runtime/image has the same rule): a twentieth, 128 MiB to 4 GiB, at
// most a quarter.
func diskReserve(disk int64) int64 {
	return min(max(min(disk/20, reserveLargest), reserveLeast), disk/4)
}

// ImageReserve is what images leave free so that the store can reach its quota; 0: their own rule is enough.
func (e Config) ImageReserve(dir datadir.Dir) int64 {
	if len(e.Servers) > 0 {
		return 0
	}
	if want := diskPart * e.quota(dir); want > diskReserve(datadir.DiskSize(string(dir))) {
		return want
	}
	return 0
}

// MemoryLimit is the memory of the machine, or of the cgroup of this process or one above it, whichever is smallest;
// 0: not known.
func MemoryLimit() int64 {
	limit := int64(0)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = int64(info.Totalram) * int64(info.Unit) // no machine has that much
	}
	if limit == 0 {
		return 0
	}
	return linux.OwnMemory(limit)
}

// storeUsage is a store that knows its quota.
type storeUsage interface {
	Usage() (used, quota int64)
}

// Metrics are the store's usage and quota, by the names that etcd has for them. An external etcd counts its file.
func Metrics(st store.Store) []prometheus.Collector {
	u, ok := st.(storeUsage)
	if !ok {
		return nil
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		opts := prometheus.GaugeOpts{Name: name, Help: help}
		return prometheus.NewGaugeFunc(opts, func() float64 { return float64(value()) })
	}
	size := "etcd_mvcc_db_total_size_in_use_in_bytes"
	help := "Bytes that the objects take of the embedded store's quota."
	if _, external := st.(*etcd.Store); external {
		size = "etcd_mvcc_db_total_size_in_bytes"
		help = "Size of etcd's data base in bytes; 0: not known."
	}
	return []prometheus.Collector{
		gauge(size, help, func() int64 {
			used, _ := u.Usage()
			return used
		}),
		gauge("etcd_server_quota_backend_bytes", "Quota of the store in bytes; 0: none, or not known.", func() int64 {
			_, quota := u.Usage()
			return quota
		}),
	}
}
