// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"testing"
)

// TestEndedEarly: a background process that `keelson down` stops while it starts is no failure without a reason.
func TestEndedEarly(t *testing.T) {
	for want, err := range map[string]error{
		"the cluster was stopped before it was ready, as `keelson down` does":             nil,
		"the cluster ended before it was ready (signal: killed): see /data/a/keelson.log": errors.New("signal: killed"),
	} {
		if got := endedEarly(err, "/data/a/keelson.log"); got.Error() != want {
			t.Errorf("ended with %v: %q, want %q", err, got, want)
		}
	}
}
