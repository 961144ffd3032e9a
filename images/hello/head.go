// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// head prints the first lines ("-n N", "-N") or bytes ("-c N"). It does not buffer whole lines: they can be of any
// length.
func head(args []string, std stdio) int {
	n, unit, files, err := countOption(args[1:])
	if err != nil {
		return complain(std, "head", err)
	}
	count := atoi(n, -1)
	if count < 0 {
		return complain(std, "head", fmt.Errorf("%q is not a number that head supports", n))
	}
	return each("head", files, std, func(r io.Reader) error {
		if unit == 'c' {
			_, err := io.CopyN(std.out, r, int64(count))
			return notEOF(err)
		}
		return notEOF(copyLines(bufio.NewReader(r), std.out, count))
	})
}

// copyLines copies n lines, each in parts no larger than the buffer of r; io.EOF if there are fewer.
func copyLines(r *bufio.Reader, out io.Writer, n int) error {
	for n > 0 {
		part, err := r.ReadSlice('\n')
		if _, wrong := out.Write(part); wrong != nil {
			return wrong
		}
		switch {
		case err == nil:
			n--
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
	return nil
}
