// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"net/netip"

	"keelson/apiserver/servicealloc"
)

// serviceSettings is options.Services as resolved for the API server. advertise is the endpoint of the Service
// "kubernetes", host and port; "": the listener's.
type serviceSettings struct {
	ranges    []netip.Prefix
	nodePorts servicealloc.PortRange
	advertise string
}

func (c Config) serviceSettings(listener net.Listener) (s serviceSettings, err error) {
	if s.ranges, err = c.Services.Ranges(); err != nil {
		return s, err
	}
	end := c.endpoint()
	if s.nodePorts, err = c.Services.NodePorts(); err != nil || !end.IsValid() || listener == nil ||
		end.Is4() != s.ranges[0].Addr().Is4() {
		return s, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return s, fmt.Errorf("port of the API server: %w", err)
	}
	s.advertise = net.JoinHostPort(end.String(), port)
	return s, nil
}
