// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pressure is how long work had to wait for a resource (pressure stall information).
type Pressure struct {
	Some Stall // at least one task waited
	Full Stall // all tasks waited
}

// Stall is how long tasks waited.
type Stall struct {
	Total                uint64 // microseconds since the start
	Avg10, Avg60, Avg300 float64
}

// Pressures are those of a cgroup or of the machine. A nil one is not known.
type Pressures struct{ CPU, Memory, IO *Pressure }

// MachinePressures reads the pressures of the machine. Kernels may have them turned off.
func MachinePressures() Pressures { return readPressures("/proc/pressure", "") }

// readPressures reads the files cpu, memory and io of a directory, with the end that their names have there.
func readPressures(dir, end string) Pressures {
	read := func(resource string) *Pressure {
		raw, err := os.ReadFile(filepath.Join(dir, resource+end))
		if err != nil {
			return nil
		}
		p, err := parsePressure(string(raw))
		if err != nil {
			return nil
		}
		return p
	}
	return Pressures{CPU: read("cpu"), Memory: read("memory"), IO: read("io")}
}

// parsePressure parses the kernel's lines "some avg10=0.00 avg60=0.00 avg300=0.00 total=0".
func parsePressure(text string) (*Pressure, error) {
	out := &Pressure{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var stall *Stall
		switch words[0] {
		case "some":
			stall = &out.Some
		case "full":
			stall = &out.Full
		default:
			return nil, fmt.Errorf("pressure: %.100q is neither some nor full", words[0])
		}
		for _, word := range words[1:] {
			if err := stall.set(word); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (s *Stall) set(word string) error {
	name, value, _ := strings.Cut(word, "=")
	var err error
	switch name {
	case "avg10":
		s.Avg10, err = strconv.ParseFloat(value, 64)
	case "avg60":
		s.Avg60, err = strconv.ParseFloat(value, 64)
	case "avg300":
		s.Avg300, err = strconv.ParseFloat(value, 64)
	case "total":
		s.Total, err = strconv.ParseUint(value, 10, 64)
	}
	if err != nil {
		return fmt.Errorf("pressure: %.100q: %w", word, err)
	}
	return nil
}
