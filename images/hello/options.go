// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// options are the options of a tool by letter, each with its values in order. The value of an option that takes none is
// empty.
type options map[byte][]string

func (o options) has(letter byte) bool { return len(o[letter]) > 0 }

// get returns the last value of an option.
func (o options) get(letter byte, otherwise string) string {
	if all := o[letter]; len(all) > 0 {
		return all[len(all)-1]
	}
	return otherwise
}

// optionSyntax says which options a tool has.
type optionSyntax struct {
	letters string          // as for getopt(3): a colon follows a letter that takes a value
	long    map[string]byte // long names of letters
	early   bool            // the first operand ends the options: the rest is a command
	usage   string          // without "usage: "
}

// parse splits args[1:] into options and operands, which may be mixed as in GNU's tools. "--" ends the options, and "-"
// is an operand.
func (s optionSyntax) parse(args []string) (opts options, operands []string, err error) {
	opts = options{}
	args = args[1:]
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case word == "--":
			return opts, append(operands, args...), nil
		case strings.HasPrefix(word, "--"):
			args, err = s.parseLong(opts, word, args)
		case len(word) > 1 && word[0] == '-':
			args, err = s.parseLetters(opts, word[1:], args)
		case s.early:
			return opts, append([]string{word}, args...), nil
		default:
			operands = append(operands, word)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return opts, operands, nil
}

func (s optionSyntax) parseLetters(opts options, word string, rest []string) ([]string, error) {
	for i := range len(word) {
		at := strings.IndexByte(s.letters, word[i])
		switch {
		case at < 0 || word[i] == ':':
			return nil, fmt.Errorf("option -%s is not known; usage: %s", word[i:i+1], s.usage)
		case !strings.HasPrefix(s.letters[at+1:], ":"):
			opts[word[i]] = append(opts[word[i]], "")
		case i+1 < len(word):
			opts[word[i]] = append(opts[word[i]], word[i+1:])
			return rest, nil
		case len(rest) == 0:
			return nil, fmt.Errorf("option -%s needs a value; usage: %s", word[i:i+1], s.usage)
		default:
			opts[word[i]] = append(opts[word[i]], rest[0])
			return rest[1:], nil
		}
	}
	return rest, nil
}

func (s optionSyntax) parseLong(opts options, word string, rest []string) ([]string, error) {
	name, value, given := strings.Cut(word[2:], "=")
	letter, ok := s.long[name]
	takes := ok && strings.Contains(s.letters, string(rune(letter))+":")
	switch {
	case !ok || given && !takes:
		return nil, fmt.Errorf("option %s is not known; usage: %s", word, s.usage)
	case takes && !given && len(rest) == 0:
		return nil, fmt.Errorf("option %s needs a value; usage: %s", word, s.usage)
	case takes && !given:
		value = rest[0]
		rest = rest[1:]
	}
	opts[letter] = append(opts[letter], value)
	return rest, nil
}

// wantUsage is the error of a tool that was called without what it needs.
func (s optionSyntax) wantUsage() error { return fmt.Errorf("usage: %s", s.usage) }
