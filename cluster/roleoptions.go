// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/options"
	"keelson/cluster/agents"
	"keelson/cluster/configz"
	"keelson/cluster/nodehost"
	"keelson/cluster/scheduling"
	"keelson/cluster/storage"
	"keelson/lib/option"
)

// Options of roles in processes of their own. The options that a role has everywhere are with what they set.

func apiServerRows(r *RoleConfig) []option.Row {
	return append(r.Etcd.Rows(),
		option.New(&r.Port, "port", 6443, "port of the API; 0 picks a free one"),
		r.Etcd.QuotaRow(), storage.AcceptDataLossRow(&r.AcceptDataLoss))
}

// The secure ports of kube-controller-manager and kube-scheduler.
const (
	ControllersPort = 10257
	SchedulerPort   = 10259
)

// agentRows are the options of a role that is kube-controller-manager or kube-scheduler in Kubernetes.
func agentRows(r *RoleConfig, lease string, port int) []option.Row {
	return slices.Concat(
		option.In("Leader election", r.Election.Rows(lease)...),
		option.In("Secure serving", r.Serving.Rows(port)...),
		[]option.Row{gatesRow(&r.Gates)},
		agentIgnored(),
	)
}

func controllerManagerRows(r *RoleConfig) []option.Row {
	of := slices.Concat(agentRows(r, controllersLease, ControllersPort), r.Signing.Rows(), controllersIgnored())
	return append(of, []option.Row{
		option.Set((*option.CIDRs)(&r.Controllers.PodRanges.Reserved), "service-cluster-ip-range",
			"no node has its range of pod addresses out of `CIDR`, that of Services, or of one of each IP family, "+
				"separated by a comma"),
		option.New(new(bool), "use-service-account-credentials", true,
			"without effect: each controller acts as its service account"),
	}...)
}

func kubeletRows(r *RoleConfig) []option.Row {
	return slices.Concat(proxyRows(r), registryRows(r), []option.Row{
		option.New(&r.Bootstrap, "bootstrap-kubeconfig", "",
			"`FILE` with a bootstrap token: request the node's certificates from the API server, and renew them"),
		option.New(&r.ClientCA, "client-ca-file", "",
			"`FILE` with the CAs of the API server's client certificate (default: those of the API server)"),
		options.CurvesRow(&r.Node.Curves),
		option.New(&r.RuntimeEndpoint, "container-runtime-endpoint", "", "use containerd or CRI-O at `unix://PATH`"),
	})
}

// nodeNameRow is for roles that must know on which node they run.
func nodeNameRow(r *RoleConfig) option.Row {
	return option.New(&r.NodeName, "node-name", "", "name of this node (default: the host's name)")
}

// nodeNameRows is nodeNameRow as the only option.
func nodeNameRows(r *RoleConfig) []option.Row { return []option.Row{nodeNameRow(r)} }

// proxyRows are the options of a process with the service proxy that has no API server.
func proxyRows(r *RoleConfig) []option.Row { return []option.Row{nodeNameRow(r), gatesRow(&r.Gates)} }

// registryRows are the options of what pulls images.
func registryRows(r *RoleConfig) []option.Row {
	return []option.Row{
		option.Each(&r.Mirrors, "image-mirror", "pull images of a registry host from another place: `HOST=URL`"),
		option.New(&r.RegistriesFile, "image-registries", "",
			"`FILE` with mirrors, certificates and logins of registries: docs/registries.md"),
	}
}

// dnsRows are the options of a DNS server without a kubelet in its process.
func dnsRows(r *RoleConfig) []option.Row {
	return []option.Row{
		nodeNameRow(r),
		option.New(&r.Node.ClusterDNS, "cluster-dns", nil, "`ADDRESS` of the service kube-dns (default: 10.96.0.10)"),
		option.New(&r.Node.ClusterDomain, "cluster-domain", nodehost.DefaultDomain, "DNS `DOMAIN` of the cluster"),
		option.New(&r.Node.ResolvConf, "resolv-conf", "",
			"`FILE` with the servers that are asked for names outside of "+
				"the cluster (default: /etc/resolv.conf)"),
	}
}

func schedulerRows(r *RoleConfig) []option.Row {
	return append(agentRows(r, scheduling.Lease, SchedulerPort), []option.Row{
		option.New(&r.Scheduler.ConfigFile, "config", "",
			"--scheduler-config, as kube-scheduler calls it: a `FILE` with a KubeSchedulerConfiguration"),
		option.New(&r.Scheduler.Check, "check", "",
			"check a `FILE` with a KubeSchedulerConfiguration or with SchedulingPolicies, and exit"),
		option.New(&r.Scheduler.PrintCRD, "print-crd", false,
			"print what defines SchedulingPolicy, for kubectl apply -f -, and exit"),
	}...)
}

// controllersConfigz and schedulerConfigz are what /configz of these roles shows.
func controllersConfigz(role RoleConfig) (string, agents.Settings) {
	return configz.Controllers(role.Controllers, role.configzProcess(controllersLease, "controller-manager"),
		role.Signing)
}

func schedulerConfigz(role RoleConfig) (string, agents.Settings) {
	return configz.Scheduler(role.Scheduler, role.configzProcess(scheduling.Lease, "scheduler"))
}

func (r RoleConfig) configzProcess(lease, file string) configz.Process {
	return configz.Process{
		Election:   r.Election,
		Lease:      lease,
		Serving:    r.Serving,
		Kubeconfig: r.kubeconfig(file),
	}
}

// applySchedulerFile applies the scheduler's configuration file to a process of its own. Flags take precedence.
func applySchedulerFile(role *RoleConfig) error {
	if role.Scheduler.ConfigFile == "" {
		return nil
	}
	_, configuration, err := role.Scheduler.Read()
	if err != nil {
		return err
	}
	if path := configuration.ClientConnection.Kubeconfig; role.Kubeconfig == "" && path != "" {
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(role.Scheduler.ConfigFile), path)
		}
		role.Kubeconfig = path
	}
	options := &role.Election
	l := configuration.LeaderElection
	options.Off = options.Off || !*l.LeaderElect
	take := func(to *time.Duration, usual time.Duration, of metav1.Duration) {
		if *to == usual || *to == 0 {
			*to = of.Duration
		}
	}
	take(&options.LeaseDuration, 15*time.Second, l.LeaseDuration)
	take(&options.RenewDeadline, 10*time.Second, l.RenewDeadline)
	take(&options.RetryPeriod, 2*time.Second, l.RetryPeriod)
	if cmp.Or(options.Name, scheduling.Lease) == scheduling.Lease {
		options.Name = l.ResourceName
	}
	if cmp.Or(options.Namespace, metav1.NamespaceSystem) == metav1.NamespaceSystem {
		options.Namespace = l.ResourceNamespace
	}
	return nil
}

const (
	noProxies = "front proxies are not trusted by what this process serves"
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

func runtimeRows(r *RoleConfig) []option.Row {
	return append(registryRows(r), option.New(&r.Listen, "listen", "", "serve CRI at `unix://PATH`, for root alone"))
}
