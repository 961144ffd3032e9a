// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/md5" // md5sum prints what it is named after
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
)

func md5sum(args []string, std stdio) int    { return digests(md5.New, args, std) }
func sha256sum(args []string, std stdio) int { return digests(sha256.New, args, std) }

// digests prints the digest of each file, or with -c compares files with the lines of a list.
func digests(algorithm func() hash.Hash, args []string, std stdio) int {
	syntax := optionSyntax{letters: "cbsw", usage: args[0] + " [-c] [FILE]..."}
	o, files, err := syntax.parse(args)
	if err != nil {
		return complain(std, args[0], err)
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	if o.has('c') {
		return each(args[0], files, std, func(r io.Reader) error { return compareDigests(algorithm, r, std) })
	}
	code := 0
	for _, name := range files {
		code = max(code, each(args[0], []string{name}, std, func(r io.Reader) error {
			sum, err := digestOf(algorithm, r)
			if err == nil {
				_, err = fmt.Fprintf(std.out, "%s  %s\n", sum, name)
			}
			return err
		}))
	}
	return code
}

func digestOf(algorithm func() hash.Hash, r io.Reader) (string, error) {
	h := algorithm()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}

func compareDigests(algorithm func() hash.Hash, list io.Reader, std stdio) error {
	wrong := 0
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		want, name, ok := strings.Cut(lines.Text(), " ")
		name = strings.TrimLeft(name, " *")
		if !ok || len(want) != 2*algorithm().Size() {
			return fmt.Errorf("%q is not a digest and a file", lines.Text())
		}
		sum := ""
		f, err := os.Open(name)
		if err == nil {
			sum, err = digestOf(algorithm, f)
			err = errors.Join(err, f.Close())
		}
		result := "OK"
		if err != nil || !strings.EqualFold(sum, want) {
			result = "FAILED"
			wrong++
		}
		if _, err := fmt.Fprintf(std.out, "%s: %s\n", name, result); err != nil {
			return err
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d files do not match", wrong)
	}
	return lines.Err()
}
