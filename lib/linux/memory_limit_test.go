// SPDX-License-Identifier: Apache-2.0

package linux

import "testing"

func TestOwnMemory(t *testing.T) {
	if got := OwnMemory(1 << 20); got != 1<<20 {
		t.Errorf("of a machine with 1 MiB: got %d", got)
	}
	if got := OwnMemory(1 << 62); got <= 0 {
		t.Errorf("of a large machine: got %d", got)
	}
	for _, tt := range []struct {
		text string
		mode CgroupMode
		want string
	}{
		{"5:memory:/a/b\n1:name=systemd:/c\n0::/d\n", CgroupV1, "/a/b"},
		{"5:memory:/a/b\n0::/d\n", CgroupHybrid, "/a/b"},
		{"0::/d/e\n", CgroupV2, "/d/e"},
		{"", CgroupV2, "/"},
		{"0::/../outside\n", CgroupV2, "/outside"},
	} {
		if got := memoryCgroup(tt.text, tt.mode); got != tt.want {
			t.Errorf("%q, %s: got %q, want %q", tt.text, tt.mode, got, tt.want)
		}
	}
}
