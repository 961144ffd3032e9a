// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/apiserver/objects"
	"keelson/cluster/datadir"
	"keelson/lib/option"
	"keelson/store"
	"keelson/store/backup"
)

// BackupOptions say when backups are made. They are made if Dir is set.
type BackupOptions struct {
	Dir   string
	Every time.Duration
	Keep  int
}

// Rows are the options.
func (o *BackupOptions) Rows() []option.Row {
	return []option.Row{
		option.New(&o.Dir, "backup-dir", "", "write backups on a schedule into the directory `DIR`, on another disk"),
		option.New(&o.Every, "backup-every", 6*time.Hour, "time between two of them"),
		option.New(&o.Keep, "backup-keep", 28, "how many of them are kept; 0: all"),
	}
}

// Validate returns one sentence for each error.
func (o BackupOptions) Validate() error {
	switch {
	case o.Dir == "":
		return nil
	case o.Every < minBackupEvery:
		return fmt.Errorf("--backup-every %v is too short: %v at least", o.Every, minBackupEvery)
	case o.Keep < 0:
		return fmt.Errorf("--backup-keep %d is negative; 0 keeps all", o.Keep)
	}
	info, err := os.Stat(o.Dir)
	if err != nil {
		return fmt.Errorf("--backup-dir: %w: make it, readable for root alone", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("--backup-dir %s is not a directory", o.Dir)
	}
	return nil
}

// Forget removes what is kept of an earlier schedule, if there is none now: keelson status would show it forever.
func (o BackupOptions) Forget(data datadir.Dir) error {
	if o.Dir != "" {
		return nil
	}
	err := os.Remove(data.Sub(datadir.BackupState))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

const (
	minBackupEvery = time.Minute
	// backupRetry is the time after which a backup that failed is tried again, if the next one is not due before.
	backupRetry = 5 * time.Minute
	// backupTime is the form of the time in a backup's name, which sorts by time.
	backupTime = "20060102T150405Z"
)

// backupForm are the names that Schedule gives. It deletes no other file.
var backupForm = regexp.MustCompile(`^keelson-[0-9]{8}T[0-9]{6}Z\.backup$`)

// partialForm are the names of files that an interrupted backup left.
var partialForm = regexp.MustCompile(`^keelson-[0-9]{8}T[0-9]{6}Z\.backup\.partial-[0-9]+$`)

// Schedule makes backups of a running server's store.
type Schedule struct {
	BackupOptions
	Data  datadir.Dir  // its keys are part of a backup
	Store store.Reader // as it is on disk
	// Failed is called for each backup that failed.
	Failed  func(text string)
	Metrics *BackupMetrics
	Log     *slog.Logger
}

// Run makes backups until ctx ends. The first one is due Every after the newest one in Dir, so that a restart delays
// none.
func (s Schedule) Run(ctx context.Context, ready func()) error {
	last, err := s.newest()
	if err == nil && !last.IsZero() {
		s.Metrics.last.Set(float64(last.Unix()))
	}
	ready()
	for {
		due := min(time.Until(last.Add(s.Every)), s.Every) // the clock may have gone back
		if err != nil {
			due = max(due, min(backupRetry, s.Every))
		}
		timer := time.NewTimer(due)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		var made time.Time
		made, err = s.make(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the process ends
		}
		if !made.IsZero() {
			last = made // also if an old one could not be deleted
		}
		s.report(last, err)
	}
}

// make makes one backup, and deletes those that are too many. The time is zero if none was made.
func (s Schedule) make(ctx context.Context) (time.Time, error) {
	now := time.Now().UTC().Truncate(time.Second)
	path := filepath.Join(s.Dir, "keelson-"+now.Format(backupTime)+".backup")
	begin := time.Now()
	sum, err := saveBackup(s.Data, path, func(w *backup.Writer) (int64, error) {
		return backup.Walk(ctx, s.Store, objects.Root, w.KV)
	})
	if err != nil {
		return time.Time{}, err
	}
	s.Log.Info("backup written", "file", path, "objects", sum.Keys, "took", time.Since(begin))
	return now, s.prune(filepath.Base(path))
}

// prune deletes the oldest backups beyond Keep, and what interrupted ones left. made is the name of the newest. Names
// after it are of a time when the clock was wrong, or it is wrong now: these backups are neither counted nor deleted.
func (s Schedule) prune(made string) error {
	whole, partial, err := s.files()
	if err != nil {
		return err
	}
	whole = slices.DeleteFunc(whole, func(name string) bool { return name > made })
	if s.Keep == 0 || len(whole) < s.Keep {
		whole = nil
	} else {
		whole = whole[:len(whole)-s.Keep]
	}
	var errs []error
	for _, name := range append(whole, partial...) {
		if err := os.Remove(filepath.Join(s.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("delete an old backup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// files are the names of the backups in Dir, the oldest first, and those of interrupted ones. No backup is made
// meanwhile.
func (s Schedule) files() (whole, partial []string, err error) {
	entries, err := os.ReadDir(s.Dir) // sorted
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch {
		case backupForm.MatchString(e.Name()):
			whole = append(whole, e.Name())
		case partialForm.MatchString(e.Name()):
			partial = append(partial, e.Name())
		}
	}
	return whole, partial, nil
}

// newest is the time of the newest backup in Dir; zero: there is none. One from the future does not count: a clock that
// was wrong must not end the backups.
func (s Schedule) newest() (time.Time, error) {
	whole, _, err := s.files()
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	for _, name := range slices.Backward(whole) {
		text := strings.TrimSuffix(strings.TrimPrefix(name, "keelson-"), ".backup")
		if at, err := time.Parse(backupTime, text); err == nil && !at.After(now) { // February has no 30th
			return at, nil
		}
	}
	return time.Time{}, nil
}

// BackupState is the outcome of the last scheduled backup, as `keelson status` shows it.
type BackupState struct {
	Dir string `json:"dir"`
	// Last is the time of the newest whole backup; zero: there is none.
	Last time.Time `json:"last"`
	// Error says why the last one failed; empty: it did not.
	Error string `json:"error,omitempty"`
}

func (s Schedule) report(last time.Time, err error) {
	state := BackupState{Dir: s.Dir, Last: last}
	if err != nil {
		state.Error = err.Error()
		s.Metrics.failures.Inc()
		s.Log.Error("backup failed", "err", err)
		s.Failed(err.Error())
	} else {
		s.Metrics.last.Set(float64(last.Unix()))
	}
	text, err := json.Marshal(state)
	if err == nil {
		err = datadir.WriteIfChanged(s.Data.Sub(datadir.BackupState), text)
	}
	if err != nil {
		s.Log.Error("the outcome of the backup is not kept for keelson status", "err", err)
	}
}

// readBackupState reads what report has written; nil: nothing.
func readBackupState(dir datadir.Dir) *BackupState {
	text, err := os.ReadFile(dir.Sub(datadir.BackupState))
	if err != nil {
		return nil
	}
	state := new(BackupState)
	if err := json.Unmarshal(text, state); err != nil {
		state.Error = "its outcome cannot be read: " + err.Error()
	}
	return state
}

// Text says when the last backup was made, and what is wrong.
func (s *BackupState) Text(now time.Time) string {
	line := "none yet in " + s.Dir
	if !s.Last.IsZero() {
		line = fmt.Sprintf("%v ago in %s", now.Sub(s.Last).Round(time.Second), s.Dir)
	}
	if s.Error != "" {
		line += ", the last try failed: " + s.Error
	}
	return line
}

// BackupMetrics are the metrics of scheduled backups.
type BackupMetrics struct {
	last     prometheus.Gauge
	failures prometheus.Counter
}

// NewBackupMetrics makes the metrics of one cluster.
func NewBackupMetrics() *BackupMetrics {
	return &BackupMetrics{
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keelson_backup_last_success_timestamp_seconds",
			Help: "Time of the newest scheduled backup; 0: none was made.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keelson_backup_failures_total",
			Help: "Scheduled backups that failed.",
		}),
	}
}

// Collectors are the metrics.
func (m *BackupMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.last, m.failures}
}
