// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var (
	chmodSyntax = optionSyntax{letters: "Rfv", early: true, usage: "chmod [-R] MODE FILE..."}
	chownSyntax = optionSyntax{letters: "Rfvh", early: true, usage: "chown [-R] UID[:GID] FILE..."}
)

// throughout calls do for each path and, if deep, for all that is below. Links are not followed.
func throughout(who string, paths []string, deep bool, std stdio, do func(path string) error) int {
	return forEach(who, paths, std, func(top string) error {
		if !deep {
			return do(top)
		}
		return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 && path != top {
				return err
			}
			return do(path)
		})
	})
}

func chmod(args []string, std stdio) int {
	o, words, err := chmodSyntax.parse(minusModes(args))
	if err == nil && len(words) < 2 {
		err = chmodSyntax.wantUsage()
	}
	if err != nil {
		return complain(std, "chmod", err)
	}
	if _, err := newMode(0, words[0], false); err != nil {
		return complain(std, "chmod", err)
	}
	return throughout("chmod", words[1:], o.has('R'), std, func(path string) error {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
		mode, err := newMode(st.Mode&0o7777, words[0], st.Mode&syscall.S_IFMT == syscall.S_IFDIR)
		if err != nil {
			return err
		}
		if err := syscall.Chmod(path, mode); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
		return nil
	})
}

// minusModes makes a mode such as -x an operand.
func minusModes(args []string) []string {
	for i := 1; i < len(args) && strings.HasPrefix(args[i], "-"); i++ {
		if len(args[i]) > 1 && strings.IndexByte("rwxXst", args[i][1]) >= 0 {
			return append(append(append([]string{}, args[:i]...), "--"), args[i:]...)
		}
	}
	return args
}

// newMode applies a mode, octal or such as u+x,go=r, to the permission bits of a file. The umask is not used.
func newMode(old uint32, text string, dir bool) (uint32, error) {
	if n, err := strconv.ParseUint(text, 8, 12); err == nil {
		return uint32(n), nil
	}
	for clause := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(clause, "+-=")
		if at < 0 {
			return 0, fmt.Errorf("%q is not a mode such as 644 or u+x,go-w", text)
		}
		who, ok1 := letterBits(clause[:at], map[rune]uint32{
			'u': 0o4700,
			'g': 0o2070,
			'o': 0o0007,
			'a': 0o7777,
		})
		x := uint32(0)
		if dir || old&0o111 != 0 {
			x = 0o111
		}
		bits, ok2 := letterBits(clause[at+1:], map[rune]uint32{
			'r': 0o444,
			'w': 0o222,
			'x': 0o111,
			'X': x,
			's': 0o6000,
			't': 0o1000,
		})
		if !ok1 || !ok2 {
			return 0, fmt.Errorf("%q is not a mode such as 644 or u+x,go-w", text)
		}
		if at == 0 {
			who = 0o7777
		}
		bits &= who | 0o1000
		switch clause[at] {
		case '+':
			old |= bits
		case '-':
			old &^= bits
		case '=':
			old = old&^who | bits
		}
	}
	return old, nil
}

func letterBits(letters string, bits map[rune]uint32) (out uint32, ok bool) {
	for _, l := range letters {
		b, known := bits[l]
		if !known {
			return 0, false
		}
		out |= b
	}
	return out, true
}

// chown sets owners by number: the image has no more users than root and no one.
func chown(args []string, std stdio) int {
	opts, words, err := chownSyntax.parse(args)
	if err == nil && len(words) < 2 {
		err = chownSyntax.wantUsage()
	}
	if err != nil {
		return complain(std, "chown", err)
	}
	user, group, _ := strings.Cut(words[0], ":")
	uid, err1 := ownerNumber(user)
	gid, err2 := ownerNumber(group)
	if err1 != nil || err2 != nil {
		return complain(std, "chown", fmt.Errorf("%q is not UID, UID:GID or :GID", words[0]))
	}
	return throughout("chown", words[1:], opts.has('R'), std, func(path string) error {
		if opts.has('h') {
			return os.Lchown(path, uid, gid)
		}
		return os.Chown(path, uid, gid)
	})
}

// ownerNumber is -1, no change, for an empty text.
func ownerNumber(text string) (int, error) {
	switch text {
	case "":
		return -1, nil
	case "root":
		return 0, nil
	case "nobody", "nogroup":
		return 65534, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err // 31 bits
}
