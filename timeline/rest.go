// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/klauspost/compress/zstd"

	"keelson/lib/mark"
	"keelson/lib/memory"
)

// Stories that nothing happens to any more are packed: some hundred small objects each become one. That is a tenth of the memory, and small
// objects that stay among thousands that went would keep whole pages of the heap.
const (
	restAfter = time.Minute
	restMin   = 256     // pods; fewer are not worth it
	restBytes = 1 << 20 // bounds what one record unpacks to, far above what marks can say
)

// packed are marks at rest: JSON, one after the other, compressed.
type packed struct {
	marks int
	bytes []byte
}

func (p packed) unpack() []mark.Mark {
	if p.marks == 0 {
		return nil
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(restBytes))
	if err != nil {
		return nil // its options are always the same
	}
	defer d.Close()
	text, err := d.DecodeAll(p.bytes, nil)
	if err != nil {
		return nil // nobody but pack made it
	}
	out := make([]mark.Mark, 0, p.marks)
	for line := range bytes.Lines(text) {
		if m, err := mark.Decode(line); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// pack returns the packed form of marks and how long they were as text; false: they are not packed.
func pack(e *zstd.Encoder, marks []mark.Mark) (packed, int, bool) {
	var text bytes.Buffer
	w := json.NewEncoder(&text)
	for i := range marks {
		if err := w.Encode(&marks[i]); err != nil {
			return packed{}, 0, false
		}
	}
	if text.Len() > restBytes {
		return packed{}, 0, false
	}
	return packed{len(marks), bytes.Clone(e.EncodeAll(text.Bytes(), nil))}, text.Len(), true
}

// restLaterLocked has the timeline look for stories at rest, after marks came; none come, and nothing runs.
func (t *Timeline) restLaterLocked() {
	if !t.timer && len(t.pods.records) > restMin {
		t.timer = true
		time.AfterFunc(restAfter, t.rest)
	}
}

// rest packs what has not been touched for restAfter. Marks come meanwhile: the lock is held for moments only.
func (t *Timeline) rest() {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(64<<10))
	if err != nil {
		t.log.Error("stories are not packed", "err", err) // its options are always the same; the timer stays off
		return
	}
	defer func() { _ = e.Close() }()
	freed := 0
	all, later := t.resting()
	for _, r := range all {
		freed += t.packOne(e, r)
	}
	memory.Dropped(freed)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = false // one at a time
	if later {
		t.restLaterLocked()
	}
}

// resting lists the records at rest, and tells whether others will be.
func (t *Timeline) resting() (out []*record, later bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range []*shelf{&t.pods, &t.owners} {
		for el := s.order.Back(); el != nil; el = el.Prev() {
			r, ok := el.Value.(*record)
			switch {
			case !ok || len(r.first) == 0:
			case time.Since(r.touched) >= restAfter:
				out = append(out, r)
			default:
				later = true
			}
		}
	}
	return out, later
}

// packOne, which only rest calls, packs the first marks of r as they are now, and returns about how many bytes that frees.
func (t *Timeline) packOne(e *zstd.Encoder, r *record) int {
	t.mu.Lock()
	before, marks := r.packed, r.first // marks are only added to it
	t.mu.Unlock()
	p, size, ok := pack(e, append(before.unpack(), marks...))
	if !ok || p.marks != before.marks+len(marks) {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(r.first) < len(marks) {
		return 0 // another packing came first
	}
	r.packed, r.first = p, append([]mark.Mark(nil), r.first[len(marks):]...)
	return size
}
