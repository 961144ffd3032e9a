// SPDX-License-Identifier: Apache-2.0

// Package waittest lets tests wait for what gives no notification: other processes, files, the kernel, servers that can
// only be asked. What can be waited on (a channel, an informer, a watch: clienttest.Until) or runs in a synctest bubble
// is not polled.
package waittest

import (
	"testing"
	"time"
)

// Patience is how long is waited before the test fails: much longer than any machine takes, since a test that passes
// does not wait for it.
const Patience = 2 * time.Minute

// pauses between two questions grow from the first to the longest.
const (
	firstPause   = time.Millisecond
	longestPause = 20 * time.Millisecond
)

// Until asks until ok, and fails the test when that takes too long. what says what is waited for.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !wait(ok) {
		t.Fatalf("not within %v: %s", Patience, what)
	}
}

// Right asks until nothing is wrong: until the answer is empty. It fails the test with the last answer.
func Right(t testing.TB, what string, wrong func() string) {
	t.Helper()
	var last string
	if !wait(func() bool {
		last = wrong()
		return last == ""
	}) {
		t.Fatalf("not within %v: %s: %s", Patience, what, last)
	}
}

func wait(ok func() bool) bool {
	pause := firstPause
	for end := time.Now().Add(Patience); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(pause*5/4, longestPause)
	}
	return true
}
