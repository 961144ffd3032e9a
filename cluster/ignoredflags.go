// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/spf13/pflag"
)

// ignored is a flag of a component of Kubernetes that is accepted, so that its manifests and units work as they are, and has no effect; why
// is what users read.
type ignored struct {
	name, why string
	// yesNo flags need no value.
	yesNo bool
}

// ignoredFlags adds flags that may have any value.
func ignoredFlags(fl *pflag.FlagSet, list []ignored) {
	for _, f := range list {
		fl.Var(anything{}, f.name, "without effect: "+f.why)
		if f.yesNo {
			fl.Lookup(f.name).NoOptDefVal = "true"
		}
	}
}

const (
	noProxies = "front proxies are not believed by what this process serves"
	noLimit   = "the API server limits its clients, not they themselves"
	noPolling = "objects are watched, not looked at from time to time"
)

// agentIgnored are flags of kube-controller-manager and kube-scheduler both.
var agentIgnored = []ignored{
	{"requestheader-client-ca-file", noProxies, false},
	{"requestheader-allowed-names", noProxies, false},
	{"requestheader-username-headers", noProxies, false},
	{"requestheader-uid-headers", noProxies, false},
	{"requestheader-group-headers", noProxies, false},
	{"requestheader-extra-headers-prefix", noProxies, false},
	{"authentication-skip-lookup", "the API server is asked for authorities when a certificate is shown", true},
	{"authentication-tolerate-lookup-failure", "the process starts without them", true},
	{"kube-api-qps", noLimit, false},
	{"kube-api-burst", noLimit, false},
	{"kube-api-content-type", "it is protobuf where the API server has it", false},
	{"cert-dir", "the certificate that is made for a run is kept in memory", false},
	{"logging-format", "it is logfmt", false},
}

// controllersIgnored are those of kube-controller-manager alone.
var controllersIgnored = []ignored{
	{"cluster-name", "only cloud providers need it", false},
	{"cloud-provider", "there are none in the process", false},
	{"configure-cloud-routes", "there are no cloud providers in the process", true},
	{"enable-dynamic-provisioning", "it is always on", true},
	{"flex-volume-plugin-dir", "there are no flex volumes", false},
	{"min-resync-period", noPolling, false},
	{"namespace-sync-period", noPolling, false},
	{"node-monitor-period", noPolling, false},
	{"pvclaimbinder-sync-period", noPolling, false},
	{"resource-quota-sync-period", noPolling, false},
	{"route-reconciliation-period", noPolling, false},
}

// anything is a value that nobody reads.
type anything struct{}

// String is the flag's value.
func (anything) String() string { return "" }

// Set takes the flag's value.
func (anything) Set(string) error { return nil }

// Type is how the usage text names it.
func (anything) Type() string { return "string" }
