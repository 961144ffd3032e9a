// SPDX-License-Identifier: Apache-2.0

package celenv

import (
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"keelson/lib/quantity"
)

const (
	// maxText is the longest text that a call may make, in bytes. A request has at most 3 MB.
	maxText = 10 << 20
	// maxValues is the number of values, with those inside of lists and maps, that a call may look at.
	maxValues = 1_000_000
	// maxPairs is the number of pairs that a call may compare. Kubernetes counts a unit or two for each, and allows
	// a million in an expression.
	maxPairs = 1_000_000
)

// guard decides whether a call of a function goes on to next.
type guard func(next functions.FunctionOp, args ...ref.Val) ref.Val

// guards are the guards of functions by name, for all their overloads.
var guards = map[string]guard{
	"quantity": func(next functions.FunctionOp, args ...ref.Val) ref.Val {
		if text, ok := args[0].(types.String); ok && quantity.Check(string(text)) != nil {
			return types.NewErr("quantity: longer than 64 characters, or an exponent over 100")
		}
		return next(args...)
	},
	"isQuantity": func(next functions.FunctionOp, args ...ref.Val) ref.Val {
		if text, ok := args[0].(types.String); ok && quantity.Check(string(text)) != nil {
			return types.False
		}
		return next(args...)
	},

	"replace": refuse("replace: the result is longer than 10 MiB", func(args []ref.Val) bool {
		return replacedSize(args) > maxText
	}),
	"join": refuse("join: the result is longer than 10 MiB", func(args []ref.Val) bool {
		return joinedSize(args) > maxText
	}),
	"format": refuse("format: the values are too large", func(args []ref.Val) bool {
		return weight(args[1]) > maxValues
	}),
	"flatten":     refuse("flatten: the list is too large", firstIsLarge),
	"includes":    refuse("includes: the list is too large", firstIsLarge),
	"indexOf":     indexOf,
	"lastIndexOf": lastIndexOf,

	"distinct": refuse("distinct: the list is too large", func(args []ref.Val) bool {
		return isLargePair(args[0], args[0])
	}),
	"sets.contains":   refuse("sets.contains: the lists are too large", arePairsLarge),
	"sets.equivalent": refuse("sets.equivalent: the lists are too large", arePairsLarge),
	"sets.intersects": refuse("sets.intersects: the lists are too large", arePairsLarge),
	"find":            searchGuard,
	"findAll":         searchGuard,
}

func refuse(why string, tooLarge func(args []ref.Val) bool) guard {
	return func(next functions.FunctionOp, args ...ref.Val) ref.Val {
		if tooLarge(args) {
			return types.NewErr("%s", why)
		}
		return next(args...)
	}
}

func firstIsLarge(args []ref.Val) bool { return isLarge(args[0]) }

// isLarge reports whether a value is a list with more than maxValues.
func isLarge(value ref.Val) bool {
	_, ok := value.(traits.Lister)
	return ok && weight(value) > maxValues
}

// areLarge reports whether to compare two lists or maps takes too long.
func areLarge(left, right ref.Val) bool {
	return isContainer(left) && isContainer(right) && weight(left) > maxValues && weight(right) > maxValues
}

func arePairsLarge(args []ref.Val) bool { return isLargePair(args[0], args[1]) }

// isLargePair reports whether to compare each member of one list with each of the other takes too long. A member that
// is a list or a map itself takes longer: ten times the pairs are allowed there.
func isLargePair(left, right ref.Val) bool {
	return size(left) > maxPairs/max(1, size(right)) || weight(left)*weight(right) > 10*maxPairs
}

// costs are the costs of overloads, where Kubernetes' is out of proportion to the time; nil: Kubernetes' cost.
var costs = map[string]func(args []ref.Val) *uint64{
	overloads.Equals:    func(args []ref.Val) *uint64 { return compared(args[0], args[1]) },
	overloads.NotEquals: func(args []ref.Val) *uint64 { return compared(args[0], args[1]) },
	overloads.InList: func(args []ref.Val) *uint64 {
		return atLeastOne(max(size(args[1]), weight(args[1])/10))
	},
	overloads.ExtFormatString: func(args []ref.Val) *uint64 {
		return atLeastOne((size(args[0]) + weight(args[1])) / 10)
	},
	"string_char_at_int":     func(args []ref.Val) *uint64 { return atLeastOne(size(args[0]) / 200) },
	overloads.SizeString:     func(args []ref.Val) *uint64 { return atLeastOne(size(args[0]) / 2000) },
	overloads.SizeStringInst: func(args []ref.Val) *uint64 { return atLeastOne(size(args[0]) / 2000) },

	overloads.Matches:            searched,
	overloads.MatchesString:      searched,
	"string_find_string":         searched,
	"string_find_all_string":     searched,
	"string_find_all_string_int": searched,

	loopOverload: func([]ref.Val) *uint64 { return new(uint64) },
}

