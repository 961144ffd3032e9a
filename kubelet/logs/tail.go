// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

const block = 64 << 10

// tailOffset returns the offset of the last n entries of readerAt. An entry without a newline counts.
func tailOffset(readerAt io.ReaderAt, size int64, n int) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	buf := make([]byte, block)
	end := size
	left := n
	first := true
	for end > 0 {
		start := max(end-block, 0)
		chunk := buf[:end-start]
		if _, err := readerAt.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("read log: %w", err)
		}
		if first && chunk[len(chunk)-1] == '\n' {
			chunk = chunk[:len(chunk)-1] // the newline that ends the last entry
		}
		first = false
		for {
			i := bytes.LastIndexByte(chunk, '\n')
			if i < 0 {
				break
			}
			left--
			if left == 0 {
				return start + int64(i) + 1, nil
			}
			chunk = chunk[:i]
		}
		end = start
	}
	return 0, nil
}

// Tail returns the text of a log's last lines, at most limit bytes. A missing log is empty.
func Tail(path string, lines int, limit int) (string, error) {
	if path == "" {
		return "", nil
	}
	n := int64(lines)
	out := &lastBytes{limit: limit}
	err := Read(context.Background(), path, Options{Tail: &n, Stdout: true, Stderr: true}, out)
	return string(out.kept()), err
}

// lastBytes is a writer that keeps only the last bytes.
type lastBytes struct {
	b     []byte
	limit int
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if len(l.b) > 2*l.limit {
		l.b = append(l.b[:0], l.kept()...)
	}
	return len(p), nil
}

func (l *lastBytes) kept() []byte { return l.b[max(len(l.b)-l.limit, 0):] }
