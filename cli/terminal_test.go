// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestPrintTable: a table stays a table for programs and where the terminal is wide enough. On a narrower one, each row
// is a paragraph that fits.
func TestPrintTable(t *testing.T) {
	titles := strings.Fields("NAME SUBJECT NAMES FILE")
	rows := [][]string{
		{"admin", "admin", "", "/var/lib/keelson/pki/admin.crt"},
		{"apiserver", "kube-apiserver", "localhost,kubernetes,kubernetes.default,127.0.0.1", "/pki/apiserver.crt"},
	}
	printed := func(width int) string {
		var out bytes.Buffer
		if err := printTable(&screen{out: &out, width: width}, titles, rows); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, width := range []int{0, 200} {
		if got := printed(width); strings.Count(got, "\n") != 3 || !strings.Contains(got, "FILE") {
			t.Errorf("width %d: not a table:\n%s", width, got)
		}
	}
	const want = `admin
   subject    admin
   file       /var/lib/keelson/pki/admin.crt
apiserver
   subject    kube-apiserver
   names      localhost, kubernetes, kubernetes.default,
              127.0.0.1
   file       /pki/apiserver.crt
`
	if got := printed(60); got != want {
		t.Errorf("width 60: got\n%s\nwant\n%s", got, want)
	}
}
