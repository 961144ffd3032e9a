// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ownPrefix begins the names of internal commands, which rewrite puts in place of others.
const ownPrefix = "hello-"

const (
	nameBackground = ownPrefix + "background"
	nameLastBg     = ownPrefix + "last-background"
	nameExec       = ownPrefix + "exec"
	nameEnd        = ownPrefix + "end"
)

// rewrite replaces background lists by commands that start a process, $! by a command that prints its process id, and
// $$ by that of this shell, which background processes use, too. It also records where exec replaces the shell: not in
// subshells, pipelines, substitutions and functions, because these are not processes here.
func (s *sh) rewrite(f *syntax.File) {
	s.findExecs(f)
	s.rewriteJobs(f)
}

// rewritten is rewrite, without exec, for a text that will be evaluated. A text that does not parse is returned
// unchanged: it fails later.
func (s *sh) rewritten(src string) string {
	f, err := syntax.NewParser().Parse(strings.NewReader(src), "")
	if err != nil {
		return src
	}
	s.rewriteJobs(f)
	out := strings.TrimSuffix(text(f), "\n")
	if !isScript(out) {
		return src
	}
	return out
}

// isScript reports whether a text parses: the library prints a few unusual scripts differently from what it has read.
func isScript(text string) bool {
	_, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	return err == nil
}

func (s *sh) rewriteJobs(f *syntax.File) {
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			s.funcs += text(n) + "\n"
		case *syntax.Stmt:
			if n.Background {
				s.background(n)
				return false
			}
		case *syntax.Word:
			numbers(n.Parts)
		case *syntax.DblQuoted:
			numbers(n.Parts)
		}
		return true
	})
}

func (s *sh) findExecs(f *syntax.File) {
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Subshell, *syntax.CmdSubst, *syntax.ProcSubst, *syntax.FuncDecl, *syntax.CoprocClause:
			return false
		case *syntax.BinaryCmd:
			return n.Op != syntax.Pipe && n.Op != syntax.PipeAll
		case *syntax.Stmt:
			return !n.Background
		case *syntax.CallExpr:
			if len(n.Args) > 1 && n.Args[0].Lit() == "exec" {
				s.execs[n.Pos()] = true
			}
		}
		return true
	})
}

// background replaces a statement by the command that starts it as a process. A statement that cannot be printed is
// left to the library, and has no process id.
func (s *sh) background(stmt *syntax.Stmt) {
	list := *stmt
	list.Background = false
	syntax.Walk(&list, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Word:
			ownNumber(n.Parts)
		case *syntax.DblQuoted:
			ownNumber(n.Parts)
		}
		return true
	})
	src := s.funcs + text(&list)
	if c := s.parsed(fmt.Sprintf(`%s %s "$0" "$@"`, nameBackground, quoted(src))); c != nil && isScript(src) {
		*stmt = syntax.Stmt{Position: stmt.Position, Cmd: c}
	}
}

// ownNumber replaces $$.
func ownNumber(parts []syntax.WordPart) {
	for i, p := range parts {
		if e, ok := p.(*syntax.ParamExp); ok && e.Param != nil && e.Param.Value == "$" {
			parts[i] = &syntax.Lit{Value: strconv.Itoa(os.Getpid()), ValuePos: e.Pos(), ValueEnd: e.End()}
		}
	}
}

// numbers replaces $$ and $!.
func numbers(parts []syntax.WordPart) {
	ownNumber(parts)
	for i, p := range parts {
		if e, ok := p.(*syntax.ParamExp); ok && e.Param != nil && e.Param.Value == "!" {
			lit := &syntax.Lit{Value: nameLastBg, ValuePos: e.Pos(), ValueEnd: e.End()}
			call := &syntax.CallExpr{Args: []*syntax.Word{{Parts: []syntax.WordPart{lit}}}}
			parts[i] = &syntax.CmdSubst{
				Left:  e.Pos(),
				Right: e.End(),
				Stmts: []*syntax.Stmt{{Position: e.Pos(), Cmd: call}},
			}
		}
	}
}

// parsed parses a command that this program has generated; nil: it is not a command.
func (*sh) parsed(src string) syntax.Command {
	f, err := syntax.NewParser().Parse(strings.NewReader(src), "")
	if err != nil || len(f.Stmts) != 1 {
		return nil
	}
	return f.Stmts[0].Cmd
}

func text(n syntax.Node) string {
	var b strings.Builder
	if err := syntax.NewPrinter().Print(&b, n); err != nil {
		return ""
	}
	return b.String()
}

// quoted quotes text as one word. NUL bytes are left out.
func quoted(text string) string {
	q, err := syntax.Quote(strings.ReplaceAll(text, "\x00", ""), syntax.LangBash)
	if err != nil {
		return "''"
	}
	return q
}

// onlyCommand returns the position of a script's single simple command: "sh -c 'sleep 3600'" needs no second process.
func onlyCommand(f *syntax.File) syntax.Pos {
	if len(f.Stmts) != 1 {
		return syntax.Pos{}
	}
	s := f.Stmts[0]
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || s.Background || s.Negated || len(s.Redirs)+len(call.Assigns) > 0 {
		return syntax.Pos{}
	}
	return call.Pos()
}
