// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"keelson/cluster/version"
)

// entry is a line of a history file. Machines of one kind differ two- and threefold from day to day, so each line has
// what is needed to compare it with another.
type entry struct {
	Time    time.Time `json:"time"`
	Program string    `json:"program"` // its revision
	Machine string    `json:"machine"` // "2 x AMD EPYC"
	// Load is the load average of the last minute when the measurement began; Calibration is how much one processor
	// hashed then, in MB/s.
	Load        string `json:"load"`
	Calibration int    `json:"calibration"`
	Result
}

// history appends figures to a file; nil: to none.
type history struct {
	file *os.File
	now  entry
}

// openHistory opens the file for appending, and looks at the machine while it is idle; "": nil.
func openHistory(path string) (*history, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &history{file: file, now: entry{
		Time:        time.Now().UTC().Truncate(time.Second),
		Program:     version.Revision(),
		Machine:     fmt.Sprintf("%d x %s", runtime.NumCPU(), field("/proc/cpuinfo", "model name")),
		Load:        firstWord("/proc/loadavg"),
		Calibration: calibrate(),
	}}, nil
}

// add appends the figures in one write, so that two programs may share a file.
func (h *history) add(results []Result) error {
	if h == nil || len(results) == 0 {
		return nil
	}
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, r := range results {
		h.now.Result = r
		if err := enc.Encode(h.now); err != nil {
			return err
		}
	}
	_, err := h.file.Write(lines.Bytes())
	return err
}

func (h *history) close() error {
	if h == nil {
		return nil
	}
	return h.file.Close()
}

// calibrate returns how many MB one processor hashes in a second.
func calibrate() int {
	block := make([]byte, 1<<20)
	hash := sha256.New()
	const span = 100 * time.Millisecond
	blocks := 0
	begin := time.Now()
	for time.Since(begin) < span {
		_, _ = hash.Write(block)
		blocks++
	}
	return int(float64(blocks<<20) / 1e6 / time.Since(begin).Seconds())
}

// field returns the value of the first line "name : value" of a file of /proc; "unknown": there is none.
func field(path, name string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func firstWord(path string) string {
	text, _ := os.ReadFile(path)
	word, _, _ := strings.Cut(string(text), " ")
	return word
}
