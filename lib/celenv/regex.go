// SPDX-License-Identifier: Apache-2.0

package celenv

import (
	"regexp"
	"regexp/syntax"
	"sync"

	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

const (
	// maxSearch is the largest cost of a search, which is the most that Kubernetes allows in an expression.
	maxSearch = 1_000_000
	// keptSizes is the number of regular expressions whose size is kept.
	keptSizes = 1000
)

const tooLong = "the text is too long for the regular expression"

// searchGuard refuses a search that takes too long. Kubernetes counts the length of the regular expression: of
// (a?){1000} it is ten, and its program has thousands of instructions.
func searchGuard(next functions.FunctionOp, args ...ref.Val) ref.Val {
	if searchCost(args) > maxSearch {
		return types.NewErr(tooLong)
	}
	return next(args...)
}

func searched(args []ref.Val) *uint64 { return atLeastOne(searchCost(args)) }

// searchCost is the cost of a search: Kubernetes' own, or that of the program if it is more. An instruction takes some
// nanoseconds a byte, and a unit of cost about a microsecond.
func searchCost(args []ref.Val) int {
	if len(args) < 2 {
		return 0
	}
	text, isText := args[0].(types.String)
	pattern, isPattern := args[1].(types.String)
	if !isText || !isPattern {
		return 0
	}
	ordinary := (size(text)/10 + 1) * (size(pattern)/4 + 1)
	return max(ordinary, len(text)*programs.size(string(pattern))/200)
}

// programSizes are the numbers of instructions of regular expressions.
type programSizes struct {
	mu    sync.Mutex
	sizes map[string]int
}

var programs = programSizes{sizes: map[string]int{}}

// size is the number of instructions of a regular expression; 0 if it is none.
func (p *programSizes) size(pattern string) int {
	p.mu.Lock()
	known, ok := p.sizes[pattern]
	p.mu.Unlock()
	if ok {
		return known
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0 // the function reports it
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sizes) >= keptSizes {
		clear(p.sizes)
	}
	p.sizes[pattern] = len(program.Inst)
	return len(program.Inst)
}

// regexes put the guard before searches for a constant, which the interpreter compiles once and makes without the
// function's binding.
var regexes = []*interpreter.RegexOptimization{
	constant("matches", overloads.Matches, func(re *regexp.Regexp, text string, _ []ref.Val) ref.Val {
		return types.Bool(re.MatchString(text))
	}),
	constant("matches", overloads.MatchesString, func(re *regexp.Regexp, text string, _ []ref.Val) ref.Val {
		return types.Bool(re.MatchString(text))
	}),
	constant("find", "string_find_string", func(re *regexp.Regexp, text string, _ []ref.Val) ref.Val {
		return types.String(re.FindString(text))
	}),
	constant("findAll", "string_find_all_string", findAll),
	constant("findAll", "string_find_all_string_int", findAll),
}

func findAll(re *regexp.Regexp, text string, rest []ref.Val) ref.Val {
	most := types.Int(-1)
	if len(rest) > 0 {
		given, ok := rest[0].(types.Int)
		if !ok {
			return types.MaybeNoSuchOverloadErr(rest[0])
		}
		most = given
	}
	return types.NewStringList(types.DefaultTypeAdapter, re.FindAllString(text, int(most)))
}

func constant(
	function, overload string, search func(re *regexp.Regexp, text string, rest []ref.Val) ref.Val,
) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{
		Function:   function,
		OverloadID: overload,
		RegexIndex: 1,
		Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			re, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			run := func(args ...ref.Val) ref.Val {
				text, ok := args[0].(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(args[0])
				}
				return searchGuard(func(args ...ref.Val) ref.Val { return search(re, string(text), args[2:]) }, args...)
			}
			return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), run), nil
		},
	}
}
