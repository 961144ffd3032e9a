// SPDX-License-Identifier: Apache-2.0

package quantity

import "bytes"

const (
	// suspectExponent is the number of digits in a row that make an exponent suspect. Shorter ones are cheap.
	suspectExponent = 4
	// suspectNumber is the number of digits in a row that may be part of a text over maxLength: a text has one dot and
	// one exponent, so one of its three rows has as many.
	suspectNumber = (maxLength - 4) / 3
)

// MayExceed reports whether bytes of any form may contain the text of a quantity that Check refuses. It is quick and
// errs on the side of true.
func MayExceed(doc []byte) bool { return scan(doc, false) }

// JSONMayExceed is MayExceed for JSON, where a text has an end: digits in a digest or an identifier do not count.
func JSONMayExceed(doc []byte) bool { return scan(doc, true) || hasEscape(doc) }

// scan looks at each fourth byte: no four digits in a row lie between these.
func scan(doc []byte, delimited bool) bool {
	for i := suspectExponent - 1; i < len(doc); i += suspectExponent {
		if !isDigit(doc[i]) {
			continue
		}
		begin := i
		for begin > 0 && isDigit(doc[begin-1]) {
			begin--
		}
		for i+1 < len(doc) && isDigit(doc[i+1]) {
			i++
		}
		row := i + 1 - begin
		if row >= suspectNumber || row >= suspectExponent && isExponent(doc, begin, i+1, delimited) {
			return true
		}
	}
	return false
}

// isExponent reports whether the digits from begin to end are the exponent of a number.
func isExponent(doc []byte, begin, end int, delimited bool) bool {
	if begin > 0 && isSign(doc[begin-1]) {
		begin--
	}
	if begin == 0 || doc[begin-1] != 'e' && doc[begin-1] != 'E' {
		return false
	}
	if !delimited {
		return true
	}
	begin--
	for begin > 0 && (isDigit(doc[begin-1]) || isSign(doc[begin-1]) || doc[begin-1] == '.') {
		begin--
	}
	return (begin == 0 || !isLetter(doc[begin-1])) && (end == len(doc) || !isLetter(doc[end]))
}

// hasEscape reports whether JSON has a character as an escape, other than those that encoders write for HTML.
func hasEscape(doc []byte) bool {
	for {
		_, rest, found := bytes.Cut(doc, []byte(`\u`))
		if !found {
			return false
		}
		isHTML := bytes.HasPrefix(rest, []byte("003c")) || bytes.HasPrefix(rest, []byte("003e")) ||
			bytes.HasPrefix(rest, []byte("0026"))
		if !isHTML {
			return true
		}
		doc = rest
	}
}

func isDigit(c byte) bool { return c-'0' < 10 }

func isSign(c byte) bool { return c == '+' || c == '-' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
