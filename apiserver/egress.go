// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net"
	"net/netip"
	"slices"

	"keelson/apiserver/outbound"
)

// egress builds what makes outgoing connections; it refuses connections to the server itself.
func (s *Server) egress() *outbound.Egress {
	cfg := s.config.Outbound
	if l := s.config.Listener; l != nil {
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			cfg.Listeners = append(slices.Clone(cfg.Listeners), a.AddrPort())
		}
	}
	if host, port, err := s.advertised(); err == nil && host != "" {
		if ip, err := netip.ParseAddr(host); err == nil {
			cfg.Listeners = append(slices.Clone(cfg.Listeners), netip.AddrPortFrom(ip, uint16(port))) // a port
		}
	}
	for _, r := range s.ownRanges() { // the Service "kubernetes" has the first address of each
		cfg.OwnAddresses = append(slices.Clone(cfg.OwnAddresses), r.Masked().Addr().Next())
	}
	d := outbound.New(cfg)
	s.metrics.Registry.MustRegister(d.Collectors()...)
	return d
}
