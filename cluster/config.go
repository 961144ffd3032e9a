// SPDX-License-Identifier: Apache-2.0

// Package cluster assembles the rooms into a running cluster: New takes a Config and acquires locks, port and keys, Run
// starts every role in order and stops them in reverse. cli and tests call it. It only connects the parts; no part's
// own logic is here.
package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/cluster/datadir"
	"keelson/cluster/fakenode"
	"keelson/cluster/nodehost"
	"keelson/cluster/storage"
	"keelson/runtime/image/registry"
)

// Config holds all settings. It does not change after New.
type Config struct {
	DataDir datadir.Dir
	// Port of the API; 0: a free one.
	Port int
	// NodeName is the name of this machine's node (default: its host name).
	NodeName string
	// Fake are the simulated nodes.
	Fake FakeNodes
	// Rootless replaces the real node by one fake node.
	Rootless bool
	// NoNode leaves out this machine's node: only API server, controllers and scheduler run.
	NoNode bool
	// NoAgents also leaves out controllers and scheduler.
	NoAgents bool
	// PodsBeside says, with NoNode, that a kubelet in another process may run this machine's node on the same data
	// directory.
	PodsBeside bool
	// Runtime is the container runtime of this machine's node.
	Runtime ContainerRuntime
	// Etcd holds the objects when it has servers; else the embedded store does.
	Etcd storage.Config
	// AcceptDataLoss allows a start when the embedded store lacks acknowledged writes.
	AcceptDataLoss bool
	// EtcdListen is where the etcd API is served, to client certificates of system:masters only; empty: nowhere.
	EtcdListen string
	// keptServices are the service CIDRs of the first start; none: Services applies.
	keptServices []netip.Prefix
	// PodCIDRs are this node's pod CIDRs, at most one per IP family; none: unused parts of the cluster CIDRs, kept as
	// long as the data directory.
	PodCIDRs []netip.Prefix
	Options
	// CertificateLife is the lifetime of the certificates that the cluster issues for itself; 0: a year.
	CertificateLife time.Duration
	// MergedKubeconfig is a kubeconfig with a copy of the administrator's certificate, which is replaced there when it
	// is renewed; empty: there is none.
	MergedKubeconfig string
	// serverAt is the API server's address if it runs on another machine.
	serverAt netip.Addr
	Verbose  bool
	// Progress is called for each part that became ready; may be nil.
	Progress func(name string, took time.Duration)
}

// FakeNodes are the simulated nodes of a cluster.
type FakeNodes struct {
	// Count is the number of those that get their names from it.
	Count int
	// Names are the names of further ones.
	Names []string
	// Heartbeat is how often a fake node renews its lease; 0: the default of package simulate.
	Heartbeat time.Duration
}

// ContainerRuntime says which container runtime a node uses, and where it gets its images.
type ContainerRuntime struct {
	// Endpoint is a CRI socket (unix://...); empty: the built-in runtime, which the other fields are for.
	Endpoint string
	// Registries say from where images are pulled.
	Registries registry.Settings
	// ImageHelper is the command line of the program that pulls images; empty: this process does.
	ImageHelper []string
}

// Default returns a Config for this machine.
func Default() Config {
	return Config{
		Port:     6443,
		NodeName: nodehost.DefaultName(),
	}
}

// Validate returns one sentence for each error.
func (c Config) Validate() error {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("no data directory given"))
	}
	if err := c.Etcd.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d is not between 0 and 65535", c.Port))
	}
	if c.Fake.Heartbeat != 0 && c.Fake.Heartbeat < time.Second {
		errs = append(errs, fmt.Errorf("a heartbeat of fake nodes every %s: a second is possible at least",
			c.Fake.Heartbeat))
	}
	own := ""
	if c.realNode() {
		own = c.NodeName
	}
	errs = append(errs, fakenode.Validate(c.Fake.Count, c.Fake.Names, own))
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(msgs, "; ")))
	}
	if e := c.Runtime.Endpoint; e != "" && !strings.HasPrefix(e, "unix:///") {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q is not of the form unix:///PATH", e))
	}
	if c.CNI.Enabled() && c.Runtime.Endpoint != "" {
		errs = append(errs,
			fmt.Errorf("--cni is for the built-in container runtime: the one at %s has a configuration of its own",
				c.Runtime.Endpoint))
	}
	return errors.Join(append(errs, c.Listen.Validate(), c.Services.Validate(), c.Node.Validate(), c.CNI.Validate(),
		c.PodRoutes.Validate(c.foreignNetwork()), c.API.Validate(), c.Controllers.Validate(), c.Proxy.Validate(),
		c.DNS.Validate(), c.Backup.Validate())...)
}

// realNode reports whether this machine is a node.
func (c Config) realNode() bool { return !c.Rootless && !c.NoNode }

// agents reports whether controllers and scheduler run here.
func (c Config) agents() bool { return !c.NoAgents }

// wholeControlPlane reports whether no other process has a part of the control plane: the end of this one ends the API,
// too.
func (c Config) wholeControlPlane() bool { return c.agents() && len(c.Etcd.Servers) == 0 }

// leaseInterval is the lease renewal interval of the node in the API server's process; 0: Kubernetes' default.
func (c Config) leaseInterval() time.Duration {
	if c.wholeControlPlane() {
		return heartbeat
	}
	return 0
}

// fakeNodes reports whether there are fake nodes now or were in an earlier run, which must be removed.
func (c Config) fakeNodes() bool {
	return c.Fake.Count+len(c.Fake.Names) > 0 || c.Rootless && !c.NoNode || !c.NoAgents
}

// foreignNetwork reports that pods have no addresses of the built-in network.
func (c Config) foreignNetwork() bool { return c.CNI.Enabled() || c.Runtime.Endpoint != "" }

// containerRuntime says which container runtime this machine's node uses. The caller adds what it shares with it.
func (c Config) containerRuntime(dir datadir.Dir) nodehost.RuntimeConfig {
	return nodehost.RuntimeConfig{
		Dir:          dir,
		Endpoint:     c.Runtime.Endpoint,
		CNI:          c.CNI,
		PodCIDRs:     c.PodCIDRs,
		Registries:   c.Runtime.Registries,
		ImageHelper:  c.Runtime.ImageHelper,
		ImageReserve: c.Etcd.ImageReserve(dir),
		Logs:         c.Node.ContainerLogs(),
	}
}
