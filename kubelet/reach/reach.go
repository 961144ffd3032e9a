// SPDX-License-Identifier: Apache-2.0

// Package reach tests a connection from a pod of this node: it resolves a name as the pod does, makes one connection in
// the pod's network namespace, and reports the result and the path. The kubelet's server calls it for callers that may
// exec in the pod. It sends one connection and a bounded number of DNS queries, keeps no connection open, and changes
// nothing.
package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/networking/reach"
	"keelson/kubelet/runtimestate"
	"keelson/lib/linux"
)

// Paths reports where the node's kernel sends packets.
type Paths interface {
	// Endpoint returns the real destination of a pod's connection after DNAT; false: it is remote, or not known any
	// more.
	Endpoint(protocol corev1.Protocol, local, remote netip.AddrPort) (netip.AddrPort, bool)
	// Route describes the node's route to an address; "": unknown.
	Route(to netip.Addr) string
	// Shared reports whether another cluster on this machine has a Service with that address. Packets of the
	// machine itself and of pods on its network reach one of the clusters.
	Shared(at netip.Addr) bool
}

// Rules returns the rules of the node's service proxy for a Service.
type Rules func(namespace, name string) (*reach.Rules, error)

// Config has the dependencies of a Prober.
type Config struct {
	Node    string
	Runtime runtimeapi.RuntimeServiceClient
	// Resolver returns a pod's resolver configuration.
	Resolver func(*corev1.Pod) (*runtimeapi.DNSConfig, error)
	// ClusterDNS and Domain are the cluster's DNS servers and domain. Without servers, names of Services are not
	// resolved.
	ClusterDNS []string
	Domain     string
	// Paths and Rules may be nil: then this part of the result is missing.
	Paths Paths
	Rules Rules
}

// atOnce bounds the concurrent probes, since each locks an OS thread.
const atOnce = 4

// Prober makes the tests; see New.
type Prober struct {
	cfg   Config
	turns chan struct{}
}

// New starts nothing.
func New(cfg Config) *Prober { return &Prober{cfg: cfg, turns: make(chan struct{}, atOnce)} }

// ErrBusy means that too many probes are running.
var ErrBusy = errors.New("too many probes run on this node: try again")

// turn waits a moment for a free slot. The caller must release it.
func (p *Prober) turn(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	select {
	case p.turns <- struct{}{}:
		return func() { <-p.turns }, nil
	case <-ctx.Done():
		return nil, ErrBusy
	}
}

// Probe resolves asked.Host as the pod does, and connects to its first address.
func (p *Prober) Probe(ctx context.Context, pod *corev1.Pod, asked reach.Asked) (*reach.Answer, error) {
	release, err := p.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ns, err := p.namespace(ctx, pod)
	if err != nil {
		return nil, err
	}
	out := &reach.Answer{Node: p.cfg.Node}
	err = inNetwork(ns, func() error {
		to, err := netip.ParseAddr(asked.Host)
		if err != nil {
			if out.Names, err = p.names(ctx, pod, asked); err != nil {
				return err
			}
			if len(out.Names.Addresses) == 0 {
				return nil
			}
			to = out.Names.Addresses[0]
		}
		out.Connection = connect(ctx, asked.Protocol, netip.AddrPortFrom(to.Unmap(), asked.Port), asked.Timeout)
		return nil
	})
	if err != nil {
		return nil, err
	}
	// it failed before the kernel chose the address
	if c := out.Connection; c != nil && c.Local.Addr().IsUnspecified() {
		c.Local = netip.AddrPortFrom(ownAddress(pod, c.Remote.Addr()), c.Local.Port())
	}
	p.follow(asked.Protocol, out.Connection)
	if out.Names != nil && pod.Spec.HostNetwork {
		for i := range out.Names.Tries {
			p.shared(&out.Names.Tries[i])
		}
	}
	return out, nil
}

// shared sets Shared of a query that came from the machine itself.
func (p *Prober) shared(try *reach.Try) {
	if at, err := netip.ParseAddr(try.Server); err == nil && p.cfg.Paths != nil {
		try.Shared = p.cfg.Paths.Shared(at)
	}
}

// ownAddress returns the pod's address of the same IP family.
func ownAddress(pod *corev1.Pod, like netip.Addr) netip.Addr {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// follow adds the real destination of a connection. The kernel's connection tracking has it for a while after its end.
func (p *Prober) follow(protocol corev1.Protocol, connection *reach.Connection) {
	if connection == nil || p.cfg.Paths == nil {
		return
	}
	at := connection.Remote
	if connection.Local.IsValid() {
		if to, ok := p.cfg.Paths.Endpoint(protocol, connection.Local, connection.Remote); ok {
			at = to
			connection.Endpoint = to
		}
	}
	connection.Route = p.cfg.Paths.Route(at.Addr())
	connection.Shared = p.cfg.Paths.Shared(connection.Remote.Addr())
}

// Serving returns the proxy's rules for a Service, and the DNS answer for its name.
func (p *Prober) Serving(ctx context.Context, namespace, name string) (*reach.Serving, error) {
	release, err := p.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	out := &reach.Serving{Node: p.cfg.Node, NoRules: "the service proxy is none of this kubelet's process"}
	if p.cfg.Rules != nil {
		rules, err := p.cfg.Rules(namespace, name)
		if out.Rules, out.NoRules = rules, ""; err != nil {
			out.NoRules = err.Error()
		}
	}
	if len(p.cfg.ClusterDNS) > 0 {
		try := ask(ctx, p.cfg.ClusterDNS[0], name+"."+namespace+".svc."+p.cfg.Domain, questionLimit)
		p.shared(&try)
		out.DNS = &try
	}
	return out, nil
}

// namespace returns the path of the pod's network namespace; "": the host's.
func (p *Prober) namespace(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.HostNetwork {
		return "", nil
	}
	seen, err := runtimestate.Read(ctx, p.cfg.Runtime, string(pod.UID))
	if err != nil {
		return "", err
	}
	box := seen.Current()
	if box == nil {
		return "", fmt.Errorf("pod %s/%s has no running sandbox: its phase is %s", pod.Namespace, pod.Name,
			pod.Status.Phase)
	}
	resp, err := p.cfg.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: box.ID,
		Verbose:      true,
	})
	if err != nil {
		return "", err
	}
	return networkOf(resp.GetInfo()["info"])
}

// networkOf finds the network namespace in a runtime's verbose sandbox status: in its OCI specification, or by its
// process.
func networkOf(info string) (string, error) {
	var said struct {
		Pid         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string } `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(info), &said); err != nil {
		return "", fmt.Errorf("read the pod's sandbox from the container runtime: %w", err)
	}
	for _, ns := range said.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && ns.Path != "" {
			return ns.Path, nil
		}
	}
	if said.Pid > 0 {
		return fmt.Sprintf("/proc/%d/ns/net", said.Pid), nil
	}
	return "", errors.New("the container runtime does not say which is the pod's network namespace")
}

func inNetwork(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return linux.InNetwork(path, f)
}