// atLeastOne is a cost of at least one unit.
func atLeastOne(units int) *uint64 {
	out := uint64(max(1, units))
	return &out
}

// compared is the cost of comparing lists or maps: what is in them counts, not only how many members they have.
func compared(left, right ref.Val) *uint64 {
	if !isContainer(left) || !isContainer(right) {
		return nil
	}
	return atLeastOne(min(weight(left), weight(right)) / 10)
}

func isContainer(value ref.Val) bool {
	switch value.(type) {
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

func size(value ref.Val) int {
	switch value := value.(type) {
	case types.String: // Size counts characters, which takes a while
		return len(value)
	case traits.Sizer:
		if n, ok := value.Size().(types.Int); ok {
			return int(n)
		}
	}
	return 1
}

// weight is the number of values in a value, up to a little over maxValues; 64 bytes of text count as one. A list that
// an expression makes may have another list a thousand times in it: what takes no memory takes time.
func weight(value ref.Val) int {
	left := maxValues + 1
	weigh(value, &left)
	return maxValues + 1 - left
}

func weigh(value ref.Val, left *int) {
	if *left--; *left < 0 {
		return
	}
	switch value := value.(type) {
	case types.String:
		*left -= len(value) / 64
	case *types.Optional:
		if value.HasValue() {
			weigh(value.GetValue(), left)
		}
	case traits.Mapper:
		for it := value.Iterator(); it.HasNext() == types.True && *left >= 0; {
			key := it.Next()
			weigh(key, left)
			weigh(value.Get(key), left)
		}
	case traits.Lister:
		for it := value.Iterator(); it.HasNext() == types.True && *left >= 0; {
			weigh(it.Next(), left)
		}
	}
}

// replacedSize is the largest size of the result of replace.
func replacedSize(args []ref.Val) int {
	if len(args) < 3 {
		return 0
	}
	text, isText := args[0].(types.String)
	old, isOld := args[1].(types.String)
	by, isBy := args[2].(types.String)
	if !isText || !isOld || !isBy {
		return 0
	}
	return len(text) + strings.Count(string(text), string(old))*max(0, len(by)-len(old))
}

// joinedSize is the size of the result of join, up to a little over maxText.
func joinedSize(args []ref.Val) int {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 0
	}
	separator := 0
	if len(args) > 1 {
		separator = size(args[1])
	}
	total := 0
	for it := list.Iterator(); it.HasNext() == types.True && total <= maxText; {
		total += size(it.Next()) + separator
	}
	return total
}

// indexOf searches a text in linear time. The library compares at each character.
func indexOf(next functions.FunctionOp, args ...ref.Val) ref.Val {
	text, part, from, ok := search(args, 0)
	switch {
	case !ok && isLarge(args[0]):
		return types.NewErr("indexOf: the list is too large")
	case !ok:
		return next(args...)
	}
	begin := byteAt(text, from)
	found := strings.Index(text[begin:], part)
	if found < 0 {
		return types.Int(-1)
	}
	return types.Int(from + utf8.RuneCountInString(text[begin:begin+found]))
}

// lastIndexOf is indexOf from the end.
func lastIndexOf(next functions.FunctionOp, args ...ref.Val) ref.Val {
	text, part, from, ok := search(args, maxText)
	switch {
	case !ok && isLarge(args[0]):
		return types.NewErr("lastIndexOf: the list is too large")
	case !ok || len(args) > 2 && byteAt(text, from) == len(text):
		return next(args...)
	}
	end := min(byteAt(text, from)+len(part), len(text))
	found := strings.LastIndex(text[:end], part)
	if found < 0 {
		return types.Int(-1)
	}
	return types.Int(utf8.RuneCountInString(text[:found]))
}

// search returns the arguments of a search in a text; from is the default of the third. What is an error, and what is
// found without a search, is left to the library.
func search(args []ref.Val, from int) (text, part string, at int, ok bool) {
	in, isText := args[0].(types.String)
	of, isPart := args[1].(types.String)
	if !isText || !isPart || of == "" {
		return "", "", 0, false
	}
	if len(args) > 2 {
		given, isInt := args[2].(types.Int)
		if !isInt || given < 0 || given > maxText {
			return "", "", 0, false
		}
		from = int(given)
	}
	return string(in), string(of), from, true
}

// byteAt is the byte at which a character of a text begins; len(text) if there are fewer characters.
func byteAt(text string, character int) int {
	at := 0
	for ; character > 0 && at < len(text); character-- {
		_, width := utf8.DecodeRuneInString(text[at:])
		at += width
	}
	return at
}
