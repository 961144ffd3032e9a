// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/klauspost/compress/zstd"

	"keelson/event"
	"keelson/lib/memory"
)

// Stories without new marks are packed: several hundred small objects become one. That takes a tenth of the memory, and
// avoids heap pages that a few long-lived small objects would keep in use.
const (
	restAfter = time.Minute
	restMin   = 256     // records; fewer are not worth the work
	restBytes = 1 << 20 // limits the unpacked size of one record, far above the possible size of its marks
)

// packed holds marks as JSON, one after another, compressed.
type packed struct {
	marks int
	bytes []byte
}

func (p packed) unpack() []event.Event {
	if p.marks == 0 {
		return nil
	}
	d, err := newDecoder()
	if err != nil {
		return nil // cannot happen: the options are constant
	}
	defer d.Close()
	text, err := d.DecodeAll(p.bytes, nil)
	if err != nil {
		return nil // cannot happen: only pack writes it
	}
	return p.read(text)
}

func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(restBytes))
}

// read parses the marks in p's decompressed text; it keeps no reference to text.
func (p packed) read(text []byte) []event.Event {
	out := make([]event.Event, 0, p.marks)
	for line := range bytes.Lines(text) {
		if m, err := event.Decode(line, Details); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// packer packs stories one after another with reused buffers: separate buffers for ten thousand stories would be
// hundreds of megabytes of garbage in an idle cluster.
type packer struct {
	zstd   *zstd.Encoder
	unzstd *zstd.Decoder
	json   *json.Encoder // writes into text
	text   bytes.Buffer
	out    []byte
	before []byte // the decompressed earlier marks
}

func newPacker() (*packer, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(64<<10))
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

// unpack is packed.unpack with reused buffers.
func (p *packer) unpack(of packed) []event.Event {
	if of.marks == 0 {
		return nil
	}
	text, err := p.unzstd.DecodeAll(of.bytes, p.before[:0])
	if err != nil {
		return nil // cannot happen: only pack writes it
	}
	p.before = text
	return of.read(text)
}

// pack returns the packed marks and the size of their text; false: they are left unpacked.
func (p *packer) pack(marks []event.Event) (packed, int, bool) {
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

// restLaterLocked starts the timer for rest after new marks. Without new marks there is no timer.
func (t *Ledger) restLaterLocked() {
	if !t.timer && len(t.pods.records) > restMin {
		t.timer = true
		time.AfterFunc(restAfter, t.rest)
	}
}

// rest packs records that have had no marks for restAfter. It holds the lock only for short times, so marks may arrive
// meanwhile.
func (t *Ledger) rest() {
	p, err := newPacker()
	if err != nil {
		// cannot happen: the options are constant; the timer stays off
		t.log.Error("stories are not packed", "err", err)
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
	t.timer = false // one run at a time
	if later {
		t.restLaterLocked()
	}
}

// resting lists the records to pack, and reports whether others must be packed later.
func (t *Ledger) resting() (out []*record, later bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range []*recordCache{&t.pods, &t.owners} {
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

// packOne, called only by rest, packs the current first marks of r and returns the approximate number of bytes freed.
func (t *Ledger) packOne(by *packer, r *record) int {
	t.mu.Lock()
	before := r.packed
	marks := r.first // marks are only appended
	t.mu.Unlock()
	p, size, ok := by.pack(append(by.unpack(before), marks...))
	if !ok || p.marks != before.marks+len(marks) {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(r.first) < len(marks) {
		return 0 // the record was packed meanwhile
	}
	r.packed = p
	r.first = append([]event.Event(nil), r.first[len(marks):]...)
	return size
}
