// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const smaps = `00400000-02000000 r-xp 00000000 fe:00 123 /bin/keelson
Rss:  100 kB
Private_Dirty:       100 kB
Anonymous:             0 kB
02000000-03000000 r--p 01c00000 fe:00 123 /bin/keelson
Private_Dirty:         4 kB
Anonymous:             4 kB
03000000-03100000 rw-p 02c00000 fe:00 123 /bin/keelson
Private_Dirty:         0 kB
04000000-05000000 r--p 00000000 fe:00 124 /lib/other.so
Private_Dirty:         0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Private_Dirty:       100 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 123 /bin/keelson
Private_Dirty:         0 kB
VmFlags: rd mr mw me
`

func TestCleanSpans(t *testing.T) {
	got, err := cleanSpans(strings.NewReader(smaps), "/bin/keelson")
	want := []span{{0x400000, 0x2000000}, {0x7f0000000000, 0x7f0000001000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x, %v, want %x: not the dirty, the writable, the foreign ones", got, err, want)
	}
	if _, err := cleanSpans(strings.NewReader("zz-1 r-xp 0 0 0 /bin/keelson\n"), "/bin/keelson"); err == nil {
		t.Error("garbage: got no error")
	}
}

func residentFile(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestReleaseText also shows that the program still runs afterwards.
func TestReleaseText(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe") // touch it all
	if err != nil || len(exe) == 0 {
		t.Fatal(err)
	}
	before := residentFile(t)
	if err := releaseText(); err != nil {
		t.Fatal(err)
	}
	if after := residentFile(t); after >= before {
		t.Errorf("resident pages of files: %d kB before, %d kB after, want fewer", before, after)
	}
}
