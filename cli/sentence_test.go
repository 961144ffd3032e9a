// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestMistyped: who mistypes a command reads the nearest one, on one line.
func TestMistyped(t *testing.T) {
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"keelson", "timline"}, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	if want := "keelson: unknown command \"timline\" for \"keelson\": did you mean timeline?\n"; code != 1 || errs.String() != want {
		t.Errorf("got %d, %q, want 1, %q", code, errs.String(), want)
	}
}
