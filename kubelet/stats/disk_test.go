// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestMeterMeasuresRarely(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		meter := NewMeter()
		measure := func() int64 {
			t.Helper()
			d, err := meter.Measure(t.Context(), dir, false)
			if err != nil {
				t.Fatal(err)
			}
			return d.Inodes
		}
		before := measure()
		if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := measure(); got != before {
			t.Errorf("after 5 s: %d inodes, want the last measure, %d", got, before)
		}
		time.Sleep(5 * time.Second)
		if got := measure(); got != before+1 {
			t.Errorf("after 10 s: %d inodes, want a new measure, %d", got, before+1)
		}
		meter.readings[dir].took = 3 * time.Second // a walk that takes long is done rarely
		time.Sleep(4 * time.Minute)
		if err := os.Remove(filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if got := measure(); got != before+1 {
			t.Errorf("4 minutes after a walk of 3 s: %d inodes, want the last measure, %d", got, before+1)
		}
		meter.Retain(func(string) bool { return false })
		if got := measure(); got != before {
			t.Errorf("after it was forgotten: %d inodes, want %d", got, before)
		}
	})
}
