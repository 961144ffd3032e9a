// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// traced is the shell's standard error. It corrects the lines of "set -x": the library quotes all arguments of a
// builtin as one word, and commands that this package puts into scripts (their names begin with "hello-") are
// no one's.
type traced struct{ to io.Writer }

func (t traced) Write(p []byte) (int, error) {
	line, ok := strings.CutPrefix(string(p), "+ ")
	if !ok || strings.Count(line, "\n") != 1 {
		return t.to.Write(p)
	}
	if strings.HasPrefix(line, ownPrefix) {
		return len(p), nil
	}
	name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if words, ok := unquoted(rest); ok && interp.IsBuiltin(name) {
		if _, err := io.WriteString(t.to, "+ "+name+" "+words+"\n"); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return t.to.Write(p)
}

// unquoted returns the text of a single quoted word.
func unquoted(text string) (words string, ok bool) {
	if !strings.HasPrefix(text, "'") && !strings.HasPrefix(text, "$'") && !strings.HasPrefix(text, `"`) {
		return "", false
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil || len(file.Stmts) != 1 {
		return "", false
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	words, err = expand.Literal(nil, call.Args[0])
	return words, err == nil
}

// plain is a writer without the correction of traces: commands get the file itself.
func plain(w io.Writer) io.Writer {
	if t, ok := w.(traced); ok {
		return t.to
	}
	return w
}

// setOptions notes whether "set" turns tracing on or off, for jobs in the background.
func (s *sh) setOptions(args []string) {
	for _, arg := range args {
		if len(arg) < 2 || arg == "--" || arg[0] != '-' && arg[0] != '+' {
			return
		}
		if strings.Contains(arg, "x") {
			s.tracing = arg[0] == '-'
		}
	}
}
