// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"time"

	"keelson/kubelet/podcgroup"
	"keelson/lib/option"
)

// Rows are the kubelet's options, by its names.
func (o *Options) Rows() []option.Row {
	return append(o.evictionRows(), []option.Row{
		option.New(&o.KubeletPort, "kubelet-port", 0,
			"`PORT` of the kubelet's server (default 10250, or a free one where that is taken)"),
		option.New(&o.ClusterDNS, "cluster-dns", nil, "`ADDRESSES` of DNS servers for pods' resolv.conf, the "+
			"first of which is the cluster IP of kube-dns (default: the tenth of the Service CIDR)"),
		option.New(&o.ClusterDomain, "cluster-domain", DefaultDomain, "DNS `DOMAIN` of the cluster"),
		option.New(&o.ResolvConf, "resolv-conf", "", "`FILE` with the node's resolvers, which pods get as their "+
			"dnsPolicy says (default /etc/resolv.conf, or if that names only the stub of systemd-resolved, "+
			"/run/systemd/resolve/resolv.conf)"),
		option.New(&o.ContainerLogMaxSize, "container-log-max-size", "10Mi",
			"rotate a container's log file before it exceeds `SIZE`; negative: never"),
		option.New(&o.ContainerLogMaxFiles, "container-log-max-files", 5,
			"keep at most `N` log files of a container, including the current one"),
		option.New(&o.Images.MaxAge, "image-maximum-gc-age", 0,
			"remove images that nothing has used for `DURATION`; 0: only when their space is needed"),
		option.New(&o.CrashBackOffMax, "crash-loop-back-off-max", 5*time.Minute,
			"wait at most `DURATION` before a container that ends again and again is restarted, 1s to 5m"),
		option.New(&o.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", nil,
			"unsafe `SYSCTLS`, or patterns that end with *, that pods may set in addition to the safe ones"),
		option.New(&o.Images.VerificationPolicy, "image-pull-credentials-verification-policy", "",
			"`POLICY` by which a pod needs credentials that can pull an image that is on the node already: "+
				"NeverVerifyPreloadedImages (but for images that the kubelet did not pull; the default), "+
				"NeverVerifyAllowlistedImages, AlwaysVerify, NeverVerify"),
		option.New(&o.Images.VerificationAllowlist, "preloaded-images-verification-allowlist", nil,
			"with NeverVerifyAllowlistedImages: image `REPOSITORIES`, or prefixes that end with /*, that need no "+
				"credentials"),
		option.New(&o.MaxPods, "max-pods", 110, "run at most `N` pods on this node"),
		option.New(&o.Images.ParallelPulls, "max-parallel-image-pulls", 3, "pull at most `N` images at once"),
		option.New(&o.Reserved.Kube, "kube-reserved", nil, "keep `NAME=QUANTITY,...` of cpu, memory and "+
			"ephemeral-storage from pods, for the cluster's own processes"),
		option.New(&o.Reserved.System, "system-reserved", nil, "keep `NAME=QUANTITY,...` of cpu, memory and "+
			"ephemeral-storage from pods, for the machine's other processes"),
		option.New(&o.PodMaxPids, "pod-max-pids", podcgroup.DefaultLimit,
			"let a pod have at most `N` processes and threads; negative: no limit of its own"),
		option.New(&o.Labels, "node-labels", nil, "register this node with the labels `KEY=VALUE,...`"),
		option.New(&o.Taints, "register-with-taints", nil,
			"register this node with the taints `KEY=VALUE:EFFECT,...`"),
		option.New(&o.NoTunnel, "no-kubelet-tunnel", false,
			"do not open a tunnel to the API servers of other processes, "+
				"through which they reach this kubelet when they cannot connect to it"),
	}...)
}

// evictionRows configure node-pressure eviction.
func (o *Options) evictionRows() []option.Row {
	config := &o.Eviction
	return option.In("Kubelet eviction", []option.Row{
		option.New(&config.Hard, "eviction-hard", DefaultEvictionHard,
			"hard eviction thresholds `SIGNAL<VALUE,...`: pods are evicted at once"),
		option.New(&config.Soft, "eviction-soft", "",
			"soft eviction thresholds `SIGNAL<VALUE,...`: pods are evicted when one was met for its grace period"),
		option.New(&config.SoftGrace, "eviction-soft-grace-period", "",
			"grace periods of the soft thresholds, `SIGNAL=DURATION,...`"),
		option.New(&config.MinimumReclaim, "eviction-minimum-reclaim", "",
			"amounts above their thresholds that evictions reclaim, `SIGNAL=VALUE,...`"),
		option.New(&config.MaxPodGrace, "eviction-max-pod-grace-period", 0,
			"maximum grace period in `SECONDS` of a pod that a soft threshold evicts; 0: the pod's own"),
		option.New(&config.Transition, "eviction-pressure-transition-period", 5*time.Minute,
			"how long a pressure condition stays True after its threshold was last met"),
	}...)
}
