// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"errors"
	"io"
)

var base64Syntax = optionSyntax{letters: "dDw:", usage: "base64 [-d] [-w COLUMNS] [FILE]"}

// base64Tool encodes a file, in lines of 76 characters unless -w says otherwise (0: one line), or decodes it with -d.
func base64Tool(args []string, std stdio) int {
	opts, files, err := base64Syntax.parse(args)
	if err == nil && len(files) > 1 {
		err = base64Syntax.wantUsage()
	}
	if err != nil {
		return complain(std, "base64", err)
	}
	columns := 76
	if w := opts['w']; len(w) > 0 {
		if columns = atoi(w[0], -1); columns < 0 {
			return complain(std, "base64", base64Syntax.wantUsage())
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	return each("base64", files, std, func(in io.Reader) error {
		if opts.has('d') || opts.has('D') {
			// the decoder skips line ends by itself
			_, err := io.Copy(std.out, base64.NewDecoder(base64.StdEncoding, in))
			return err
		}
		lines := &wrapped{to: std.out, columns: columns}
		encoder := base64.NewEncoder(base64.StdEncoding, lines)
		_, err := io.Copy(encoder, in)
		return errors.Join(err, encoder.Close(), lines.end())
	})
}

// wrapped ends a line after each columns bytes; 0: never.
type wrapped struct {
	to      io.Writer
	columns int
	used    int // of the current line
}

func (w *wrapped) Write(text []byte) (int, error) {
	written := 0
	for len(text) > 0 {
		part := text
		if w.columns > 0 {
			part = text[:min(len(text), w.columns-w.used)]
		}
		n, err := w.to.Write(part)
		written += n
		w.used += n
		if err != nil {
			return written, err
		}
		text = text[n:]
		if w.columns > 0 && w.used == w.columns {
			if err := w.end(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// end ends a line that has begun, unless all is one line.
func (w *wrapped) end() error {
	if w.used == 0 || w.columns == 0 {
		return nil
	}
	w.used = 0
	_, err := io.WriteString(w.to, "\n")
	return err
}
