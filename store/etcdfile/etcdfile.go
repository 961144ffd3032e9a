// SPDX-License-Identifier: Apache-2.0

// Package etcdfile writes and reads the file that etcd calls a snapshot: the
// bbolt database of a member, followed by a SHA-256 sum. etcdapi writes one for
// `etcdctl snapshot save`, from which etcdutl makes an etcd, and cluster reads
// one for `keelson restore`. It knows nothing of what keys mean.
//
// The buckets that count:
//
//	key   <revision, 8 bytes> _ <number within it, 8 bytes> [t]   a KeyValue message; t: the key was deleted
//	meta  finishedCompactRev, scheduledCompactRev, consistent_index
package etcdfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"keelson/store"
)

var (
	bucketKey  = []byte("key")
	bucketMeta = []byte("meta")
	keyDone    = []byte("finishedCompactRev")
	keyPlanned = []byte("scheduledCompactRev")
	keyIndex   = []byte("consistent_index")
	// others are empty in the file of an etcd that is to begin with it.
	others = []string{"alarm", "auth", "authRoles", "authUsers", "cluster", "lease", "members", "members_removed"}
)

// magic stands at byte 16 of a bbolt database.
const magic = 0xED0CDAED

// Is reports whether a file that begins with head is one for Read.
func Is(head []byte) bool { return len(head) >= 20 && binary.LittleEndian.Uint32(head[16:]) == magic }

func putRevision(main, sub int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(main))
	b = append(b, '_')
	return binary.BigEndian.AppendUint64(b, uint64(sub))
}

// batch is how many keys are written to the database at once.
const batch = 5000

// Make makes a database, without the sum, of what fill puts, and of the revision that it returns. The file has no name:
// it goes when it is closed. size bytes of it, from its beginning, count.
func Make(dir string, fill func(put func(
	store.KV,
) error) (revision int64, err error),
) (file *os.File, revision, size int64, err error) {
	file, err = unnamed(dir)
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	db, err := bbolt.Open(file.Name(), 0o600, &bbolt.Options{
		NoSync:     true,
		NoGrowSync: true,
		OpenFile: func(name string, _ int, _ os.FileMode) (*os.File, error) {
			fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			return os.NewFile(uintptr(fd), name), err
		},
	})
	if err != nil {
		return nil, 0, 0, err
	}
	w := &writer{db: db}
	revision, err = fill(w.put)
	if err == nil {
		err = w.finish(revision)
	}
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error {
			size = tx.Size()
			return nil
		})
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, 0, 0, err
	}
	_, err = file.Seek(0, io.SeekStart)
	return file, revision, size, err
}

// unnamed is a new file in dir without a name.
func unnamed(dir string) (*os.File, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	if f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600); err == nil {
		return f, nil
	}
	f, err := os.CreateTemp(dir, "etcd-snapshot-*") // not every file system can do the above
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

type writer struct {
	db    *bbolt.DB
	queue []store.KV
}

func (w *writer) put(kv store.KV) error {
	w.queue = append(w.queue, kv)
	if len(w.queue) < batch {
		return nil
	}
	return w.flush()
}

func (w *writer) flush() error {
	err := w.db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists(bucketKey)
		if err != nil {
			return err
		}
		for _, kv := range w.queue {
			m := &mvccpb.KeyValue{
				Key:            []byte(kv.Key),
				Value:          kv.Value,
				ModRevision:    kv.Revision,
				CreateRevision: kv.Created,
				Version:        kv.Version,
			}
			if m.Version == 0 { // not known, and etcd has no such keys
				m.CreateRevision = kv.Revision
				m.Version = 1
			}
			value, err := proto.Marshal(m)
			if err != nil {
				return err
			}
			sub := int64(0)
			// one transaction of etcd may have written several keys
			for bucket.Get(putRevision(kv.Revision, sub)) != nil {
				sub++
			}
			if err := bucket.Put(putRevision(kv.Revision, sub), value); err != nil {
				return err
			}
		}
		return nil
	})
	w.queue = w.queue[:0]
	return err
}

// finish says that no history before revision is there.
func (w *writer) finish(revision int64) error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range others {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		b, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		at := putRevision(revision, 0)
		return errors.Join(b.Put(keyDone, at), b.Put(keyPlanned, at),
			b.Put(keyIndex, binary.BigEndian.AppendUint64(nil, 1)))
	})
}

// Read checks the sum of the snapshot at path and hands the keys under prefix, as of its revision, to sink.
func Read(path, prefix string, sink func(store.KV) error) (revision int64, err error) {
	if err := checkSum(path); err != nil {
		return 0, err
	}
	// bbolt maps the file: what points beyond its end is a fault
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { // bbolt panics on pages that make no sense
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is not an etcd database that can be read: %v", r)
		}
	}()
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: 5 * time.Second})
	if err != nil {
		return 0, fmt.Errorf("open the etcd database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		keys := tx.Bucket(bucketKey)
		if keys == nil {
			return errors.New("the file is a database, but not etcd's: it has no keys")
		}
		if meta := tx.Bucket(bucketMeta); meta != nil {
			if b := meta.Get(keyDone); len(b) == 17 {
				revision = int64(binary.BigEndian.Uint64(b))
			}
		}
		latest, last, err := current(keys, prefix)
		if err != nil {
			return err
		}
		revision = max(revision, last)
		return keys.ForEach(func(at, v []byte) error {
			kv, ok, err := entry(at, v, prefix)
			if err != nil || !ok || latest[kv.Key] != string(at) {
				return err
			}
			return sink(kv)
		})
	})
	return revision, err
}

// entry reads one record; ok is false when it is not about a key under prefix.
func entry(at, v []byte, prefix string) (kv store.KV, ok bool, err error) {
	if len(at) < 17 {
		return kv, false, fmt.Errorf("the file is damaged: a record is named %x", at)
	}
	var m mvccpb.KeyValue
	if err := proto.Unmarshal(v, &m); err != nil {
		return kv, false, fmt.Errorf("the file is damaged: record %x: %w", at, err)
	}
	kv = store.KV{
		Key:      string(m.Key),
		Value:    m.Value,
		Revision: int64(binary.BigEndian.Uint64(at)),
		Created:  m.CreateRevision,
		Version:  m.Version,
	}
	return kv, strings.HasPrefix(kv.Key, prefix), nil
}

// current is the record of each key that is there at the end, and the last revision.
func current(keys *bbolt.Bucket, prefix string) (latest map[string]string, last int64, err error) {
	latest = map[string]string{}
	err = keys.ForEach(func(at, v []byte) error {
		kv, ok, err := entry(at, v, prefix)
		if err != nil {
			return err
		}
		last = max(last, kv.Revision)
		switch {
		case !ok:
		case len(at) > 17:
			delete(latest, kv.Key)
		default:
			latest[kv.Key] = string(at)
		}
		return nil
	})
	return latest, last, err
}

// checkSum refuses a file that is not a database with its sum behind.
func checkSum(path string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return errors.New("the file is not complete, or not what `etcdctl snapshot save` wrote: it does not end in a " +
			"checksum")
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, file, size); err != nil {
		return err
	}
	want := make([]byte, sha256.Size)
	if _, err := io.ReadFull(file, want); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("the file is damaged: the checksum is not the one of the content")
	}
	return nil
}
