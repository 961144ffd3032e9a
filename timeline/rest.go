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
	d, err := newDecoder()
	if err != nil {
		return nil // its options are always the same
	}
	defer d.Close()
	text, err := d.DecodeAll(p.bytes, nil)
	if err != nil {
		return nil // nobody but pack made it
	}
	return p.read(text)
}

func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(restBytes))
}

// read reads the marks in what p's bytes decompress to; it keeps nothing of text.
func (p packed) read(text []byte) []mark.Mark {
	out := make([]mark.Mark, 0, p.marks)
	for line := range bytes.Lines(text) {
		if m, err := mark.Decode(line); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// packer packs one story after the other in the same memory: ten thousand of them, each in its own, would be hundreds of megabytes of garbage
// in a cluster where nothing happens.
type packer struct {
	zstd   *zstd.Encoder
	unzstd *zstd.Decoder
	json   *json.Encoder // into text
	text   bytes.Buffer
	out    []byte
	before []byte // what earlier packed marks decompress to
}

func newPacker() (*packer, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(64<<10))
	if err != nil {
		return nil, err
	}
	d, err := newDecoder()
	if err != nil {
		return nil, err
	}
	p := &packer{zstd: e, unzstd: d}
	p.json = json.NewEncoder(&p.text)
	return p, nil
}

func (p *packer) close() {
	_ = p.zstd.Close()
	p.unzstd.Close()
}

// unpack is packed's.
func (p *packer) unpack(of packed) []mark.Mark {
	if of.marks == 0 {
		return nil
	}
	text, err := p.unzstd.DecodeAll(of.bytes, p.before[:0])
	if err != nil {
		return nil // nobody but pack made it
	}
	p.before = text
	return of.read(text)
}

// pack returns the packed form of marks and how long they were as text; false: they are not packed.
func (p *packer) pack(marks []mark.Mark) (packed, int, bool) {
	p.text.Reset()
	for i := range marks {
		if err := p.json.Encode(&marks[i]); err != nil {
			return packed{}, 0, false
		}
	}
	if p.text.Len() > restBytes {
		return packed{}, 0, false
	}
	p.out = p.zstd.EncodeAll(p.text.Bytes(), p.out[:0])
	return packed{len(marks), bytes.Clone(p.out)}, p.text.Len(), true
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
	p, err := newPacker()
	if err != nil {
		t.log.Error("stories are not packed", "err", err) // its options are always the same; the timer stays off
		return
	}
	defer p.close()
	freed := 0
	all, later := t.resting()
	for _, r := range all {
		freed += t.packOne(p, r)
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
func (t *Timeline) packOne(by *packer, r *record) int {
	t.mu.Lock()
	before, marks := r.packed, r.first // marks are only added to it
	t.mu.Unlock()
	p, size, ok := by.pack(append(by.unpack(before), marks...))
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
