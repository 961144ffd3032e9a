// SPDX-License-Identifier: Apache-2.0

// Package logfile writes a container's output as the kubelet reads it: one line per line of output, with the time, the
// stream, and a tag that tells whether the line is whole. The supervisor calls it; it never reads a log.
package logfile

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// MaxLine is how many bytes of output one log line holds; a longer line is written in parts.
const MaxLine = 16 << 10

// Stream is an output of a container.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

var names = [...]string{"stdout", "stderr"}

// Writer appends to one container's log. It is not safe for concurrent use. A Writer without a path throws output away.
type Writer struct {
	path    string
	f       *os.File
	pending [2][]byte // the unfinished line of each stream, shorter than MaxLine
}

// Open opens the log at path for appending, making it with mode 0640 when it is missing.
func Open(path string) (*Writer, error) {
	w := &Writer{path: path}
	return w, w.Reopen()
}

// Reopen opens the log's path anew, after someone moved the file away. The old file stays in use when that fails.
func (w *Writer) Reopen() error {
	if w.path == "" {
		return nil
	}
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	if w.f != nil {
		_ = w.f.Close() // every line was written with its own error check
	}
	w.f = f
	return nil
}

// Pending returns what Restore needs to go on in another process: the unfinished lines.
func (w *Writer) Pending() [2][]byte { return w.pending }

// Restore takes up the unfinished lines of another Writer.
func (w *Writer) Restore(pending [2][]byte) { w.pending = pending }

// Write appends output that was read at the time now. An unfinished line waits for its end, or for Close.
func (w *Writer) Write(s Stream, p []byte, now time.Time) error {
	if w.f == nil {
		return nil
	}
	stamp := now.AppendFormat(nil, time.RFC3339Nano)
	var out []byte
	rest := p
	for len(rest) > 0 {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		rest = after
		room := MaxLine - len(w.pending[s])
		for len(line) > room {
			out = appendLine(out, stamp, s, 'P', w.pending[s], line[:room])
			line, w.pending[s], room = line[room:], w.pending[s][:0], MaxLine
		}
		if !whole {
			w.pending[s] = append(w.pending[s], line...)
			break
		}
		out = appendLine(out, stamp, s, 'F', w.pending[s], line)
		w.pending[s] = w.pending[s][:0]
	}
	if len(w.pending[s]) == 0 {
		w.pending[s] = nil // most containers end their lines: keep no buffer for them
	}
	return w.append(out)
}

// Close writes the unfinished lines, as parts, and closes the file.
func (w *Writer) Close(now time.Time) error {
	if w.f == nil {
		return nil
	}
	stamp := now.AppendFormat(nil, time.RFC3339Nano)
	var out []byte
	for s := range w.pending {
		if len(w.pending[s]) > 0 {
			out = appendLine(out, stamp, Stream(s), 'P', w.pending[s], nil)
			w.pending[s] = nil
		}
	}
	err := w.append(out)
	if cerr := w.f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close container log: %w", cerr)
	}
	w.f = nil
	return err
}

func (w *Writer) append(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	if _, err := w.f.Write(out); err != nil {
		return fmt.Errorf("write container log: %w", err)
	}
	return nil
}

func appendLine(out, stamp []byte, s Stream, tag byte, pending, line []byte) []byte {
	out = append(out, stamp...)
	out = append(out, ' ')
	out = append(out, names[s]...)
	out = append(out, ' ', tag, ' ')
	out = append(out, pending...)
	out = append(out, line...)
	return append(out, '\n')
}
