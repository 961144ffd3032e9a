// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"net/netip"

	"keelson/lib/option"
)

// Options are what a user may say of a server. Zero is the default.
type Options struct {
	// Config is a file; empty: the ConfigMap.
	Config string
	// Listen is ADDRESS or ADDRESS:PORT; empty: port 53 of the node's address in its pod network.
	Listen string
	// Allow lists ranges of addresses that may query in addition to pods and nodes.
	Allow []string
}

// Rows are the options of the DNS server.
func (o *Options) Rows() []option.Row {
	return []option.Row{
		option.New(&o.Config, "dns-config", "",
			"`FILE` with upstreams, stub domains and hosts, in place of the ConfigMap kube-system/keelson-dns"),
		option.New(&o.Listen, "dns-listen", "",
			"serve DNS at `ADDRESS[:PORT]` (default: port 53 of the node's address in its pod network)"),
		option.New(&o.Allow, "dns-allow", nil, "answer queries from `CIDRS` in addition to those from pods and nodes"),
	}
}

// Address is where to listen; not valid: nothing was said.
func (o *Options) Address() (netip.AddrPort, error) {
	if o.Listen == "" {
		return netip.AddrPort{}, nil
	}
	ap, err := netip.ParseAddrPort(o.Listen)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(o.Listen); err == nil {
			ap = netip.AddrPortFrom(a, 53)
		}
	}
	switch {
	case err != nil:
		return ap, fmt.Errorf("--dns-listen %q is neither ADDRESS nor ADDRESS:PORT", o.Listen)
	case ap.Addr().IsUnspecified():
		return ap, fmt.Errorf("--dns-listen %q: one address of the machine; at all of them anybody could ask", o.Listen)
	}
	return ap, nil
}

// Ranges are those of Allow.
func (o *Options) Ranges() ([]netip.Prefix, error) {
	var out []netip.Prefix
	var errs []error
	for _, t := range o.Allow {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("--dns-allow %q is no range of addresses", t))
			continue
		}
		out = append(out, p.Masked())
	}
	return out, errors.Join(errs...)
}

// Validate says what is wrong.
func (o *Options) Validate() error {
	_, err := o.Address()
	_, err2 := o.Ranges()
	return errors.Join(err, err2)
}
