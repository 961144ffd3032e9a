// SPDX-License-Identifier: Apache-2.0

// Package logfile writes container logs in the CRI format: one line per line of output, with the time, the stream, and
// a tag for full (F) and partial (P) lines. It rotates the log (package logrotate) between two lines, before the write
// that would make a file too large. So no file ever exceeds its maximum size, no line is split or lost, and no timer
// checks file sizes. The supervisor (keelson-shim) calls it; it never reads a log.
package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/logrotate"
)

// MaxLine is the maximum of output bytes in one log line; a longer line is written as partial lines.
const MaxLine = 16 << 10

// Stream is an output stream of a container.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

var names = [...]string{"stdout", "stderr"}

// Writer appends to one container's log. It is not safe for concurrent use. A Writer without a path discards output.
type Writer struct {
	path       string
	f          *os.File
	size       int64 // of f, which has complete lines only
	policy     logrotate.Policy
	compressor compressor
	pending    [2][]byte // the unfinished line of each stream, shorter than MaxLine
}

// Open opens the log at path for appending; a missing one is created with mode 0640. Zero fields of the policy mean
// Kubernetes' defaults.
func Open(path string, policy logrotate.Policy) (*Writer, error) {
	w := &Writer{path: path, policy: policy.Complete()}
	return w, w.Reopen()
}

// SetPolicy changes the policy, from the next line on.
func (w *Writer) SetPolicy(p logrotate.Policy) { w.policy = p.Complete() }

// Reopen opens the log's path again, after the file was moved. After an error the old file stays in use. A symbolic
// link at the path is refused: a pod that mounts the log directory could direct the lines to any file of the host.
func (w *Writer) Reopen() error {
	if w.path == "" {
		return nil
	}
	file, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	size, err := endLine(file)
	if err != nil {
		_ = file.Close() // the reason is err
		return fmt.Errorf("open container log: %w", err)
	}
	if w.f != nil {
		_ = w.f.Close() // each write was checked
	}
	w.f = file
	w.size = size
	return nil
}

// endLine ends a line that a crash cut off, so that the next one is readable, and returns the log's size.
func endLine(file *os.File) (int64, error) {
	st, err := file.Stat()
	if err != nil || st.Size() == 0 {
		return 0, err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], st.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if last[0] == '\n' {
		return st.Size(), nil
	}
	if _, err := file.Write([]byte{'\n'}); err != nil {
		return 0, err
	}
	return st.Size() + 1, nil
}

// Pending returns the unfinished lines, for Restore in another process.
func (w *Writer) Pending() [2][]byte { return w.pending }

// Restore sets the unfinished lines of another Writer.
func (w *Writer) Restore(pending [2][]byte) { w.pending = pending }

// Write appends output that was read at the time now. It keeps an unfinished line until its end, or until Close.
func (w *Writer) Write(stream Stream, p []byte, now time.Time) error {
	if w.f == nil {
		return nil
	}
	stamp := now.AppendFormat(nil, time.RFC3339Nano)
	var out []byte
	rest := p
	for len(rest) > 0 {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		rest = after
		room := MaxLine - len(w.pending[stream])
		for len(line) > room {
			out = appendLine(out, stamp, stream, 'P', w.pending[stream], line[:room])
			line = line[room:]
			w.pending[stream] = w.pending[stream][:0]
			room = MaxLine
		}
		if !whole {
			w.pending[stream] = append(w.pending[stream], line...)
			break
		}
		out = appendLine(out, stamp, stream, 'F', w.pending[stream], line)
		w.pending[stream] = w.pending[stream][:0]
	}
	if len(w.pending[stream]) == 0 {
		w.pending[stream] = nil // free the buffer: most containers write complete lines
	}
	return w.append(out, now)
}

// Close writes the unfinished lines as partial lines and closes the file. It cancels a running compression.
func (w *Writer) Close(now time.Time) error {
	defer w.compressor.stop()
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
	err := w.append(out, now)
	if cerr := w.f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close container log: %w", cerr)
	}
	w.f = nil
	return err
}

// append writes complete lines, and rotates the log where the file would become too large.
func (w *Writer) append(out []byte, now time.Time) error {
	var errs []error
	for len(out) > 0 {
		n := len(out)
		if room := w.policy.MaxSize - w.size; w.policy.MaxSize >= 0 && int64(n) > room {
			n = bytes.LastIndexByte(out[:max(room, 0)], '\n') + 1
			if n == 0 && w.size > 0 {
				errs = append(errs, w.rotate(now))
				continue
			}
			if n == 0 { // a line is longer than the maximum of a file
				n = bytes.IndexByte(out, '\n') + 1
			}
		}
		if err := w.writeLines(out[:n]); err != nil {
			errs = append(errs, err)
			break
		}
		out = out[n:]
	}
	return errors.Join(errs...)
}

// writeLines writes complete lines. If the disk is full it truncates a partly written line.
func (w *Writer) writeLines(lines []byte) error {
	n, err := w.f.Write(lines)
	whole := bytes.LastIndexByte(lines[:n], '\n') + 1
	w.size += int64(whole)
	if err == nil {
		return nil
	}
	if n > whole {
		err = errors.Join(err, w.f.Truncate(w.size))
	}
	return fmt.Errorf("write container log: %w", err)
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
