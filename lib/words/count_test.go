// SPDX-License-Identifier: Apache-2.0

package words

import "testing"

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 nodes", 1: "1 node", 12: "12 nodes"} {
		if got := Count(n, "node"); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

// TestBytes: a unit of 1,024 has its own name, as in quantities of Kubernetes.
func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		1023:                 "1023 B",
		1 << 10:              "1 KiB",
		5 << 20:              "5.0 MiB",
		1<<30 + 1<<29:        "1.50 GiB",
		7_000_000:            "6.7 MiB",
		1<<20 + 1<<19 + 1024: "1.5 MiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
