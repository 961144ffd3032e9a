// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The engine takes a chunk of its log or manifest that does not hold together for the end that a crash left, and drops
// what follows. It may be damage. The committer, and the engine with its manifest, wait for each record's sync before
// they write the next: so a record that begins after a broken chunk proves that the broken one was on disk once.
//
// The files consist of blocks of 32 KB, and a block of chunks that do not cross its end:
//
//	checksum(4) size(2) type(1) [log number(4) [offset(8)]] payload
//
// Types 1-4 are full, first, middle and last chunks of a record in the manifest; 5-8 are those with a log number, 9-12
// those with an offset too.
const chunkBlock = 32 << 10

// errDamaged begins what is said of files that are not as they were written.
var errDamaged = errors.New("store is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkAt reads the chunk that begins at b[at]: where it ends, and whether a record begins with it.
func chunkAt(b []byte, at int, logNum uint32, isLog bool) (end int, begins, ok bool) {
	block := b[at:min(len(b), (at/chunkBlock+1)*chunkBlock)]
	if len(block) < 7 || block[6] < 1 || block[6] > 12 {
		return 0, false, false
	}
	format := (block[6] - 1) / 4
	position := (block[6] - 1) % 4
	header := []int{7, 11, 19}[format]
	size := int(binary.LittleEndian.Uint16(block[4:]))
	if isLog != (format > 0) || header+size > len(block) {
		return 0, false, false
	}
	if isLog && binary.LittleEndian.Uint32(block[7:]) != logNum {
		return 0, false, false
	}
	sum := crc32.Checksum(block[6:header+size], castagnoli)
	if binary.LittleEndian.Uint32(block) != (sum>>15|sum<<17)+0xa282ead8 {
		return 0, false, false
	}
	return at + header + size, position <= 1, true
}

// brokenAt finds a chunk that was on disk once and is broken; -1 when there is none.
func brokenAt(b []byte, logNum uint32, isLog bool) int {
	// Where a log was closed stands an empty chunk of the next log.
	closed := binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, 5}, logNum+1)
	at := 0
	for at < len(b) {
		end, _, ok := chunkAt(b, at, logNum, isLog)
		switch next := (at/chunkBlock + 1) * chunkBlock; {
		case ok:
			at = end
			continue
		case isLog && bytes.HasPrefix(b[at:], closed):
			return -1
		case next-at < 19 && next < len(b):
			if _, _, ok := chunkAt(b, next, logNum, isLog); ok {
				at = next // what is left of a block is too short for a chunk
				continue
			}
		}
		break
	}
	for i := at + 1; i < len(b); i++ {
		if _, begins, ok := chunkAt(b, i, logNum, isLog); ok && begins {
			return at
		}
		if isLog && b[i] == 0 && bytes.HasPrefix(b[i:], closed) {
			return at
		}
	}
	return -1
}

// isManifestMarker reports whether a file is a marker: its name, marker.manifest.000002.MANIFEST-000007, says which
// manifest counts: that of the highest.
func isManifestMarker(name string) bool {
	return strings.HasPrefix(name, "marker.manifest.") && strings.Count(name, ".") >= 3
}

// checkFiles refuses a directory whose logs or manifest are damaged in a way that the engine would not notice.
func checkFiles(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	manifest := ""
	newest := -1
	for _, name := range names {
		if num, ok := strings.CutSuffix(name, ".log"); ok {
			if n, err := strconv.ParseUint(num, 10, 64); err == nil {
				if err := checkFile(fs, dir, name, uint32(n), true); err != nil {
					return err
				}
			}
		}
		if isManifestMarker(name) {
			p := strings.SplitN(name, ".", 4)
			if n, err := strconv.Atoi(p[2]); err == nil && n > newest {
				newest = n
				manifest = p[3]
			}
		}
	}
	if manifest == "" {
		return nil
	}
	return checkFile(fs, dir, manifest, 0, false)
}

func checkFile(fs vfs.FS, dir, name string, logNum uint32, isLog bool) (err error) {
	f, err := fs.Open(fs.PathJoin(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: file %s is missing", errDamaged, name)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if at := brokenAt(b, logNum, isLog); at >= 0 {
		return fmt.Errorf("%w: file %s is broken at byte %d, amid what had been written", errDamaged, name, at)
	}
	return nil
}

// checkLog makes sure that every revision since the last compaction has its log entry: a file that the engine forgot,
// its manifest being damaged at the end, leaves a gap.
func checkLog(db *pebble.DB, compacted, last int64) error {
	from := max(compacted, firstRevision)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: putLogKey(nil, from+1), UpperBound: []byte{logPrefix + 1}})
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	n := int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if want := max(last-from, 0); n != want {
		return fmt.Errorf("%w: %d of the %d writes after revision %d are there", errDamaged, n, want, from)
	}
	return nil
}
