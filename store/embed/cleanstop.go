// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Close leaves the file clean-stop. It says the revision, and of every file of the engine the size; of logs and
// manifests a checksum too (tables have their own). Nothing changes the engine's files until the next Open. Open
// compares them with clean-stop, and removes clean-stop before the engine writes. So a store without it was not stopped
// cleanly, or was last used by a version that did not know it.
//
//	keelson store stopped 1
//	revision 2015
//	file 000004.log 123456 crc32c:0a1b2c3d
//	file 000005.sst 7890
//	sha256:<of everything before>
const (
	cleanStopFile = "clean-stop"
	cleanStopHead = "keelson store stopped 1"
)

// cleanStop is what the file says.
type cleanStop struct {
	revision int64
	files    []stoppedFile
}

type stoppedFile struct {
	name string
	size int64
	crc  string // empty: none was taken
}

func (f stoppedFile) String() string {
	return strings.TrimSuffix(fmt.Sprintf("file %s %d %s", f.name, f.size, f.crc), " ")
}

func (c *cleanStop) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nrevision %d\n", cleanStopHead, c.revision)
	for _, f := range c.files {
		fmt.Fprintln(&b, f)
	}
	fmt.Fprintf(&b, "sha256:%x\n", sha256.Sum256([]byte(b.String())))
	return []byte(b.String())
}

var errBadCleanStop = errors.New("its checksum is wrong")

func parseCleanStop(b []byte) (*cleanStop, error) {
	text := string(b)
	end := strings.LastIndex(text, "sha256:")
	if end < 0 || text[end:] != fmt.Sprintf("sha256:%x\n", sha256.Sum256(b[:end])) {
		return nil, errBadCleanStop
	}
	head, rest, _ := strings.Cut(text[:end], "\n")
	if head != cleanStopHead {
		return nil, fmt.Errorf("it begins with %.100q, this program knows %q", head, cleanStopHead)
	}
	c := &cleanStop{}
	for line := range strings.Lines(rest) {
		w := strings.Fields(line)
		var err error
		switch {
		case len(w) == 2 && w[0] == "revision":
			c.revision, err = strconv.ParseInt(w[1], 10, 64)
		case (len(w) == 3 || len(w) == 4) && w[0] == "file":
			f := stoppedFile{name: w[1], crc: strings.Join(w[3:], "")}
			f.size, err = strconv.ParseInt(w[2], 10, 64)
			c.files = append(c.files, f)
		default:
			err = errors.New("it is of no known form")
		}
		if err != nil {
			return nil, fmt.Errorf("line %.100q: %w", line, err)
		}
	}
	return c, nil
}

// maxCleanStop bounds what is read of the file: some 100,000 files.
const maxCleanStop = 8 << 20

// readCleanStop returns fs.ErrNotExist where there is none.
func readCleanStop(o Options) (c *cleanStop, damage, err error) {
	f, err := o.FS.Open(o.FS.PathJoin(o.Dir, cleanStopFile))
	if err != nil {
		return nil, nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCleanStop))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", cleanStopFile, err)
	}
	c, damage = parseCleanStop(b)
	return c, damage, nil
}

// Closed reports that there is a store in dir, which was closed and has not been opened since.
func Closed(dir string) bool {
	_, damage, err := readCleanStop(Options{Dir: dir, FS: vfs.Default})
	return damage == nil && err == nil
}

// ours reports whether a file in the store's directory is ours and not the engine's.
func ours(name string) bool {
	name = strings.TrimSuffix(name, ".new")
	return name == "LOCK" || name == cleanStopFile || name == lastRevisionFile
}

// leaveCleanStop writes clean-stop for a store at revision rev. The engine has closed.
func leaveCleanStop(opts Options, rev int64) error {
	names, err := opts.FS.List(opts.Dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	c := &cleanStop{revision: rev}
	for _, name := range names {
		if ours(name) || strings.ContainsAny(name, " \t\n\r\v\f") {
			continue
		}
		f, dir, err := stoppedAs(opts, name, summed(name))
		if err != nil {
			return err
		}
		if !dir {
			c.files = append(c.files, f)
		}
	}
	return writeFile(opts, cleanStopFile, c.encode())
}

// summed reports whether clean-stop needs a checksum of a file: the engine keeps none of the whole file.
func summed(name string) bool {
	return strings.HasSuffix(name, ".log") || strings.HasPrefix(name, "MANIFEST-")
}

// stoppedAs describes a file as it is.
func stoppedAs(o Options, name string, sum bool) (f stoppedFile, dir bool, err error) {
	path := o.FS.PathJoin(o.Dir, name)
	st, err := o.FS.Stat(path)
	if err != nil {
		return f, false, err
	}
	f = stoppedFile{name: name, size: st.Size()}
	if st.IsDir() || !sum {
		return f, st.IsDir(), nil
	}
	r, err := o.FS.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return f, false, err
	}
	h := crc32.New(castagnoli)
	_, err = io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 64<<10))
	if err = errors.Join(err, r.Close()); err != nil {
		return f, false, fmt.Errorf("read %s: %w", name, err)
	}
	f.crc = fmt.Sprintf("crc32c:%08x", h.Sum32())
	return f, false, nil
}

// stale reports that the engine was opened since by a version that does not know clean-stop: there are files newer than
// all of c.
func (c *cleanStop) stale(names []string) bool {
	newest := uint64(0)
	for _, f := range c.files {
		newest = max(newest, fileNumber(f.name))
	}
	return slices.ContainsFunc(names, func(name string) bool { return fileNumber(name) > newest })
}

// fileNumber is the number in the name of a file of the engine (000012.log, MANIFEST-000007); 0: it has none.
func fileNumber(name string) uint64 {
	for _, kind := range []string{"MANIFEST-", "OPTIONS-"} {
		name = strings.TrimPrefix(name, kind)
	}
	for _, kind := range []string{".log", ".sst", ".blob"} {
		name = strings.TrimSuffix(name, kind)
	}
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// compare returns a sentence for each file that has changed.
func (c *cleanStop) compare(o Options) ([]string, error) {
	var out []string
	for _, was := range c.files {
		is, _, err := stoppedAs(o, was.name, was.crc != "")
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out = append(out, fmt.Sprintf("file %s is missing", was.name))
		case err != nil:
			return nil, err
		case is.size != was.size:
			out = append(out, fmt.Sprintf("file %s has %d bytes, %d when the store was stopped", was.name, is.size,
				was.size))
		case is.crc != was.crc:
			out = append(out,
				fmt.Sprintf("file %s is not what it was when the store was stopped: its checksum differs", was.name))
		}
	}
	return out, nil
}
