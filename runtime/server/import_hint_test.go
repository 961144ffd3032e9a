// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestAddImportHint: a pull that reaches no registry names the ways to get an image without one; other errors do not
// change.
func TestAddImportHint(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("get: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")}): true,
		&net.DNSError{Name: "docker.io"}: true,
		errors.New("manifest unknown"):   false,
	} {
		got := addImportHint(err)
		if said := strings.Contains(got.Error(), "keelson image import") &&
			strings.Contains(got.Error(), "--image-mirror"); said != want || !errors.Is(got, err) {
			t.Errorf("%v: got %v, want the hint: %v", err, got, want)
		}
	}
}
