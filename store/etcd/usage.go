// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd has a quota of its own, for the file of its data base. Above it, it raises the alarm NOSPACE and refuses all
// writes but deletions until somebody compacts, defragments and disarms it. The log and the metrics warn before.

// usage is what etcd said last.
type usage struct {
	mu          sync.Mutex
	size, quota int64 // 0: not known; etcd reports its quota since 3.6
	warned      usageLevel
}

// usageLevel is how full etcd is.
type usageLevel uint8

const (
	usageLow usageLevel = iota
	usageHigh
	usageFull // etcd has raised its alarm
)

// warnPercent is the part of the quota from which the log warns.
const warnPercent = 80

// levelOf is how full an etcd of this size is.
func levelOf(size, quota int64, alarm bool) usageLevel {
	switch {
	case alarm:
		return usageFull
	case quota > 0 && size*100 >= quota*warnPercent:
		return usageHigh
	default:
		return usageLow
	}
}

// Usage is the size of etcd's data base and its quota, as they were about a minute ago; 0: not known.
func (s *Store) Usage() (used, quota int64) {
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	return s.usage.size, s.usage.quota
}

// readUsageEvery reads the usage, first at once, and then while something is written.
func (s *Store) readUsageEvery(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	before := int64(-1)
	for {
		if now := s.seen.Load(); now != before {
			before = now
			if err := s.readUsage(context.Background()); err != nil {
				s.log.Debug("cannot read the size of etcd", "err", err) // writes report what is wrong
			}
		}
		select {
		case <-tick.C:
		case <-s.done:
			return
		}
	}
}

// readUsage asks every server for its size, and warns once at each level.
func (s *Store) readUsage(ctx context.Context) error {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	var size, quota int64
	for _, endpoint := range s.client.Endpoints() {
		status, err := s.status(bounded, endpoint)
		if err != nil {
			continue // it is down; the others have the same data
		}
		size = max(size, status.DbSize)
		quota = max(quota, status.DbSizeQuota)
	}
	alarms, err := s.client.AlarmList(bounded)
	if err != nil {
		return fmt.Errorf("list alarms: %w", s.meaning(ctx, err))
	}
	full := false
	for _, alarm := range alarms.Alarms {
		full = full || alarm.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	s.keepUsage(size, quota, full)
	return nil
}

// status asks one server, which may be down.
func (s *Store) status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience/5)
	defer cancel()
	status, err := s.client.Status(ctx, endpoint)
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return status, nil
}

func (s *Store) keepUsage(size, quota int64, full bool) {
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	s.usage.size = size
	s.usage.quota = quota
	level := levelOf(size, quota, full)
	before := s.usage.warned
	s.usage.warned = level
	switch {
	case level <= before:
	case level == usageFull:
		s.log.Error("etcd is full and takes only deletions: delete objects, then defragment etcd and disarm its alarm",
			"etcd", s.servers, "size", size, "quota", quota)
	default:
		s.log.Warn("etcd has nearly reached its quota: delete objects and defragment it, or raise its "+
			"--quota-backend-bytes", "etcd", s.servers, "size", size, "quota", quota)
	}
}
