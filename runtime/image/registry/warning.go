// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"net/http"
	"slices"
	"strings"
)

const (
	maxWarnings    = 8   // of one pull
	maxWarningText = 500 // bytes of one
)

// warnings hands on the Warning headers of a pull's answers, each once (distribution-spec, "Warnings"). Nothing is
// decided by them.
type warnings struct {
	report func(text string)
	seen   []string
}

// read reports what is new in an answer's header.
func (w *warnings) read(from http.Header) {
	for _, header := range from.Values("Warning") {
		text, ok := warningText(header)
		if !ok || len(w.seen) == maxWarnings || slices.Contains(w.seen, text) {
			continue
		}
		w.seen = append(w.seen, text)
		w.report(text)
	}
}

// warningText returns the text of a header of the form `299 - "text"`. Others are not of a registry.
func warningText(header string) (string, bool) {
	quoted, ok := strings.CutPrefix(strings.TrimSpace(header), "299 - ")
	if !ok || len(quoted) < 3 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return "", false
	}
	text := strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	return printable(text[:min(len(text), maxWarningText)]), true
}
