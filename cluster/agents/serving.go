// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"net/netip"
	"slices"

	"keelson/apiserver/options"
	"keelson/lib/option"
)

// Rows are the options of the secure port. Names and meaning are those of kube-controller-manager and kube-scheduler.
func (o *Serving) Rows(port int) []option.Row {
	o.Port = port
	o.FallbackPort = true
	o.Bind = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return []option.Row{
		option.Set(securePort{o}, "secure-port",
			"serve health checks and metrics over HTTPS on this port; 0: disabled. If "+
				"the flag is not set and the default port is in use, a free port"),
		option.Set((*address)(&o.Bind), "bind-address", "listen `ADDRESS` of --secure-port"),
		option.New(&o.CertFile, "tls-cert-file", "",
			"`FILE` with the serving certificate (default: generated at start)"),
		option.New(&o.KeyFile, "tls-private-key-file", "", "`FILE` with the private key of --tls-cert-file"),
		option.New(&o.ClientCA, "client-ca-file", "",
			"`FILE` with the CAs of client certificates (default: those of the API server)"),
		option.New(&o.AuthnKubeconfig, "authentication-kubeconfig", "",
			"kubeconfig `FILE` of the API server that authenticates clients (default: --kubeconfig)"),
		option.New(&o.AuthzKubeconfig, "authorization-kubeconfig", "",
			"kubeconfig `FILE` of the API server that authorizes clients (default: --kubeconfig)"),
		option.Not(&o.NoProfiling, "profiling", "serve profiles below /debug/pprof/"),
		option.New(&o.MinTLS, "tls-min-version", "",
			"minimum TLS `VERSION`: VersionTLS12 or VersionTLS13 (default VersionTLS12)"),
		options.CurvesRow(&o.Curves),
		option.New(&o.AlwaysAllow, "authorization-always-allow-paths", slices.Clone(healthPaths),
			"`PATHS` that need no authorization, separated by commas; a trailing * matches any suffix"),
	}
}

// securePort is the flag --secure-port. An explicit port has no fallback.
type securePort struct{ o *Serving }

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
