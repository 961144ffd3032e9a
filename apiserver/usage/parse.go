// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Limits of a kubelet's metrics. A node with 500 pods has 300 KB.
const (
	maxBytes      = 32 << 20
	maxLine       = 64 << 10
	maxContainers = 50_000
)

// point is the CPU time since the start, in seconds, and the current memory, in bytes.
type point struct {
	at          time.Time
	start       time.Time // zero: unknown
	cpu, memory float64
	has         parts
}

type parts uint8

const (
	hasCPU parts = 1 << iota
	hasMemory
)

func (p *point) complete() bool { return p.has == hasCPU|hasMemory }

// sample is one scrape of a kubelet.
type sample struct {
	node       point
	containers map[container]*point
}

type container struct{ namespace, pod, name string }

// parse reads the kubelet's /metrics/resource in Prometheus' text format. now replaces missing timestamps. Other
// metrics are skipped.
func parse(r io.Reader, now time.Time) (*sample, error) {
	out := &sample{containers: map[container]*point{}}
	limited := &io.LimitedReader{R: r, N: maxBytes + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		if err := out.line(lines.Text(), now); err != nil {
			return nil, err
		}
	}
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf("read metrics: %w", lines.Err())
	case limited.N <= 0:
		return nil, fmt.Errorf("metrics are longer than %d bytes", maxBytes)
	}
	return out, nil
}

func (s *sample) line(line string, now time.Time) error {
	name, rest, labelled := strings.Cut(line, "{")
	if !labelled {
		name, rest, _ = strings.Cut(line, " ")
	}
	var to *point
	switch name {
	case "node_cpu_usage_seconds_total", "node_memory_working_set_bytes":
		to = &s.node
	case "container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds":
		if !labelled {
			return fmt.Errorf("metric %s names no container", name)
		}
	default:
		return nil
	}
	var labels map[string]string
	if labelled {
		var err error
		if labels, rest, err = readLabels(rest); err != nil {
			return fmt.Errorf("metric %s: %w", name, err)
		}
	}
	value, at, err := readValue(rest, now)
	if err != nil {
		return fmt.Errorf("metric %s: %w", name, err)
	}
	if to == nil {
		key := container{labels["namespace"], labels["pod"], labels["container"]}
		if to = s.containers[key]; to == nil {
			if len(s.containers) >= maxContainers {
				return fmt.Errorf("metrics of more than %d containers", maxContainers)
			}
			to = &point{}
			s.containers[key] = to
		}
	}
	to.set(name, value, at)
	return nil
}

func (p *point) set(name string, value float64, at time.Time) {
	switch {
	case math.IsNaN(value) || value < 0 || value > math.MaxInt64/2:
	case strings.HasSuffix(name, "_cpu_usage_seconds_total"):
		p.cpu = value
		p.at = at
		p.has = p.has | hasCPU // the CPU's time counts for the rate
	case strings.HasSuffix(name, "_memory_working_set_bytes"):
		p.memory = value
		p.has = p.has | hasMemory
	case value < 1e11: // seconds
		p.start = time.UnixMilli(int64(value * 1000))
	}
}

var errLabels = errors.New("its labels are not understood")

// readLabels parses `a="x",b="y"} rest`, after the opening brace.
func readLabels(s string) (labels map[string]string, rest string, err error) {
	labels = map[string]string{}
	for {
		s = strings.TrimLeft(s, " ,")
		if after, done := strings.CutPrefix(s, "}"); done {
			return labels, after, nil
		}
		name, value, ok := strings.Cut(s, `="`)
		if !ok {
			return nil, "", errLabels
		}
		end := closing(value)
		if end < 0 {
			return nil, "", errLabels
		}
		labels[name] = unescape.Replace(value[:end])
		s = value[end+1:]
	}
}

// closing is the index of the closing quote of a label's value; -1: none.
func closing(s string) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// readValue parses "value" or "value milliseconds". A time far from now is replaced by now: metrics are current, and a
// time that JSON cannot represent would break the whole response.
func readValue(s string, now time.Time) (float64, time.Time, error) {
	f := strings.Fields(s)
	if len(f) == 0 || len(f) > 2 {
		return 0, time.Time{}, errors.New("want a value and a time")
	}
	v, err := strconv.ParseFloat(f[0], 64)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("value: %w", err)
	}
	if len(f) == 1 {
		return v, now, nil
	}
	ms, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("time: %w", err)
	}
	at := time.UnixMilli(ms)
	if d := now.Sub(at); d > maxSampleAge || d < -maxSampleAge {
		at = now
	}
	return v, at, nil
}
