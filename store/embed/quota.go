// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"keelson/store"
)

// The store counts what its keys hold now: keys and values, and an overhead for each. History and what the engine has
// not merged yet are not in it; they are bounded by themselves (compact.go). The sum is exact: the committer changes
// it with each write, and each batch stores it with the writes that it counts, with their last revision. A sum whose
// revision is not the store's is counted again at the start: of a directory that an older program wrote, that was
// imported, or that lost writes.

// keyOverhead is about what the store and the caches keep for a key in addition to its bytes.
const keyOverhead = 256

// reservePart is the part of the quota that store.SmallReserve adds to it and store.LeaveRoom takes from it.
const reservePart = 8

// warnFrom and calmBelow are the parts of the quota, in percent, at which the log warns, and below which it may warn
// again.
const (
	warnFrom  = 80
	calmBelow = 70
)

func costOf(kv store.KV) int64 { return int64(len(kv.Key)+len(kv.Value)) + keyOverhead }

// usage is what the keys hold, and the quota for it.
type usage struct {
	quota int64 // 0: none
	log   *slog.Logger

	used    atomic.Int64 // written by the committer
	sparing atomic.Bool  // writes that take room are refused
	warned  int          // how much of the quota the log has warned of; the committer's own
}

// Usage is the number of bytes that the keys hold now, and the quota for them; 0: no quota.
func (s *Store) Usage() (used, quota int64) { return s.usage.used.Load(), s.usage.quota }

// Spare makes the store refuse writes as above the quota, whatever it holds: the disk is nearly full.
func (s *Store) Spare(on bool) { s.usage.sparing.Store(on) }

// chargeChange is charge for what r decided on cur.
func (u *usage) chargeChange(r *request, c change, cur store.KV, found bool) error {
	var old, now *store.KV
	if found {
		old = &cur
	}
	if c.typ != store.Deleted {
		now = &store.KV{Key: r.key, Value: c.value}
	}
	return u.charge(old, now, r.reserved)
}

// charge counts a write that replaces old by kv, either of which may be absent. Above the quota it returns
// store.ErrNoSpace and counts nothing, unless the write takes no room or may use more. The committer calls it.
func (u *usage) charge(old, kv *store.KV, reserved store.Reserve) error {
	more := int64(0)
	if kv != nil {
		more = costOf(*kv)
	}
	if old != nil {
		more -= costOf(*old)
	}
	used := u.used.Load() + more
	if q := u.quota; q > 0 && more > 0 && reserved != store.FullReserve && used > limitOf(q, reserved) {
		if reserved != store.LeaveRoom {
			u.warn(q)
		}
		return store.ErrNoSpace
	}
	if more > 0 && reserved != store.FullReserve && u.sparing.Load() {
		return store.ErrNoSpace
	}
	u.used.Store(used)
	u.warn(used)
	return nil
}

// limitOf is what the keys may hold after a write that may use r, which is bounded.
func limitOf(quota int64, r store.Reserve) int64 {
	switch r {
	case store.SmallReserve:
		return quota + quota/reservePart
	case store.LeaveRoom:
		return quota - quota/reservePart
	default:
		return quota
	}
}

// warn says once that the quota is nearly used, and once that it is.
func (u *usage) warn(used int64) {
	if u.quota <= 0 {
		return
	}
	level := 0
	switch percent := used * 100 / u.quota; {
	case percent >= 100:
		level = 2
	case percent >= warnFrom:
		level = max(u.warned, 1)
	case percent >= calmBelow:
		level = u.warned
	}
	before := u.warned
	u.warned = level
	switch {
	case level <= before:
	case level == 2:
		u.log.Error("store has reached its quota and refuses larger objects: delete objects, or raise "+
			"--quota-backend-bytes",
			"used", used, "quota", u.quota)
	default:
		u.log.Warn("store has nearly reached its quota: delete objects, or raise --quota-backend-bytes",
			"used", used, "quota", u.quota)
	}
}

func putUsage(used, rev int64) []byte {
	return binary.BigEndian.AppendUint64(putNumber(used), uint64(rev))
}

// recover finds what the keys hold at last, the store's revision.
func (u *usage) recover(db *pebble.DB, last int64) error {
	b, closer, err := db.Get(keyUsed)
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return fmt.Errorf("read %s: %w", keyUsed, err)
	}
	used := int64(0)
	known := false
	if err == nil {
		known = len(b) == 16 && int64(binary.BigEndian.Uint64(b[8:])) == last
		if known {
			used = int64(binary.BigEndian.Uint64(b))
		}
		_ = closer.Close() // releases b; reads have nothing to lose
	}
	if !known {
		if used, err = countUsage(db); err != nil {
			return err
		}
	}
	u.used.Store(used)
	u.warn(used)
	return nil
}

// countUsage adds up the newest version of every key.
func countUsage(db *pebble.DB) (used int64, err error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{versionPrefix},
		UpperBound: []byte{versionPrefix + 1},
	})
	if err != nil {
		return 0, fmt.Errorf("count what the store holds: %w", err)
	}
	defer func() { err = errors.Join(err, it.Error(), it.Close()) }()
	var end []byte
	for ok := it.First(); ok; ok = it.SeekGE(end) {
		key, rev, err := splitVersionKey(it.Key())
		if err != nil {
			return 0, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return 0, err
		}
		kv, typ, err := splitVersion(v, string(key), rev)
		if err != nil {
			return 0, err
		}
		if typ != store.Deleted {
			used += costOf(kv)
		}
		end = putKeyEnd(end[:0], key)
	}
	return used, nil
}
