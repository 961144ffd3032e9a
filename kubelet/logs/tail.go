// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

const block = 64 << 10

// tailOffset is where the last n entries of f begin. An entry whose newline is missing counts.
func tailOffset(f io.ReaderAt, size int64, n int) (int64, error) {
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
		if _, err := f.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
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

// Tail is the text of a log's last lines, at most limit bytes of it. A log that is not there is empty.
func Tail(path string, lines int, limit int) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the runtime named it
	if errors.Is(err, os.ErrNotExist) || path == "" {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // read only
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	at, err := tailOffset(f, st.Size(), lines)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, at, st.Size()-at))
	if err != nil {
		return "", err
	}
	var out []byte
	for entry := range bytes.Lines(b) {
		if l, err := Parse(entry); err == nil {
			out = append(out, l.Text...)
		}
	}
	if len(out) > limit {
		out = out[len(out)-limit:]
	}
	return string(out), nil
}
