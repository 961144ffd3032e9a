// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"slices"
	"testing"
)

func TestParseInterfaces(t *testing.T) {
	const dev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:      10       1    0    0    0     0          0         0       10       1    0    0    0     0       0          0
  eth0:    1000      20    3    4    5     6          7         8     2000      40    6    8    9    10      11         12
 short:    1 2 3
`
	want := []counters{
		{name: "lo", rx: [4]uint64{10, 1}, tx: [4]uint64{10, 1}},
		{name: "eth0", rx: [4]uint64{1000, 20, 3, 4}, tx: [4]uint64{2000, 40, 6, 8}},
	}
	if got := parseInterfaces(dev); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
