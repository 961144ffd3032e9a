// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"testing"

	"keelson/runtime/image/imagetest"
)

// TestWindowsAreCountedTogether: a zstd stream waits while others have the windows, and gives its own back.
func TestWindowsAreCountedTogether(t *testing.T) {
	all := NewWindows()
	first, err := Decompress(t.Context(), bytes.NewReader(imagetest.WideFrame([]byte("x"))), all)
	if err != nil {
		t.Fatal(err)
	}
	if all.TryAcquire(1) {
		t.Error("the largest window leaves room for others")
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if !all.TryAcquire(maxWindow) {
		t.Error("the window was not given back")
	}
}
