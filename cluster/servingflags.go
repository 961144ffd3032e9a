// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"keelson/apiserver/options"
)

// flags adds the flags of the secure port. Names and meaning are those of kube-controller-manager and kube-scheduler.
func (o *AgentServing) flags(fl *pflag.FlagSet, port int) {
	o.Port, o.FallbackPort = port, true
	fl.Var(securePort{o}, "secure-port", "serve health and metrics over HTTPS on this port; 0: do not. Where it is not given and the usual one is taken, a free one")
	o.Bind = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	fl.Var((*address)(&o.Bind), "bind-address", "and on this `ADDRESS`")
	fl.StringVar(&o.CertFile, "tls-cert-file", "", "`FILE` with the certificate to show (default: one that is made for this run)")
	fl.StringVar(&o.KeyFile, "tls-private-key-file", "", "`FILE` with its key")
	fl.StringVar(&o.ClientCA, "client-ca-file", "", "`FILE` of the authorities that sign callers' certificates (default: as the API server says)")
	fl.StringVar(&o.AuthnKubeconfig, "authentication-kubeconfig", "", "kubeconfig `FILE` of the API server that knows whose callers' tokens and certificates are (default: that of --kubeconfig)")
	fl.StringVar(&o.AuthzKubeconfig, "authorization-kubeconfig", "", "kubeconfig `FILE` of the API server that knows what callers may (default: that of --kubeconfig)")
	options.AddNegated(fl, &o.NoProfiling, "profiling", "serve profiles below /debug/pprof/")
	fl.StringVar(&o.MinTLS, "tls-min-version", "", "the oldest `VERSION` of TLS that callers may speak: VersionTLS12 or VersionTLS13 (default VersionTLS12)")
	fl.StringSliceVar(&o.AlwaysAllow, "authorization-always-allow-paths", slices.Clone(healthPaths), "`PATHS` that everybody may ask for, separated by commas; a * at the end stands for whatever follows")
}

// securePort is the flag --secure-port. An explicit port has no fallback.
type securePort struct{ o *AgentServing }

// String formats the flag's value.
func (p securePort) String() string {
	if p.o == nil {
		return "0"
	}
	return fmt.Sprint(p.o.Port)
}

// Set parses the flag's value.
func (p securePort) Set(text string) error {
	p.o.FallbackPort = false
	if _, err := fmt.Sscanf(text, "%d", &p.o.Port); err != nil || fmt.Sprint(p.o.Port) != text {
		return fmt.Errorf("%q is not a port", text)
	}
	return nil
}

// Type names the value in the usage text.
func (securePort) Type() string { return "int" }

// address is an IP address flag.
type address netip.Addr

// String formats the flag's value.
func (a *address) String() string { return netip.Addr(*a).String() }

// Set parses the flag's value.
func (a *address) Set(text string) error {
	x, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%q is not an IP address", text)
	}
	*a = address(x)
	return nil
}

// Type names the value in the usage text.
func (*address) Type() string { return "ip" }
