// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"testing"

	"keelson/cluster/datadir"
)

// TestDefaultQuota: the quota of a machine follows its memory and its disk, whose reserve covers it twice.
func TestDefaultQuota(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		what               string
		memory, disk, want int64
	}{
		{"a large machine has etcd's default", 64 * gib, 1000 * gib, 2 * gib},
		{"memory decides", 1 * gib, 1000 * gib, 64 * mib},
		{"the disk decides", 64 * gib, 20 * gib, 512 * mib},
		{"a small one", 128 * mib, 1 * gib, 32 * mib},
		{"nothing is known", 0, 0, 2 * gib},
	} {
		got := defaultQuota(c.memory, c.disk)
		if got != c.want {
			t.Errorf("%s: %d MiB, want %d", c.what, got>>20, c.want>>20)
		}
		if reserve := diskReserve(c.disk); c.disk > 0 && 2*got > reserve {
			t.Errorf("%s: images leave %d MiB, less than twice the quota", c.what, reserve>>20)
		}
	}
	if MemoryLimit() <= 0 {
		t.Error("this machine has no memory")
	}
	dir := datadir.Dir(t.TempDir())
	for quota, want := range map[int64]int64{5000: 5000, -1: 0} {
		if got := (Config{QuotaBytes: quota}).quota(dir); got != want {
			t.Errorf("--quota-backend-bytes=%d: %d, want %d", quota, got, want)
		}
	}
	if got := (Config{QuotaBytes: 1 << 50}).ImageReserve(dir); got != 2<<50 {
		t.Errorf("images leave %d for a large quota, want %d", got, int64(2<<50))
	}
	if err := (Config{Servers: []string{"http://a:1"}, QuotaBytes: 1}).Validate(); err == nil {
		t.Error("a quota for a store that is not used is accepted")
	}
}
