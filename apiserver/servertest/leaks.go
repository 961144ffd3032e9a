// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"keelson/lib/waittest"
)

// NoLeaks fails the test when goroutines of the server outlive it. Call it first: its check runs last.
func NoLeaks(t *testing.T) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		waittest.Right(t, "goroutines end", func() string {
			after := goroutines()
			if len(after) <= len(before) {
				return ""
			}
			return fmt.Sprintf("%d are left, %d were before:\n%s", len(after), len(before), strings.Join(after, "\n\n"))
		})
	})
}

// goroutines are the stacks that run code of ours.
func goroutines() []string {
	buf := make([]byte, 4<<20)
	var out []string
	for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(s, "keelson/") && !strings.Contains(s, "testing.tRunner") {
			out = append(out, s)
		}
	}
	return out
}
