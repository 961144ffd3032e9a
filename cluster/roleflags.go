// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"time"

	"github.com/spf13/pflag"

	"keelson/apiserver/options"
	"keelson/cluster/nodehost"
	"keelson/cluster/storage"
	"keelson/lib/flaggroup"
)

// Flags of roles in processes of their own. The flags that a role has everywhere are defined beside the options that
// they set.

func apiServerFlags(fl *pflag.FlagSet, r *RoleConfig) {
	fl.IntVar(&r.Port, "port", 6443, "port of the API; 0 picks a free one")
	r.Etcd.AddFlags(fl)
	r.Etcd.QuotaFlag(fl)
	storage.AcceptDataLossFlag(fl, &r.AcceptDataLoss)
}

// agentFlags are the flags of a role that is kube-controller-manager or kube-scheduler in Kubernetes.
func agentFlags(lease string, port int) func(*pflag.FlagSet, *RoleConfig) {
	return func(fl *pflag.FlagSet, r *RoleConfig) {
		flaggroup.Add(fl, "Leader election", func(fl *pflag.FlagSet) { leaderFlags(lease)(fl, r) })
		flaggroup.Add(fl, "Secure serving", func(fl *pflag.FlagSet) { r.Serving.flags(fl, port) })
		gatesFlag(fl, &r.Gates)
		ignoredFlags(fl, agentIgnored)
	}
}

func controllerManagerFlags(fl *pflag.FlagSet, r *RoleConfig) {
	agentFlags(controllersLease, ControllersPort)(fl, r)
	r.Signing.Flags(fl)
	fl.Var((*prefixes)(&r.Controllers.PodRanges.Reserved), "service-cluster-ip-range",
		"no node has its range of pod addresses out of `CIDR`, that of Services, or of one of each IP family, "+
			"separated by a comma")
	ignoredFlags(fl, controllersIgnored)
	fl.Bool("use-service-account-credentials", true, "without effect: each controller acts as its service account")
}

// leaderFlags configure leader election of a role by the given lease.
func leaderFlags(lease string) func(*pflag.FlagSet, *RoleConfig) {
	return func(fl *pflag.FlagSet, r *RoleConfig) {
		e := &r.Election
		options.AddNegated(fl, &e.Off, "leader-elect",
			"work only while holding a lease, so that of several copies one works")
		fl.DurationVar(&e.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
			"how long other candidates wait after the last renewal before they acquire the lease")
		fl.DurationVar(&e.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
			"how long the leader retries a failed renewal before it stops leading")
		fl.DurationVar(&e.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
			"interval between attempts to acquire or renew the lease")
		fl.StringVar(&e.Lock, "leader-elect-resource-lock", "leases",
			"type of the lock object; only leases is supported")
		fl.StringVar(&e.Name, "leader-elect-resource-name", lease, "name of the lease")
		fl.StringVar(&e.Namespace, "leader-elect-resource-namespace", "kube-system", "namespace of the lease")
	}
}

func kubeletFlags(fl *pflag.FlagSet, r *RoleConfig) {
	fl.StringVar(&r.Bootstrap, "bootstrap-kubeconfig", "",
		"`FILE` with a bootstrap token: request the node's certificates from the API server, and renew them")
	fl.StringVar(&r.ClientCA, "client-ca-file", "",
		"`FILE` with the CAs of the API server's client certificate (default: those of the API server)")
	proxyFlags(fl, r)
	options.CurvesFlag(fl, &r.Node.Curves)
	fl.StringVar(&r.RuntimeEndpoint, "container-runtime-endpoint", "", "use containerd or CRI-O at `unix://PATH`")
	mirrorFlag(fl, r)
}

// nodeNameFlag is for roles that must know on which node they run.
func nodeNameFlag(fl *pflag.FlagSet, r *RoleConfig) {
	fl.StringVar(&r.NodeName, "node-name", "", "name of this node (default: the host's name)")
}

// proxyFlags are the flags of a process with the service proxy that has no API server.
func proxyFlags(fl *pflag.FlagSet, r *RoleConfig) {
	nodeNameFlag(fl, r)
	gatesFlag(fl, &r.Gates)
}

func mirrorFlag(fl *pflag.FlagSet, r *RoleConfig) {
	fl.StringArrayVar(&r.Mirrors, "image-mirror", nil, "pull images of a registry host from another place: `HOST=URL`")
}

// dnsFlags are the flags of a DNS server without a kubelet in its process.
func dnsFlags(fl *pflag.FlagSet, r *RoleConfig) {
	nodeNameFlag(fl, r)
	fl.StringSliceVar(&r.Node.ClusterDNS, "cluster-dns", nil, "`ADDRESS` of the service kube-dns (default: 10.96.0.10)")
	fl.StringVar(&r.Node.ClusterDomain, "cluster-domain", nodehost.DefaultDomain, "DNS `DOMAIN` of the cluster")
	fl.StringVar(&r.Node.ResolvConf, "resolv-conf", "", "`FILE` with the servers that are asked for names outside of "+
		"the cluster (default: /etc/resolv.conf)")
}
