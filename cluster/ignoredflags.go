// SPDX-License-Identifier: Apache-2.0

package cluster

import "keelson/lib/option"

const (
	noProxies = "front proxies are not believed by what this process serves"
	noLimit   = "the API server limits its clients, not they themselves"
	noPolling = "objects are watched, not looked at from time to time"
)

// agentIgnored are flags of both kube-controller-manager and kube-scheduler.
func agentIgnored() []option.Row {
	return []option.Row{
		option.Ignored("requestheader-client-ca-file", noProxies),
		option.Ignored("requestheader-allowed-names", noProxies),
		option.Ignored("requestheader-username-headers", noProxies),
		option.Ignored("requestheader-uid-headers", noProxies),
		option.Ignored("requestheader-group-headers", noProxies),
		option.Ignored("requestheader-extra-headers-prefix", noProxies),
		option.IgnoredSwitch("authentication-skip-lookup",
			"the API server is asked for authorities when a certificate is shown"),
		option.IgnoredSwitch("authentication-tolerate-lookup-failure", "the process starts without them"),
		option.Ignored("kube-api-qps", noLimit),
		option.Ignored("kube-api-burst", noLimit),
		option.Ignored("kube-api-content-type", "it is protobuf where the API server has it"),
		option.Ignored("cert-dir", "the certificate that is made for a run is kept in memory"),
		option.Ignored("logging-format", "it is logfmt"),
	}
}

// controllersIgnored are flags of kube-controller-manager only.
func controllersIgnored() []option.Row {
	return []option.Row{
		option.Ignored("cluster-name", "only cloud providers need it"),
		option.Ignored("cloud-provider", "there are none in the process"),
		option.IgnoredSwitch("configure-cloud-routes", "there are no cloud providers in the process"),
		option.IgnoredSwitch("enable-dynamic-provisioning", "it is always on"),
		option.Ignored("flex-volume-plugin-dir", "there are no flex volumes"),
		option.Ignored("min-resync-period", noPolling),
		option.Ignored("namespace-sync-period", noPolling),
		option.Ignored("node-monitor-period", noPolling),
		option.Ignored("pvclaimbinder-sync-period", noPolling),
		option.Ignored("resource-quota-sync-period", noPolling),
		option.Ignored("route-reconciliation-period", noPolling),
	}
}
