// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"

	"keelson/apiserver/addresses"
	"keelson/apiserver/servicealloc"
)

// serviceSettings is options.Services as resolved for the API server.
type serviceSettings struct {
	address   addresses.Own
	nodePorts servicealloc.PortRange
}

func (c Config) serviceSettings(listener net.Listener) (settings serviceSettings, err error) {
	if settings.address.ServiceCIDRs, err = c.Services.Ranges(); err != nil {
		return settings, err
	}
	if settings.nodePorts, err = c.Services.NodePorts(); err != nil || listener == nil {
		return settings, err
	}
	settings.address.Listener = listener.Addr()
	end := c.endpoint()
	if !end.IsValid() || end.Is4() != settings.address.ServiceCIDRs[0].Addr().Is4() {
		return settings, nil
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return settings, fmt.Errorf("port of the API server: %w", err)
	}
	settings.address.Advertise = net.JoinHostPort(end.String(), port)
	return settings, nil
}
