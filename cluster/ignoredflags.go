// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/spf13/pflag"
)

// ignored is a flag of a Kubernetes component that is accepted without effect, so that existing manifests and units
// work. why is shown to users.
type ignored struct {
	name, why string
	// boolean marks a boolean flag.
	boolean bool
}

// ignoredFlags adds flags that accept any value.
func ignoredFlags(fl *pflag.FlagSet, list []ignored) {
	for _, f := range list {
		fl.Var(discardedValue{}, f.name, "without effect: "+f.why)
		if f.boolean {
			fl.Lookup(f.name).NoOptDefVal = "true"
		}
	}
}

const (
	noProxies = "front proxies are not believed by what this process serves"
	noLimit   = "the API server limits its clients, not they themselves"
	noPolling = "objects are watched, not looked at from time to time"
)

// agentIgnored are flags of both kube-controller-manager and kube-scheduler.
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

// controllersIgnored are flags of kube-controller-manager only.
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

// discardedValue is a flag value that is discarded.
type discardedValue struct{}

// String formats the flag's value.
func (discardedValue) String() string { return "" }

// Set discards the value.
func (discardedValue) Set(string) error { return nil }

// Type names the value in the usage text.
func (discardedValue) Type() string { return "string" }
