// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"cmp"
	"net/http"
	"net/netip"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/client/servers"
	"keelson/cluster/agents"
	"keelson/cluster/configz"
	"keelson/cluster/credentials"
	"keelson/cluster/nodehost"
	"keelson/cluster/version"
	"keelson/event/eventlog"
	"keelson/kubelet"
	"keelson/kubelet/tunnel"
	"keelson/lib/run"
	"keelson/lib/systemd"
)

// Kubelet returns the part that runs the kubelet, with the tunnel to a server in another process.
func (n *Node) Kubelet() (run.Func, error) {
	annotations, err := n.tunnelAnnotations()
	if err != nil {
		return nil, err
	}
	dir := n.Dir
	cl := n.Client(KubeletName)
	callers, err := agents.NewDelegatedAuth(cl, agents.Serving{}, n.logOf(eventlog.Kubelet))
	if err != nil {
		return nil, err
	}
	dog, err := systemd.OpenWatchdog(os.Getenv, os.Getpid())
	if err != nil {
		return nil, err
	}
	zpages := http.NewServeMux()
	agents.Pages(zpages, "kubelet", n.Flags, "/configz", "/healthz", "/logs", "/metrics", "/pods", "/runningpods",
		"/stats/summary")
	kc := kubelet.Config{
		NodeName:   n.NodeName,
		Client:     cl,
		Runtime:    n.runtime.Client,
		RootDir:    dir.Sub("kubelet"),
		VolumesDir: dir.Sub("volumes"),
		LogDir:     dir.Sub("logs"),
		Serving:    n.kubeletServing(callers, zpages),
		NodeObject: kubelet.NodeObject{
			NodeIPs:       n.NodeIPs,
			PodCIDRs:      nodehost.PrefixStrings(n.PodCIDRs),
			Annotations:   annotations,
			RegisterNode:  true,
			LeaseInterval: n.LeaseInterval,
		},
		PodDefaults: kubelet.PodDefaults{
			ClusterDomain: n.Options.Kubelet.Domain(),
			ClusterDNS:    n.podResolvers(),
			StaticPodDir:  dir.Sub("manifests"),
			CgroupRoot:    nodehost.CgroupParent(dir),
			ContainerLogs: n.Options.Kubelet.ContainerLogs(),
		},
		Reach: kubelet.Reach{
			Paths: nodehost.Paths{Cluster: dir.ID()},
			Rules: n.serviceRules(),
		},
		Eviction: n.Options.Kubelet.Eviction,
		Watchdog: dog,
		Version:  version.Kubernetes,
		Marks:    n.Marks,
		Log:      n.logOf(eventlog.Kubelet),
	}
	n.Options.Kubelet.Apply(&kc)

	// A kubelet in a process of its own opens a connection by which the server reaches it.
	parts := []run.Part{{Name: KubeletName}}
	if to, remote := kc.Client.Config.Transport.(*servers.Transport); remote && !n.Options.Kubelet.NoTunnel {
		t := tunnel.New(to, kc.Log)
		kc.Tunnel = t
		parts = append(parts, run.Part{Name: "tunnel", Run: t.Run})
	}
	// The page shows the configuration as the kubelet gets it, so that it is added last.
	zpages.Handle("/configz", agents.Configz(configz.Kubelet(&kc)))
	kl, err := kubelet.New(kc)
	if err != nil {
		return nil, err
	}
	parts[0].Run = kl.Run
	return run.Together(nil, parts...), nil
}

// kubeletServing is how the kubelet is reached: by the API server with its certificate, by others with a token that
// callers judges.
func (n *Node) kubeletServing(callers *agents.DelegatedAuth, pages http.Handler) kubelet.Serving {
	return kubelet.Serving{
		Address:      netip.IPv4Unspecified(),
		Port:         cmp.Or(n.Options.Kubelet.KubeletPort, nodehost.DefaultKubeletPort),
		FallbackPort: n.Options.Kubelet.KubeletPort == 0,
		OnListen:     n.runtime.ReserveKubelet,
		TLS:          n.Serving.TLS,
		ClientCA:     n.Serving.ClientCAs,
		AllowedNames: []string{credentials.KubeletClientUser},
		ByToken: func(w http.ResponseWriter, r *http.Request, verb string, subresources []string) bool {
			return callers.AdmitAtNode(w, r, n.NodeName, verb, subresources)
		},
		Pages: pages,
		Metrics: slices.Concat(agents.ClientMetrics(), []prometheus.Collector{
			version.Metric(), agents.GateMetric{On: n.Gates}, n.Identity,
		}),
	}
}
