// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// stopping is how far the stop of a container has come. It is kept in the pod's directory: after a restart of the
// kubelet neither the pre-stop hook nor the grace period begins again.
type stopping struct {
	Began  time.Time `json:"began"`            // when the grace period began
	Grace  int64     `json:"grace,omitempty"`  // seconds; 0: kept by an earlier version
	Hooked bool      `json:"hooked,omitempty"` // the pre-stop hook has ended; in memory: it has begun
}

// left returns the rest of a grace period in seconds at a time.
func (s stopping) left(grace int64, now time.Time) int64 {
	gone := max(int64(now.Sub(s.Began)/time.Second), 0)
	return max(grace-gone, min(grace, minGrace))
}

// stopRecords keeps the stopping of a pod's containers on disk.
type stopRecords struct {
	dir string
	log *slog.Logger
}

// file is the file of a container's stopping; empty: its id is no file name.
func (r stopRecords) file(id string) string {
	if id == "" || filepath.Base(id) != id || strings.HasPrefix(id, ".") {
		return ""
	}
	return filepath.Join(r.dir, id)
}

// recall returns what an earlier run of the kubelet kept of a container's stop; false: nothing.
func (r stopRecords) recall(id string) (stopping, bool) {
	var s stopping
	file := r.file(id)
	if file == "" {
		return s, false
	}
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &s) != nil {
		return stopping{}, false // there was none, or it was being written
	}
	return s, true
}

// keep writes a container's stopping. Without it the stop begins again after a restart.
func (r stopRecords) keep(id string, s stopping) {
	file := r.file(id)
	if file == "" {
		return
	}
	b, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o750)
	}
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		r.log.Warn("keep how far a container's stop has come", "container", id, "err", err)
	}
}

// forget removes a container's stopping.
func (r stopRecords) forget(id string) {
	if file := r.file(id); file != "" {
		_ = os.Remove(file) // the pod's directory is removed at last
	}
}
