// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/cluster/datadir"
	"keelson/store"
)

// empty is a store without keys.
type empty struct{ store.Reader }

func (empty) List(context.Context, store.Range) (store.Page, error) {
	return store.Page{Revision: 7}, nil
}

func newSchedule(t *testing.T) (s Schedule, failed *[]string) {
	t.Helper()
	failed = new([]string)
	s = Schedule{
		BackupOptions: BackupOptions{Dir: t.TempDir(), Every: time.Hour, Keep: 3},
		Data:          datadir.Dir(t.TempDir()),
		Store:         empty{},
		Failed:        func(text string) { *failed = append(*failed, text) },
		Metrics:       NewBackupMetrics(),
		Log:           slog.New(slog.DiscardHandler),
	}
	if err := os.Mkdir(s.Data.Sub("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	return s, failed
}

// names are those of the files in the backup directory.
func names(t *testing.T, s Schedule) []string {
	t.Helper()
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Error(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestSchedule: a backup is made every hour, after a restart too, the newest are kept, and a file that is not the
// schedule's stays.
func TestSchedule(t *testing.T) {
	s, failed := newSchedule(t)
	for _, name := range []string{"mine.backup", "keelson-19990101T000000Z.backup.partial-7"} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // from 2000-01-01 on
		ctx := t.Context()
		run := func(of time.Duration) {
			t.Helper()
			stop := make(chan struct{})
			part, cancel := context.WithCancel(ctx)
			go func() { // ends with part
				defer close(stop)
				if err := s.Run(part, func() {}); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(of)
			synctest.Wait()
			cancel()
			<-stop
		}
		run(90 * time.Minute)
		want := []string{"keelson-20000101T000000Z.backup", "keelson-20000101T010000Z.backup", "mine.backup"}
		if got := names(t, s); !slices.Equal(got, want) {
			t.Errorf("after 1.5 hours: %q, want %q", got, want)
		}
		run(29 * time.Minute)
		if got := names(t, s); !slices.Equal(got, want) {
			t.Errorf("a restart made one early: %q, want %q", got, want)
		}
		run(2*time.Hour + time.Minute)
		want = []string{
			"keelson-20000101T020000Z.backup", "keelson-20000101T030000Z.backup", "keelson-20000101T040000Z.backup",
			"mine.backup",
		}
		if got := names(t, s); !slices.Equal(got, want) {
			t.Errorf("after 4 hours: %q, want %q", got, want)
		}
		if got := readBackupState(s.Data).Text(time.Now()); got != "0s ago in "+s.Dir {
			t.Errorf("status: %q", got)
		}
	})
	if len(*failed) > 0 {
		t.Errorf("failed: %q", *failed)
	}
	if info, err := os.Stat(filepath.Join(s.Dir, "keelson-20000101T020000Z.backup")); err != nil || info.Mode() != 0o600 {
		t.Errorf("a backup has secrets: %v, %v", info.Mode(), err)
	}
}

// TestScheduleFails: a directory that is gone is reported and tried again after five minutes, and the next backup
// follows the first that works.
func TestScheduleFails(t *testing.T) {
	s, failed := newSchedule(t)
	gone := s.Dir + ".gone"
	if err := os.Rename(s.Dir, gone); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		stop := make(chan struct{})
		go func() { // ends with ctx
			defer close(stop)
			_ = s.Run(ctx, func() {})
		}()
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if len(*failed) != 2 || !strings.Contains((*failed)[0], "no such file or directory") {
			t.Errorf("reported: %q", *failed)
		}
		if got := readBackupState(s.Data).Text(time.Now()); !strings.HasPrefix(got, "none yet in "+s.Dir+", the last try failed: ") {
			t.Errorf("status: %q", got)
		}
		if err := os.Rename(gone, s.Dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := names(t, s); len(got) != 1 {
			t.Errorf("after the directory came back: %q", got)
		}
		if got := readBackupState(s.Data).Text(time.Now()); got != "1m0s ago in "+s.Dir {
			t.Errorf("status: %q", got)
		}
		cancel()
		<-stop
	})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(s.Metrics.failures)
	if got, err := metrics.Gather(); err != nil || got[0].GetMetric()[0].GetCounter().GetValue() != 2 {
		t.Errorf("failures: %v, %v, want 2", got, err)
	}
}

// TestNewestOfAWrongClock: a backup from the future neither ends the backups nor hides the last one, and what is no
// time is no error.
func TestNewestOfAWrongClock(t *testing.T) {
	s, _ := newSchedule(t)
	for _, name := range []string{"21000101T000000Z", "20230101T000000Z", "20230230T000000Z"} {
		if err := os.WriteFile(filepath.Join(s.Dir, "keelson-"+name+".backup"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
	if at, err := s.newest(); err != nil || !at.Equal(want) {
		t.Errorf("the newest is of %v, %v, want %v", at, err, want)
	}
}

// TestPruneAfterAWrongClock: backups from the future do not make the schedule delete the one that it has made.
func TestPruneAfterAWrongClock(t *testing.T) {
	s, failed := newSchedule(t)
	s.Keep = 1
	const future = "keelson-21000101T000000Z.backup"
	for _, name := range []string{"keelson-19990101T000000Z.backup", future} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // from 2000-01-01 on
		made, err := s.make(t.Context())
		if err != nil || made.IsZero() {
			t.Fatal(made, err)
		}
		want := []string{"keelson-20000101T000000Z.backup", future}
		if got := names(t, s); !slices.Equal(got, want) {
			t.Errorf("left %q, want %q", got, want)
		}
	})
	if len(*failed) > 0 {
		t.Errorf("failed: %q", *failed)
	}
}

// TestScheduleEnds: a start without a schedule forgets the outcome of the last backup.
func TestScheduleEnds(t *testing.T) {
	s, _ := newSchedule(t)
	s.report(time.Now(), nil)
	if err := s.Forget(s.Data); err != nil || readBackupState(s.Data) == nil {
		t.Errorf("a schedule that goes on was forgotten, %v", err)
	}
	for range 2 { // the second time there is nothing
		if err := (BackupOptions{}).Forget(s.Data); err != nil {
			t.Error(err)
		}
	}
	if state := readBackupState(s.Data); state != nil {
		t.Errorf("status shows %+v", state)
	}
}

// TestBackupOptions: a directory that is not there, or a time that is too short, is refused at the start.
func TestBackupOptions(t *testing.T) {
	dir := t.TempDir()
	for want, o := range map[string]BackupOptions{
		"":                                     {Dir: dir, Every: time.Minute},
		"no such file or directory: make it":   {Dir: filepath.Join(dir, "none"), Every: time.Hour},
		"is not a directory":                   {Dir: "/dev/null", Every: time.Hour},
		"--backup-every 1s is too short: 1m0s": {Dir: dir, Every: time.Second},
		"--backup-keep -1 is negative":         {Dir: dir, Every: time.Hour, Keep: -1},
	} {
		err := o.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want ...%s", o, err, want)
		}
	}
}
