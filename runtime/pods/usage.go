// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"sync"
	"time"
)

// Rate is an earlier reading of a cgroup's CPU time, to compute the rate.
type Rate struct {
	mu   sync.Mutex
	at   time.Time
	cpu  uint64
	rate uint64 // nanocores
}

// minSample is the minimum interval of two readings for a useful rate.
const minSample = time.Second

// Next takes a reading of the nanoseconds used and returns the rate in nanocores; false: there was no reading before.
func (p *Rate) Next(now time.Time, cpu uint64) (rate uint64, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took := now.Sub(p.at); p.at.IsZero() || cpu < p.cpu {
		p.at = now
		p.cpu = cpu
		p.rate = 0
		return 0, false
	} else if took >= minSample {
		p.rate = uint64(float64(cpu-p.cpu) / took.Seconds())
		p.at = now
		p.cpu = cpu
	}
	return p.rate, true
}

// Disk caches the usage of a container's writable layer: counting it walks the tree.
type Disk struct {
	mu   sync.Mutex
	took time.Duration
	last DiskUsage
}

// DiskUsage is a size at a time.
type DiskUsage struct {
	At            time.Time
	Bytes, Inodes int64
}

// A writable layer is counted at most every minDiskAge. When counting is slow (a container may make many files), it is
// counted less often, so that it takes at most a hundredth of the time.
const (
	minDiskAge = 9 * time.Second // the kubelet asks every 10 s
	maxDiskAge = 10 * time.Minute
	diskShare  = 100
)

// Usage returns the usage, counted again by count when the last count is too old.
func (d *Disk) Usage(now time.Time, count func() (bytes, inodes int64, err error)) (DiskUsage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.last.At) > min(max(minDiskAge, diskShare*d.took), maxDiskAge) {
		bytes, inodes, err := count()
		if err != nil {
			return DiskUsage{}, err
		}
		d.took = time.Since(now)
		d.last = DiskUsage{At: now, Bytes: max(0, bytes), Inodes: max(0, inodes)}
	}
	return d.last, nil
}
