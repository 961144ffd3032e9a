// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"time"

	"github.com/spf13/pflag"

	"keelson/lib/flaggroup"
)

// flags adds the kubelet's flags. Names and meaning are the kubelet's.
func (o *NodeOptions) flags(fl *pflag.FlagSet) {
	fl.IntVar(&o.KubeletPort, "kubelet-port", 0, "`PORT` of the kubelet's server (default 10250, or a free one where that is taken)")
	fl.StringSliceVar(&o.ClusterDNS, "cluster-dns", nil, "write the DNS servers `ADDRESSES` into pods, of which the first is the service kube-dns (default: the tenth address of the services' range)")
	fl.StringVar(&o.ClusterDomain, "cluster-domain", defaultDomain, "names of the cluster end with `DOMAIN`")
	fl.StringVar(&o.ResolvConf, "resolv-conf", "", "give pods the resolvers that `FILE` names, beside or in place of the cluster's as their dnsPolicy says (default /etc/resolv.conf, or where that names only the stub of systemd-resolved, /run/systemd/resolve/resolv.conf)")
	fl.StringVar(&o.ContainerLogMaxSize, "container-log-max-size", "10Mi", "rotate a container's log before a file of it exceeds `SIZE`; negative: never")
	fl.IntVar(&o.ContainerLogMaxFiles, "container-log-max-files", 5, "keep at most `N` files of a container's log, with the one that is written to")
	fl.StringSliceVar(&o.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", nil, "let pods set the kernel parameters `SYSCTLS` of their namespaces, or those with prefixes that end with *, beside the safe ones")
	fl.StringVar(&o.ImageVerificationPolicy, "image-pull-credentials-verification-policy", "", "let a pod use an image that is on the node only with credentials that can pull it, by `POLICY`: NeverVerifyPreloadedImages (all but images that no pod's pull has brought; the default), NeverVerifyAllowlistedImages, AlwaysVerify, NeverVerify")
	fl.StringSliceVar(&o.ImageVerificationAllowlist, "preloaded-images-verification-allowlist", nil, "with NeverVerifyAllowlistedImages: `REPOSITORIES`, or prefixes that end with /*, that every pod may use")
	fl.StringToStringVar(&o.Labels, "node-labels", nil, "register this node with the labels `KEY=VALUE,...`")
	fl.StringSliceVar(&o.Taints, "register-with-taints", nil, "register this node with the taints `KEY=VALUE:EFFECT,...`")
	fl.BoolVar(&o.NoTunnel, "no-kubelet-tunnel", false, "do not keep a connection open to an API server in another process, by which it reaches this node's kubelet where it cannot connect to it")
	flaggroup.Add(fl, "Kubelet eviction", o.evictionFlags)
}

// evictionFlags configure node-pressure eviction.
func (o *NodeOptions) evictionFlags(fl *pflag.FlagSet) {
	e := &o.Eviction
	fl.StringVar(&e.Hard, "eviction-hard", DefaultEvictionHard, "evict pods at once while less is available than `SIGNAL<VALUE,...`")
	fl.StringVar(&e.Soft, "eviction-soft", "", "evict pods when less than `SIGNAL<VALUE,...` has been available for a grace period")
	fl.StringVar(&e.SoftGrace, "eviction-soft-grace-period", "", "these grace periods, `SIGNAL=DURATION,...`")
	fl.StringVar(&e.MinimumReclaim, "eviction-minimum-reclaim", "", "how much more than its threshold must be available before a signal counts as resolved, `SIGNAL=VALUE,...`")
	fl.Int64Var(&e.MaxPodGrace, "eviction-max-pod-grace-period", 0, "how many `SECONDS` a pod gets at most that a soft threshold evicts; 0: its own grace period")
	fl.DurationVar(&e.Transition, "eviction-pressure-transition-period", 5*time.Minute, "how long a pressure condition stays after its threshold was last met")
}
