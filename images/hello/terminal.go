// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"
)

// errInterrupted is the result of a line that Ctrl-C has ended.
var errInterrupted = errors.New("interrupted")

// lineEditor reads lines from a terminal: with the arrow keys, a history, and Tab, which completes commands and files.
type lineEditor struct {
	file *os.File
	keys *keyboard
	term *term.Terminal
}

func newLineEditor(in *os.File, out io.Writer, dir func() string) *lineEditor {
	keys := &keyboard{in: oneByte{in}, out: out}
	e := &lineEditor{file: in, keys: keys}
	e.term = term.NewTerminal(keys, "")
	e.term.AutoCompleteCallback = func(line string, at int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		done := completed(line[:at], dir())
		return done + line[at:], len(done), true
	}
	return e
}

// read returns a line without its end, io.EOF after Ctrl-D, and errInterrupted after Ctrl-C. The terminal is raw
// meanwhile: commands get it as they expect it.
func (e *lineEditor) read(prompt string) (string, error) {
	fd := int(e.file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(fd, before) }() // a terminal that has gone needs none
	if width, height, err := term.GetSize(fd); err == nil && width > 0 {
		_ = e.term.SetSize(width, height) // an odd size costs the look of long lines only
	}
	e.term.SetPrompt(prompt)
	e.keys.interrupted = false
	line, err := e.term.ReadLine()
	if e.keys.interrupted {
		return "", errInterrupted
	}
	return line, err
}

// keyboard passes on what is typed. Ctrl-C empties the line and ends it: the library takes it for the end of the input.
type keyboard struct {
	in          io.Reader
	out         io.Writer
	pending     []byte
	interrupted bool
}

const (
	ctrlC     = 3
	emptyLine = "\x05\x15\r" // to the end, delete to the start, enter
)

func (k *keyboard) Read(p []byte) (int, error) {
	if len(k.pending) == 0 {
		n, err := k.in.Read(p)
		if err != nil || n == 0 || p[0] != ctrlC {
			return n, err
		}
		k.interrupted = true
		if _, err := io.WriteString(k.out, "^C"); err != nil {
			return 0, err
		}
		k.pending = []byte(emptyLine)
	}
	n := copy(p, k.pending)
	k.pending = k.pending[n:]
	return n, nil
}

func (k *keyboard) Write(p []byte) (int, error) { return k.out.Write(p) }

// completed returns a line whose last word is as long as all names that it may become agree: commands for the first
// word, files for the others.
func completed(line, dir string) string {
	start := strings.LastIndexAny(line, " \t|;&") + 1
	word := line[start:]
	var names []string
	if strings.TrimSpace(line[:start]) == "" && !strings.Contains(word, "/") {
		names = slices.Collect(maps.Keys(tools()))
		names = append(names, "cd", "exit", "export", "sh")
		for i := range names {
			names[i] += " "
		}
	} else {
		names = filesLike(word, dir)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, word) })
	if len(names) == 0 {
		return line
	}
	common := names[0]
	for _, name := range names[1:] {
		for !strings.HasPrefix(name, common) {
			common = common[:len(common)-1]
		}
	}
	return line[:start] + common
}

// filesLike lists the directory that a word names so far; names of files end with a space, those of directories with a
// slash.
func filesLike(word, dir string) []string {
	parent := word[:strings.LastIndexByte(word, '/')+1]
	from := parent
	if !filepath.IsAbs(from) {
		from = filepath.Join(dir, parent)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		end := " "
		if info, err := os.Stat(filepath.Join(from, entry.Name())); err == nil && info.IsDir() {
			end = "/"
		}
		names = append(names, parent+entry.Name()+end)
	}
	return names
}
