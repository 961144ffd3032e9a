// SPDX-License-Identifier: Apache-2.0

// Package logfile writes a container's output as the kubelet reads it: one line per line of output, with the time, the
// stream, and a tag that tells whether the line is whole. It rotates the log by package logrotate, at the write that would make a file
// too large and between two lines: so no file exceeds its size at any time, no line is torn or lost, and nobody has to look at files
// on a timer. The supervisor calls it; it never reads a log.
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
	size    int64 // of f: whole lines only
	policy  logrotate.Policy
	packer  packer
	pending [2][]byte // the unfinished line of each stream, shorter than MaxLine
}

// Open opens the log at path for appending, making it with mode 0640 when it is missing. Zero fields of the policy are Kubernetes'
// defaults.
func Open(path string, policy logrotate.Policy) (*Writer, error) {
	w := &Writer{path: path, policy: policy.Complete()}
	return w, w.Reopen()
}

// SetPolicy changes the bounds of the log, from its next line on.
func (w *Writer) SetPolicy(p logrotate.Policy) { w.policy = p.Complete() }

// Reopen opens the log's path anew, after someone moved the file away. The old file stays in use when that fails. A symbolic link in the
// log's place, which a pod with the directory of logs may have put there, is refused: lines would go to a file of the host.
func (w *Writer) Reopen() error {
	if w.path == "" {
		return nil
	}
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	size, err := endLine(f)
	if err != nil {
		_ = f.Close() // the reason is err
		return fmt.Errorf("open container log: %w", err)
	}
	if w.f != nil {
		_ = w.f.Close() // every line was written with its own error check
	}
	w.f, w.size = f, size
	return nil
}

// endLine ends a line that a crash cut off, so that the next one can be read, and returns the log's size.
func endLine(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return 0, err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], st.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if last[0] == '\n' {
		return st.Size(), nil
	}
	if _, err := f.Write([]byte{'\n'}); err != nil {
		return 0, err
	}
	return st.Size() + 1, nil
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
	return w.append(out, now)
}

// Close writes the unfinished lines, as parts, and closes the file. A compression that is under way is given up.
func (w *Writer) Close(now time.Time) error {
	defer w.packer.stop()
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

// append writes whole lines, going over to a new file where the present one would exceed its size.
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
			if n == 0 { // a line that is longer than a file may be
				n = bytes.IndexByte(out, '\n') + 1
			}
		}
		if err := w.put(out[:n]); err != nil {
			errs = append(errs, err)
			break
		}
		out = out[n:]
	}
	return errors.Join(errs...)
}

// put writes whole lines. Of those that did not fit on the disk none stays in part.
func (w *Writer) put(lines []byte) error {
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
