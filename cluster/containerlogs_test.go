// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"keelson/kubelet/logs"
	"keelson/lib/logrotate"
	"keelson/lib/signal"
	"keelson/runtime/shim/logfile"
)

// sequence checks that each line is the number after the one before, and counts bytes.
type sequence struct {
	t    *testing.T
	rest []byte
	next int
	read atomic.Int64
	more signal.Signal // read has grown
}

func (s *sequence) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte{'\n'})
		if !ok {
			s.rest = append([]byte(nil), s.rest...)
			break
		}
		number, _, _ := bytes.Cut(line, []byte{' '})
		if got, err := strconv.Atoi(string(number)); err != nil || got != s.next {
			return 0, fmt.Errorf("line %.60q where line %d was due", line, s.next)
		}
		s.next++
		s.rest = rest
	}
	s.read.Add(int64(len(p)))
	s.more.Notify()
	return len(p), nil
}

// TestFollowALogAtFullSpeed: the supervisor's writer rotates as fast as it can write, the kubelet's reader follows
// through all rotations, and the log never takes more of the disk than its bound. The writer waits for the reader only
// where it would remove a file that the reader has yet to read.
func TestFollowALogAtFullSpeed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	policy := logrotate.Policy{MaxSize: 4 << 20, MaxFiles: 5}
	const total = 150 << 20
	writer, err := logfile.Open(path, policy)
	if err != nil {
		t.Fatal(err)
	}
	var alive atomic.Bool
	alive.Store(true)
	seq := &sequence{t: t, more: signal.New()}
	followed := make(chan error, 1)
	gone := make(chan struct{})
	go func() { // ends when alive is false
		defer close(gone)
		followed <- logs.Read(t.Context(), path,
			logs.Options{Follow: true, Stdout: true, Alive: func(context.Context) bool { return alive.Load() }}, seq)
	}()
	pad := strings.Repeat("x", 90)
	var chunk []byte
	lines := 0
	written := int64(0)
	most := int64(0)
	begin := time.Now()
	for written < total {
		chunk = chunk[:0]
		for len(chunk) < 60<<10 {
			chunk = fmt.Appendf(chunk, "%d %s\n", lines, pad)
			lines++
		}
		for written-seq.read.Load() > policy.MaxSize && len(followed) == 0 {
			select {
			case <-seq.more.C():
			case <-gone:
			}
		}
		if err := writer.Write(logfile.Stdout, chunk, time.Now()); err != nil {
			t.Fatal(err)
		}
		written += int64(len(chunk))
		most = max(most, onDisk(t, dir))
	}
	took := time.Since(begin)
	if err := writer.Close(time.Now()); err != nil {
		t.Fatal(err)
	}
	alive.Store(false)
	if err := <-followed; err != nil || seq.next != lines {
		t.Errorf("the follower read %d lines, %v; want %d", seq.next, err, lines)
	}
	// One more file may be on its way to be compressed.
	if bound := int64(policy.MaxFiles+1) * policy.MaxSize; most > bound {
		t.Errorf("the log took %d bytes of the disk, more than %d", most, bound)
	}
	t.Logf("%d MB/s with a follower, %d MB on disk at most", written/int64(took/time.Microsecond), most>>20)
	var kept bytes.Buffer
	if err := logs.Read(t.Context(), path, logs.Options{Stdout: true}, &kept); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(kept.String(), " ")
	n, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	end := &sequence{t: t, next: n}
	if _, err := end.Write(kept.Bytes()); err != nil || end.next != lines {
		t.Errorf("what is kept ends with line %d, %v; want %d", end.next, err, lines)
	}
}

func onDisk(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			sum += st.Size()
		}
	}
	return sum
}
