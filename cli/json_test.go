// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestCopyJSON: every document of a stream is indented, and fields that this program does not know stay.
func TestCopyJSON(t *testing.T) {
	var out bytes.Buffer
	const want = "{\n    \"a\": [\n        1\n    ]\n}\n{\n    \"later\": true\n}\n"
	err := copyJSON(&out, strings.NewReader(`{"a":[1]}`+"\n"+`{"later":true}`))
	if err != nil || out.String() != want {
		t.Errorf("got %v,\n%s\nwant\n%s", err, out.String(), want)
	}
	if err := copyJSON(&out, strings.NewReader(`{"a":`)); err == nil {
		t.Error("a document that ends early: no error")
	}
	out.Reset()
	if err := printJSON(&out, map[string]int{"nodes": 1}); err != nil || out.String() != "{\n    \"nodes\": 1\n}\n" {
		t.Errorf("got %v, %s", err, out.String())
	}
}
