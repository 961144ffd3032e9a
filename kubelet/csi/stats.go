// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
)

// Usage holds a driver's volume statistics; missing values are nil.
type Usage struct {
	At                        time.Time
	Capacity, Available, Used *int64
	Inodes, InodesFree        *int64
	InodesUsed                *int64
}

const (
	// usageFor is how long a driver's answer is cached.
	usageFor = time.Minute
	// usageWithin is how long a summary waits for a driver.
	usageWithin = 3 * time.Second
)

// measured caches the drivers' answers by pod and volume.
type measured struct {
	mu sync.Mutex
	of map[string]map[string]*reading
}

// reading is one answer. Its lock is held during the call to the driver.
type reading struct {
	mu    sync.Mutex
	at    time.Time
	usage *Usage
}

func (s *measured) reading(uid, name string) *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[uid] == nil {
		s.of[uid] = map[string]*reading{}
	}
	if s.of[uid][name] == nil {
		s.of[uid][name] = &reading{}
	}
	return s.of[uid][name]
}

func (s *measured) forget(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, uid)
}

// Stats returns the driver's statistics of a published volume, at most a minute old; nil: none. A driver that hangs is
// called again after a minute.
func (m *Mounter) Stats(ctx context.Context, uid, name string) *Usage {
	record, driver := m.find(uid, name)
	if driver == nil || !driver.can(csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil
	}
	last := m.stats.reading(uid, name)
	if !last.mu.TryLock() {
		return nil // another caller asks at this moment
	}
	defer last.mu.Unlock()
	if !last.at.IsZero() && time.Since(last.at) < usageFor {
		return last.usage
	}
	_, target := publishedAt(uid, record.Block, record.SpecVolID)
	req := &csiapi.NodeGetVolumeStatsRequest{VolumeId: record.VolumeHandle, VolumePath: driver.pathSeen(target)}
	if record.Mode != "Ephemeral" && driver.can(csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		_, at := record.key().stagedAt(record.Block, record.SpecVolID)
		req.StagingTargetPath = driver.pathSeen(at)
	}
	resp, err := call(ctx, min(usageWithin, driver.within), driver.node.NodeGetVolumeStats, req)
	if ctx.Err() != nil {
		return nil
	}
	last.at = time.Now()
	last.usage = nil
	if err != nil {
		m.cfg.Log.Debug("ask csi driver for the usage of a volume", "driver", driver.name, "volume", record.SpecVolID,
			"err", err)
		return nil
	}
	last.usage = usageOf(resp, last.at)
	return last.usage
}

// find returns a published volume by its name in the pod, and its driver; nil: there is none now.
func (m *Mounter) find(uid, name string) (record, *driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if u := v.pods[uid]; u != nil && u.published && u.names[name] {
			return u.record, m.drivers.get(u.DriverName)
		}
	}
	return record{}, nil
}

func usageOf(resp *csiapi.NodeGetVolumeStatsResponse, at time.Time) *Usage {
	usage := &Usage{At: at}
	for _, v := range resp.GetUsage() {
		total := v.GetTotal()
		free := v.GetAvailable()
		used := v.GetUsed()
		if total < 0 || free < 0 || used < 0 {
			continue
		}
		switch v.GetUnit() {
		case csiapi.VolumeUsage_BYTES:
			usage.Capacity = &total
			usage.Available = &free
			usage.Used = &used
		case csiapi.VolumeUsage_INODES:
			usage.Inodes = &total
			usage.InodesFree = &free
			usage.InodesUsed = &used
		case csiapi.VolumeUsage_UNKNOWN:
		}
	}
	return usage
}
