// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestHelpOfUnknownCommands: help about a word that is no command fails, and says which it is.
func TestHelpOfUnknownCommands(t *testing.T) {
	for words, want := range map[string]string{
		"help nosuch":       `unknown command "nosuch"`,
		"help token nosuch": `unknown command "nosuch" for "keelson token"`,
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(words)...), Stdio{Out: &out, Err: &errs})
		if code != 1 || !strings.Contains(errs.String(), want) || out.Len() > 0 {
			t.Errorf("%s: exit code %d, %q and %q; want 1 and %q", words, code, out.String(), errs.String(), want)
		}
	}
	var out, errs bytes.Buffer
	if code := Run(t.Context(), []string{"keelson", "help", "token", "create"}, Stdio{Out: &out, Err: &errs}); code != 0 ||
		!strings.Contains(out.String(), "keelson token create") {
		t.Errorf("help token create: exit code %d, %q, %q", code, out.String(), errs.String())
	}
}

// TestHelpIsWrapped: without a terminal, lines have at most 120 columns, except for examples and single long words.
func TestHelpIsWrapped(t *testing.T) {
	for _, words := range []string{"", "up --help", "controller-manager --help", "join --help", "help logs"} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(words)...),
			Stdio{Out: &out, Err: &errs}); code != 0 {
			t.Fatalf("%s: exit code %d, %s", words, code, errs.String())
		}
		about, rest, _ := strings.Cut(out.String(), "\nExamples:\n")
		_, lists, _ := strings.Cut(rest, "\n\n")
		if !strings.Contains(about, "Usage:\n  keelson") || !strings.Contains(lists, "Flags:\n") {
			t.Errorf("keelson %s: got\n%s", words, out.String())
		}
		for line := range strings.Lines(about + lists) {
			text := strings.TrimSpace(line)
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 120 && strings.Contains(text, " ") {
				t.Errorf("keelson %s: a line of %d columns: %s", words, n, line)
			}
		}
	}
}
