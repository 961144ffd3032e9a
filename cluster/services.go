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

func (c Config) serviceSettings(listener net.Listener) (settings serviceSettings, err error) {
	if settings.ranges, err = c.Services.Ranges(); err != nil {
		return settings, err
	}
	end := c.endpoint()
	if settings.nodePorts, err = c.Services.NodePorts(); err != nil || !end.IsValid() || listener == nil ||
		end.Is4() != settings.ranges[0].Addr().Is4() {
		return settings, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return settings, fmt.Errorf("port of the API server: %w", err)
	}
	settings.advertise = net.JoinHostPort(end.String(), port)
	return settings, nil
}
