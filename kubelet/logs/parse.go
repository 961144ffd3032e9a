// SPDX-License-Identifier: Apache-2.0

// Package logs reads containers' log files in CRI's format: all entries, those since a time, or the last lines; and
// follows them across rotations. The kubelet's server and the termination messages use it. Only Rotator, for runtimes
// without log rotation, renames and removes log files; nothing here writes entries.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Stream is the output stream of an entry.
type Stream string

// Streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Line is one entry: "2016-10-06T00:17:09.669794202Z stdout F the text\n". A long line of a container's output comes as
// several entries with Partial set, ended by one without.
type Line struct {
	Time    time.Time
	Stream  Stream
	Partial bool
	// Text is the container's output; it ends with a newline unless Partial. It aliases the parsed bytes.
	Text []byte
}

var errFormat = errors.New("not in CRI log format")

// Parse parses one entry. b may end with its newline.
func Parse(b []byte) (Line, error) {
	var line Line
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok {
		return line, fmt.Errorf("%w: no timestamp in %.80q", errFormat, b)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return line, fmt.Errorf("%w: timestamp %.40q", errFormat, stamp)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != string(Stdout) && string(stream) != string(Stderr) {
		return line, fmt.Errorf("%w: stream %.40q", errFormat, stream)
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		tags = bytes.TrimSuffix(rest, []byte{'\n'})
		text = nil
		if len(tags) == 0 {
			return line, fmt.Errorf("%w: no tag in %.80q", errFormat, b)
		}
		if bytes.HasSuffix(rest, []byte{'\n'}) {
			text = []byte{'\n'}
		}
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	line = Line{Time: at, Stream: Stream(stream), Text: text}
	switch string(first) {
	case "P":
		line.Partial = true
		line.Text = bytes.TrimSuffix(text, []byte{'\n'})
	case "F":
	default:
		return Line{}, fmt.Errorf("%w: tag %.40q", errFormat, tags)
	}
	return line, nil
}
