// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"

	"keelson/apiserver/servicealloc"
	"keelson/lib/option"
)

// Services configures cluster IPs and node ports with kube-apiserver's flags.
type Services struct {
	// ClusterIPRange is a CIDR, or one per IP family separated by a comma, that of the default family first; empty:
	// 10.96.0.0/16.
	ClusterIPRange string
	// NodePortRange is a range such as the default "30000-32767".
	NodePortRange string
	// Advertise is an address of the server for others; it becomes the endpoint of the Service "kubernetes".
	Advertise string
}

// Rows are the options of Services, by kube-apiserver's names.
func (o *Services) Rows() []option.Row {
	return []option.Row{
		option.New(&o.ClusterIPRange, "service-cluster-ip-range", "", "`CIDR` of Services' cluster IPs, or two CIDRs "+
			"of IPv4 and IPv6 separated by a comma, the default family's first (default 10.96.0.0/16)"),
		option.New(&o.NodePortRange, "service-node-port-range", "",
			"`RANGE` of Services' node ports (default 30000-32767)"),
		option.New(&o.Advertise, "advertise-address", "",
			"`IP` of the API server that other machines can reach: the endpoint of the Service kubernetes"),
	}
}

// validateAdvertise requires an address that is valid as an endpoint of the Service "kubernetes", which has one family.
func (o Services) validateAdvertise(ranges []netip.Prefix) error {
	if o.Advertise == "" || len(ranges) == 0 {
		return nil
	}
	ip, err := netip.ParseAddr(o.Advertise)
	switch {
	case err != nil || ip.Zone() != "":
		return fmt.Errorf("--advertise-address %q is not an IP address", o.Advertise)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
		return fmt.Errorf("--advertise-address %s is not reachable from other machines", ip)
	case ip.Is4() != ranges[0].Addr().Is4():
		return fmt.Errorf("service IP family %q must match public address family %q", ranges[0], ip)
	}
	return nil
}

// Validate returns one sentence for each error.
func (o Services) Validate() error {
	ranges, err := o.Ranges()
	_, err2 := o.NodePorts()
	return errors.Join(err, err2, o.validateAdvertise(ranges))
}

// Ranges are the service CIDRs, the default family's first.
func (o Services) Ranges() ([]netip.Prefix, error) {
	if o.ClusterIPRange == "" {
		return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil
	}
	var out []netip.Prefix
	for i, text := range strings.Split(o.ClusterIPRange, ",") {
		_, cidr, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range[%d] is not a valid cidr: %w", i, err)
		}
		p, err := netip.ParsePrefix(cidr.String())
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range[%d] is not a valid cidr: %w", i, err)
		}
		out = append(out, p)
	}
	if len(out) > 2 {
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	}
	if len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil,
			errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family")
	}
	if err := servicealloc.CheckRanges(out); err != nil {
		return nil, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	return out, nil
}

// NodePorts is the node port range.
func (o Services) NodePorts() (servicealloc.PortRange, error) {
	if o.NodePortRange == "" {
		return servicealloc.DefaultPorts, nil
	}
	r, err := utilnet.ParsePortRange(o.NodePortRange)
	if err != nil {
		return servicealloc.PortRange{}, fmt.Errorf("--service-node-port-range %q: %w", o.NodePortRange, err)
	}
	if r.Size == 0 || r.Base == 0 {
		return servicealloc.PortRange{}, fmt.Errorf("--service-node-port-range %q: no port is in it", o.NodePortRange)
	}
	// checked by ParsePortRange
	return servicealloc.PortRange{First: int32(r.Base), Last: int32(r.Base + r.Size - 1)}, nil
}
