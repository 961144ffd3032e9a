// SPDX-License-Identifier: Apache-2.0

// Package cluster assembles the rooms into a running cluster: a Config goes in,
// New prepares it, Run starts every part in order and stops them in reverse. cli
// and the tests call it. It decides how the parts are wired and nothing else.
package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// KubernetesRelease is the Kubernetes release whose API this is; KubernetesVersion is what /version and kubelets say.
const (
	KubernetesRelease = "v1.37.2"
	KubernetesVersion = KubernetesRelease + "+keelson"
)

// Config is everything that can be chosen. It is frozen once New has it.
type Config struct {
	DataDir DataDir
	// Port of the API; 0 picks a free one.
	Port int
	// NodeName is this machine's node (default: its host name).
	NodeName string
	// FakeNodes are added nodes whose pods become Running by themselves.
	FakeNodes int
	// FakeNames are those of further ones.
	FakeNames []string
	// FakeHeartbeat is how often each of them renews its lease; 0 is simulate's default.
	FakeHeartbeat time.Duration
	// Rootless clusters have no real node, one fake node in its place.
	Rootless bool
	// NoNode leaves out this machine's node: an API server with controllers and scheduler alone.
	NoNode bool
	// NoAgents leaves out controllers and scheduler too.
	NoAgents bool
	// PodsBeside tells, with NoNode, that a kubelet of its own process may run this machine's node on the same data directory.
	PodsBeside bool
	// Mirrors maps a registry host to the URL its images are pulled from.
	Mirrors map[string]string
	// RuntimeEndpoint is a CRI socket (unix://...); empty: the built-in runtime.
	RuntimeEndpoint string
	// Etcd holds the objects when it names servers.
	Etcd EtcdConfig
	// AcceptDataLoss starts with an embedded store that lacks acknowledged writes.
	AcceptDataLoss bool
	// EtcdListen is where the store speaks etcd's API to who shows a certificate of system:masters; empty: nowhere.
	EtcdListen string
	// keptServices are the ranges that Services had at the first start; none: as Services says.
	keptServices []netip.Prefix
	// PodCIDRs are this node's ranges of pod addresses, at most one of each IP family; none: a part of the cluster's that the machine
	// does not use, kept for the directory's life.
	PodCIDRs []netip.Prefix
	Options
	// serverAt is the API server's address where that is another machine's.
	serverAt netip.Addr
	Verbose  bool
	// Progress is told of each part that became ready; may be nil.
	Progress func(name string, took time.Duration)
}

// Default returns a Config for this machine.
func Default() Config {
	return Config{
		Port:     6443,
		NodeName: defaultNodeName(),
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9.-]+`)

func defaultNodeName() string {
	host, err := os.Hostname()
	if err != nil {
		return "node-1"
	}
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(host), "-"), "-.")
	if name == "" {
		return "node-1"
	}
	return name
}

// Validate returns one sentence per thing that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("no data directory given"))
	}
	if err := c.Etcd.validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d is not between 0 and 65535", c.Port))
	}
	if c.FakeHeartbeat != 0 && c.FakeHeartbeat < time.Second {
		errs = append(errs, fmt.Errorf("a heartbeat of fake nodes every %s: a second is possible at least", c.FakeHeartbeat))
	}
	errs = append(errs, c.validateFakes())
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(msgs, "; ")))
	}
	if e := c.RuntimeEndpoint; e != "" && !strings.HasPrefix(e, "unix:///") {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q is not of the form unix:///PATH", e))
	}
	if c.CNI.on() && c.RuntimeEndpoint != "" {
		errs = append(errs, fmt.Errorf("--cni is for the built-in container runtime: the one at %s has a configuration of its own", c.RuntimeEndpoint))
	}
	return errors.Join(append(errs, c.Listen.validate(), c.Services.Validate(), c.Node.validate(), c.CNI.validate(), c.PodRoutes.validate(c), c.API.Validate(), c.Controllers.Validate(), c.Proxy.Validate(), c.DNS.Validate())...)
}
