// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"strings"
	"testing"
)

// TestServiceRanges: one row for what the flags may say.
func TestServiceRanges(t *testing.T) {
	const flag = "--service-cluster-ip-range"
	for _, tt := range []struct{ advertise, want string }{
		{"192.0.2.7", ""},
		{"host", `--advertise-address "host" is not an IP address`},
		{"127.0.0.1", "is not reachable from other machines"},
		{"2001:db8::1", `service IP family "10.96.0.0/16" must match public address family "2001:db8::1"`},
	} {
		err := Services{Advertise: tt.advertise}.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("advertise %s: got %v, want %s", tt.advertise, err, tt.want)
		}
	}
	for _, tt := range []struct{ ips, ports, want string }{
		{"", "", "[10.96.0.0/16] 30000-32767"},
		{"10.0.0.7/16,fd00:1::/108", "31000-31009", "[10.0.0.0/16 fd00:1::/108] 31000-31009"},
		{"fd00:1::/108,10.0.0.0/16", "80+9", "[fd00:1::/108 10.0.0.0/16] 80-89"},
		{"fd00:1::/64", "32000", "[fd00:1::/64] 32000-32000"},
		{"10.0.0.0", "", flag + "[0] is not a valid cidr"},
		{"10.0.0.0/16,x", "", flag + "[1] is not a valid cidr"},
		{"10.0.0.0/16,10.1.0.0/16", "", flag + "[0] and " + flag + "[1] must be of different IP family"},
		{"10.0.0.0/16,fd00::/108,10.1.0.0/16", "", flag + " must not contain more than two entries"},
		{"10.0.0.0/30", "", "the service cluster IP range must be at least 8 IP addresses"},
		{"fd00::/32", "", "too large"},
		{"", "32000-31000", "--service-node-port-range"},
		{"", "0", "no port is in it"},
	} {
		o := Services{ClusterIPRange: tt.ips, NodePortRange: tt.ports}
		got := ""
		if err := o.Validate(); err != nil {
			got = err.Error()
		} else {
			ranges, _ := o.Ranges()
			ports, _ := o.NodePorts()
			got = fmt.Sprintf("%v %v", ranges, ports)
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%q, %q: got %s\nwant %s", tt.ips, tt.ports, got, tt.want)
		}
	}
}
