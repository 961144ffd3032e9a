// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"keelson/store"
)

// The keys of the database:
//
//	k <key> 00 <^revision, 8 bytes>   type(1) [facts] value  a version of a key, the newest first
//	l <revision, 8 bytes>             type(1) previous(8) key the log, one entry per revision
//	m <name>                          number(8)              format version, compacted revision, whether
//	                                                         last-revision is kept
//	mused                             number(8) revision(8)  what the keys hold, as of a revision
//
// The type of a version is its event's, but for updates with facts, which are the revision of the key's creation and
// its version, both unsigned varints. Of a created key they follow from its revision; updates without them are those of
// format 1.
//
// Keys must not contain a zero byte, which keeps versions of different keys in key order.
const (
	versionPrefix = 'k'
	logPrefix     = 'l'
	formatVersion = 2

	updatedWithFacts = byte(store.Deleted) + 1
)

var (
	keyFormat    = []byte("mformat")
	keyCompacted = []byte("mcompacted")
	keyNoted     = []byte("mnoted")
	keyUsed      = []byte("mused")
)

func checkKey(key string) error {
	if key == "" || strings.IndexByte(key, 0) >= 0 {
		return fmt.Errorf("store key %q: must not be empty nor contain a zero byte", key)
	}
	return nil
}

func putVersionKey(b []byte, key string, rev int64) []byte {
	b = append(b, versionPrefix)
	b = append(b, key...)
	b = append(b, 0)
	return binary.BigEndian.AppendUint64(b, ^uint64(rev))
}

// putKeyEnd is the first database key after all versions of key.
func putKeyEnd(b []byte, key []byte) []byte {
	b = append(b, versionPrefix)
	b = append(b, key...)
	return append(b, 1)
}

// putFrom is the first database key of the keys that are not before from. from may hold a zero byte, as the first key
// after another does; since keys hold none, what counts is that they come after the part before it.
func putFrom(b []byte, from string) []byte {
	before, _, zero := strings.Cut(from, "\x00")
	b = append(append(b, versionPrefix), before...)
	if zero {
		b = append(b, 1)
	}
	return b
}

// splitVersionKey is the inverse of putVersionKey; key aliases b.
func splitVersionKey(b []byte) (key []byte, rev int64, err error) {
	if len(b) < 10 || b[0] != versionPrefix || b[len(b)-9] != 0 {
		return nil, 0, fmt.Errorf("store is damaged: version key %q", b)
	}
	return b[1 : len(b)-9], int64(^binary.BigEndian.Uint64(b[len(b)-8:])), nil
}

func putLogKey(b []byte, rev int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, logPrefix), uint64(rev))
}

func splitLogKey(b []byte) (int64, error) {
	if len(b) != 9 || b[0] != logPrefix {
		return 0, fmt.Errorf("store is damaged: log key %q", b)
	}
	return int64(binary.BigEndian.Uint64(b[1:])), nil
}

// logEntry is one write without its value. previous is the revision it superseded, 0 for none.
type logEntry struct {
	typ      store.EventType
	previous int64
	key      string
}

func putLogEntry(b []byte, e logEntry) []byte {
	b = append(b, byte(e.typ))
	b = binary.BigEndian.AppendUint64(b, uint64(e.previous))
	return append(b, e.key...)
}

func splitLogEntry(b []byte) (logEntry, error) {
	if len(b) < 10 || b[0] < byte(store.Created) || b[0] > byte(store.Deleted) {
		return logEntry{}, fmt.Errorf("store is damaged: log entry %q", b)
	}
	return logEntry{typ: store.EventType(b[0]), previous: int64(binary.BigEndian.Uint64(b[1:9])), key: string(b[9:])},
		nil
}

// putVersion is a version of a key as it is stored: all of kv but what is in the database key.
func putVersion(b []byte, typ store.EventType, kv store.KV) []byte {
	b = putHead(b, typ, kv)
	if typ == store.Deleted {
		return b
	}
	return append(b, kv.Value...)
}

// putHead is what stands before the value.
func putHead(b []byte, typ store.EventType, kv store.KV) []byte {
	if typ != store.Updated || kv.Version == 0 {
		return append(b, byte(typ))
	}
	b = append(b, updatedWithFacts)
	b = binary.AppendUvarint(b, uint64(kv.Created))
	return binary.AppendUvarint(b, uint64(kv.Version))
}

// sizeOfVersion is the length of putVersion.
func sizeOfVersion(typ store.EventType, kv store.KV) int {
	var b [1 + 2*binary.MaxVarintLen64]byte
	n := len(putHead(b[:0], typ, kv))
	if typ == store.Deleted {
		return n
	}
	return n + len(kv.Value)
}

// splitVersion is the inverse of putVersion; kv.Value aliases b, and is nil for a tombstone.
func splitVersion(b []byte, key string, rev int64) (kv store.KV, typ store.EventType, err error) {
	kv = store.KV{Key: key, Revision: rev}
	if len(b) == 0 || b[0] < byte(store.Created) || b[0] > updatedWithFacts {
		return kv, 0, fmt.Errorf("store is damaged: version %d of %q", rev, key)
	}
	typ = store.EventType(b[0])
	kv.Value = b[1:]
	switch {
	case typ == store.Created:
		kv.Created = rev
		kv.Version = 1
	case typ == store.Deleted:
		kv.Value = nil
	case b[0] == updatedWithFacts:
		created, n := binary.Uvarint(kv.Value)
		version, m := binary.Uvarint(kv.Value[max(n, 0):])
		if n <= 0 || m <= 0 {
			return kv, 0, fmt.Errorf("store is damaged: version %d of %q", rev, key)
		}
		typ = store.Updated
		kv.Value = kv.Value[n+m:]
		kv.Created = int64(created)
		kv.Version = int64(version)
	}
	return kv, typ, nil
}

func putNumber(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// readNumber returns 0 when the key is absent.
func readNumber(db *pebble.DB, key []byte) (int64, error) {
	b, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	defer func() { _ = closer.Close() }() // releases b; reads have nothing to lose
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: %s is %q", errDamaged, key, b)
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// lastLogged is the revision of the newest log entry, 0 when the log is empty.
func lastLogged(db *pebble.DB) (int64, error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{logPrefix}, UpperBound: []byte{logPrefix + 1}})
	if err != nil {
		return 0, fmt.Errorf("read log: %w", err)
	}
	var rev int64
	if it.Last() {
		rev, err = splitLogKey(it.Key())
	}
	return rev, errors.Join(err, it.Close())
}

// prefixEnd is the first string after all that start with p; nil when there is none.
func prefixEnd(p []byte) []byte {
	end := bytes.Clone(p)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
