// SPDX-License-Identifier: Apache-2.0

// Package quantity bounds what a quantity of foreign text can make the program compute. Kubernetes' parser accepts any
// exponent of 32 bits: to compare 1e8880888 with 1 takes a number of nine million digits, and a few more digits in the
// exponent take all memory. Parse is for single texts. CheckJSON and CheckValue find such texts in a document before
// it is decoded into a Go type. Objects from the store are not checked again: they were when they were written.
package quantity

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The bounds of a text. The largest quantities in use have exponents below 20.
const (
	maxLength   = 64
	maxExponent = 100
)

// Parse parses a quantity of foreign text.
func Parse(text string) (resource.Quantity, error) {
	if err := Check(text); err != nil {
		return resource.Quantity{}, err
	}
	return resource.ParseQuantity(text)
}

// Check refuses a text that is too expensive to parse or to compare, with the error for one that is no quantity. Other
// errors are the parser's.
func Check(text string) error {
	text = strings.TrimSpace(text)
	if len(text) > maxLength {
		return resource.ErrFormatWrong
	}
	at := strings.IndexAny(text, "eE")
	if at < 0 || at+1 == len(text) { // E alone is exa
		return nil
	}
	exponent, err := strconv.Atoi(text[at+1:])
	if err == nil && (exponent > maxExponent || exponent < -maxExponent) {
		return resource.ErrFormatWrong
	}
	return nil // the parser reads the exponent in the same way
}
