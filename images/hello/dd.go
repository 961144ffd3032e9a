// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

var errDDUsage = errors.New("usage: dd [if=FILE] [of=FILE] [bs=N] [count=N] [skip=N] [seek=N] [conv=fsync,notrunc] " +
	"[oflag=direct,sync] [status=none]")

// copying is one call of dd. A record is always read whole, also from a pipe; in pieces, so that a large bs needs
// little memory.
type copying struct {
	in, out          string
	bs               int64
	count            int64 // -1: up to the end
	skip, seek       int64
	fsync, keep      bool
	quiet            bool
	flags            int
	records, partial int64 // read and written
	bytes            int64
}

const ddPiece = 1 << 20

func parseCopying(args []string) (*copying, error) {
	c := &copying{bs: 512, count: -1}
	for _, a := range args {
		key, value, ok := strings.Cut(a, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not known; %w", a, errDDUsage)
		}
		var err error
		switch key {
		case "if":
			c.in = value
		case "of":
			c.out = value
		case "bs", "ibs", "obs":
			if c.bs, err = ddNumber(value); err == nil && c.bs == 0 {
				err = errors.New("bs must not be 0")
			}
		case "count":
			c.count, err = ddNumber(value)
		case "skip", "iseek":
			c.skip, err = ddNumber(value)
		case "seek", "oseek":
			c.seek, err = ddNumber(value)
		case "status":
			c.quiet = value == "none" || value == "noxfer"
		case "conv", "oflag", "iflag":
			err = c.flag(key, value)
		default:
			err = fmt.Errorf("%q is not known; %w", a, errDDUsage)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *copying) flag(key, value string) error {
	for word := range strings.SplitSeq(value, ",") {
		switch key + "=" + word {
		case "conv=fsync", "conv=fdatasync":
			c.fsync = true
		case "conv=notrunc":
			c.keep = true
		case "oflag=sync", "oflag=dsync":
			c.flags |= syscall.O_SYNC
		case "oflag=direct":
			c.flags |= syscall.O_DIRECT
		case "oflag=append":
			c.flags |= os.O_APPEND
		case "iflag=fullblock":
		default:
			return fmt.Errorf("%s=%s is not known; %w", key, word, errDDUsage)
		}
	}
	return nil
}

// ddNumber parses a number with a unit: c, b, k or K, M, G, and kB, MB, GB.
func ddNumber(text string) (int64, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, ok := map[string]int64{
		"":    1,
		"c":   1,
		"b":   512,
		"k":   1 << 10,
		"K":   1 << 10,
		"KiB": 1 << 10,
		"kB":  1e3,
		"KB":  1e3,
		"M":   1 << 20,
		"MiB": 1 << 20,
		"MB":  1e6,
		"G":   1 << 30,
		"GiB": 1 << 30,
		"GB":  1e9,
	}[text[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	const most = 1 << 50
	if err != nil || !ok || n < 0 || n > most/unit {
		return 0, fmt.Errorf("%q is not a number such as 512, 4K or 1M", text)
	}
	return n * unit, nil
}

// dd copies records and says how many on its standard error.
func dd(args []string, std stdio) int {
	copying, err := parseCopying(args[1:])
	if err != nil {
		return complain(std, "dd", err)
	}
	start := time.Now()
	err = copying.open(std)
	if took := time.Since(start).Seconds(); !copying.quiet {
		n := fmt.Sprintf("%d+%d records", copying.records, copying.partial)
		fmt.Fprintf(std.err, "%s in\n%s out\n%d bytes (%sB) copied, %.6f seconds, %sB/s\n", n, n, copying.bytes,
			// not negative
			scaled(options{'h': {""}}, uint64(copying.bytes)), took, scaled(options{'h': {""}},
				uint64(float64(copying.bytes)/max(took, 1e-9))))
	}
	if err != nil {
		return complain(std, "dd", err)
	}
	return 0
}

// open opens the files and copies.
func (c *copying) open(std stdio) error {
	in := std.in
	out := std.out
	if c.in != "" {
		f, err := os.Open(c.in)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	if c.bs > 1<<50/max(c.skip, c.seek, 1) {
		return errors.New("skip or seek is too large")
	}
	if err := forward(in, c.skip*c.bs); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if c.out == "" {
		return c.copy(out, in)
	}
	flags := os.O_WRONLY | os.O_CREATE | c.flags
	if !c.keep && c.seek == 0 {
		flags |= os.O_TRUNC
	}
	file, err := os.OpenFile(c.out, flags, 0o666)
	if err != nil {
		return err
	}
	if c.seek > 0 {
		if _, err = file.Seek(c.seek*c.bs, io.SeekStart); err == nil && !c.keep {
			// a device has a fixed size
			if terr := file.Truncate(c.seek * c.bs); terr != nil && !errors.Is(terr, syscall.EINVAL) {
				err = terr
			}
		}
	}
	if err == nil {
		err = c.copy(file, in)
	}
	if err == nil && c.fsync {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// forward leaves out the beginning of an input.
func forward(in io.Reader, n int64) error {
	if n == 0 {
		return nil
	}
	if f, ok := in.(io.Seeker); ok {
		if _, err := f.Seek(n, io.SeekCurrent); err == nil {
			return nil
		}
	}
	_, err := io.CopyN(io.Discard, in, n)
	return notEOF(err)
}

func (c *copying) copy(out io.Writer, in io.Reader) error {
	buf := aligned(int(min(c.bs, ddPiece)))
	for c.count < 0 || c.records+c.partial < c.count {
		left := c.bs
		var err error
		for left > 0 && err == nil {
			var n int
			n, err = io.ReadFull(in, buf[:min(left, int64(len(buf)))])
			if n > 0 {
				if _, werr := out.Write(buf[:n]); werr != nil {
					return werr
				}
			}
			left -= int64(n)
			c.bytes += int64(n)
		}
		switch {
		case left == 0:
			c.records++
		case left < c.bs:
			c.partial++
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// aligned is a buffer that O_DIRECT takes.
func aligned(size int) []byte {
	const page = 4096
	b := make([]byte, size+page)
	skip := (page - int(uintptr(unsafe.Pointer(&b[0]))%page)) % page
	return b[skip : skip+size : skip+size]
}
