// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"keelson/cluster/datadir"
)

// TestCheckPodRange: a start whose pod range another cluster has in this network namespace is refused, with its
// directory; its own link is no reason.
func TestCheckPodRange(t *testing.T) {
	const other = datadir.Dir("/srv/other")
	at := func(name string, third byte) []link {
		network := &net.IPNet{IP: net.IPv4(10, 42, third, 1), Mask: net.CIDRMask(24, 32)}
		return []link{{name: name, addrs: []net.Addr{network}}}
	}
	for name, test := range map[string]struct {
		links []link
		want  string
	}{
		"nothing":           {},
		"its own link":      {links: at(podLinkPrefix+"me", 7)},
		"a running cluster": {links: at(podLinkPrefix+other.ID(), 7), want: "keelson down --data-dir /srv/other"},
		"a stopped cluster": {links: at(podLinkPrefix+"left", 7), want: "ip link delete kl-left"},
		"another range":     {links: at(podLinkPrefix+"x", 8)},
	} {
		err := checkPodRange([]netip.Prefix{netip.MustParsePrefix("10.42.7.0/24")}, "me", test.links, func() []datadir.Dir {
			return []datadir.Dir{other}
		})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
