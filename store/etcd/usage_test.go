// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"keelson/store"
	"keelson/store/etcd/etcdtest"
)

// TestFull: an etcd that has raised its alarm refuses what is written, in its own words, and lets deletions through;
// the store stays healthy, and the log says once what to do.
func TestFull(t *testing.T) {
	var log bytes.Buffer
	urls := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	s := open(t, Options{Servers: urls, Log: slog.New(slog.NewTextHandler(&log, nil)), UsageEvery: 1 << 40})
	ctx := t.Context()
	old, err := s.Create(ctx, "/old", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.client.Status(ctx, urls[0])
	if err != nil {
		t.Fatal(err)
	}
	alarms := etcdserverpb.NewMaintenanceClient(s.client.ActiveConnection())
	if _, err := alarms.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action:   etcdserverpb.AlarmRequest_ACTIVATE,
		MemberID: status.Header.MemberId,
		Alarm:    etcdserverpb.AlarmType_NOSPACE,
	}); err != nil {
		t.Fatal(err)
	}
	const words = "etcdserver: mvcc: database space exceeded"
	if _, err := s.Create(ctx, "/new", []byte("1")); !errors.Is(err, store.ErrNoSpace) || err.Error() != words {
		t.Errorf("a new key: got %v, want %s", err, words)
	}
	if _, err := s.Update(ctx, "/old", []byte("2"), old.Revision); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("an update: got %v, want %v", err, store.ErrNoSpace)
	}
	if _, w, err := s.Delete(ctx, "/old", old.Revision); err != nil {
		t.Errorf("a deletion: %v", err)
	} else if err := s.Compact(ctx, w.Revision); err != nil {
		t.Errorf("compaction: %v", err)
	}
	if err := s.Health(ctx); err != nil {
		t.Errorf("health: %v", err)
	}
	for range 2 {
		if err := s.readUsage(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "etcd is full"); n != 1 {
		t.Errorf("the log says %d times that etcd is full:\n%s", n, log.String())
	}
	if used, _ := s.Usage(); used == 0 {
		t.Error("the size is not known")
	}
}

func TestUsageLevels(t *testing.T) {
	for _, c := range []struct {
		size, quota int64
		alarm       bool
		want        usageLevel
	}{
		{79, 100, false, usageLow},
		{80, 100, false, usageHigh},
		{80, 0, false, usageLow},
		{1, 100, true, usageFull},
	} {
		if got := levelOf(c.size, c.quota, c.alarm); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
