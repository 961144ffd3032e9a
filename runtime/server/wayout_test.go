// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestWayOut: a pull that reaches no registry names what does without one; other failures are told as they are.
func TestWayOut(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("get: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")}): true,
		&net.DNSError{Name: "docker.io"}: true,
		errors.New("manifest unknown"):   false,
	} {
		got := wayOut(err)
		if said := strings.Contains(got.Error(), "keelson image import") && strings.Contains(got.Error(), "--image-mirror"); said != want || !errors.Is(got, err) {
			t.Errorf("%v: got %v, want the way out: %v", err, got, want)
		}
	}
}
