// SPDX-License-Identifier: Apache-2.0

// Package podnet is where pod sandboxes meet the pod network: the contract of the network, whether it can attach pods,
// and the attaching of one sandbox with what has to be known of it. sandbox calls it for each sandbox, runtime/server
// at the start and for the runtime's status. It has no links and rules of its own, and keeps no record: Network does.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/lib/linux"
	"keelson/runtime/events"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// Network connects pods to the pod network: package network, or CNI plugins. All methods must be idempotent: they are
// repeated after a crash.
type Network interface {
	// Attach connects a pod's network namespace. An attached pod keeps its addresses. After an error the caller calls
	// Detach; the Attachment then has the plugins that ran.
	Attach(ctx context.Context, pod Pod) (Attachment, error)
	// Detach undoes Attach of the sandbox with this id. A sandbox that is not attached is not an error.
	Detach(ctx context.Context, id string) error
	// Attached returns the ids of attached sandboxes, so that the server can detach those without a record.
	Attached() []string
	// Watch reports why pods cannot be attached (nil: they can), at first and after each change, until ctx is done.
	Watch(ctx context.Context, report func(error)) error
}

// Pod is the pod sandbox that is attached to a Network.
type Pod struct {
	// ID is the sandbox id, Netns the path of its network namespace.
	ID, Netns            string
	Namespace, Name, UID string
	Annotations          map[string]string
	CgroupParent         string
	DNS                  *runtimeapi.DNSConfig
	// Ports are the host ports.
	Ports []PortMapping
}

// PortMapping forwards a port of the host to a port of the pod.
type PortMapping struct {
	Protocol      string     // TCP, UDP, SCTP
	HostIP        netip.Addr // invalid: all addresses
	HostPort      uint16
	ContainerPort uint16
}

// Attachment is the result of Network.Attach.
type Attachment struct {
	// Addrs are the pod's addresses, the primary one first.
	Addrs []netip.Addr
	// CNI is the name of the CNI network, if there is one, and Plugins are the plugins that ran, also when one failed.
	CNI     string
	Plugins []event.Plugin
}

// Connector attaches sandboxes to a Network and remembers what Network.Watch reported last.
type Connector struct {
	network   Network // nil: pods have a loopback interface only
	connected func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error
	events    *events.Broker
	marks     *event.Recorder
	log       *slog.Logger

	mu  sync.Mutex
	err error // why pods cannot be attached
}

// New makes a Connector. network may be nil; so may connected, which Attach calls with the pod's addresses.
func New(
	network Network, connected func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error,
	broker *events.Broker, marks *event.Recorder, log *slog.Logger,
) *Connector {
	return &Connector{
		network:   network,
		connected: connected,
		events:    broker,
		marks:     marks,
		log:       log,
	}
}

// Watch watches the network until ctx is done. known waits for the first report.
func (c *Connector) Watch(ctx context.Context, wg *sync.WaitGroup) (known func()) {
	if c.network == nil {
		return func() {}
	}
	first := make(chan struct{})
	reported := sync.OnceFunc(func() { close(first) })
	wg.Go(func() {
		defer reported()
		err := c.network.Watch(ctx, func(err error) {
			c.set(err)
			reported()
		})
		if err != nil && ctx.Err() == nil {
			c.set(fmt.Errorf("it is not watched any more, restart this process: %w", err))
		}
	})
	return func() { <-first }
}

// set stores the network's state. It sends an event without a pod, so that the kubelet asks for the runtime's status.
func (c *Connector) set(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	c.events.SendUnassigned()
}

// Ready returns the condition NetworkReady, with containerd's reason and message.
func (c *Connector) Ready() *runtimeapi.RuntimeCondition {
	c.mu.Lock()
	defer c.mu.Unlock()
	condition := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if c.err != nil {
		condition.Status = false
		condition.Reason = "NetworkPluginNotReady"
		condition.Message = fmt.Sprintf("Network plugin returns error: %v", c.err)
	}
	return condition
}

// Detach undoes Attach of the sandbox with this id. One that is not attached is not an error.
func (c *Connector) Detach(ctx context.Context, id string) error {
	if c.network == nil {
		return nil
	}
	return c.network.Detach(ctx, id)
}

// Sweep detaches the sandboxes whose ids are not known.
func (c *Connector) Sweep(ctx context.Context, known func(id string) bool) error {
	if c.network == nil {
		return nil
	}
	var errs []error
	for _, id := range c.network.Attached() {
		if !known(id) {
			c.log.Info("detaching a pod without a sandbox", "sandbox", id)
			errs = append(errs, c.network.Detach(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// Attach attaches the pod to the network and emits the event. It returns the pod's addresses.
func (c *Connector) Attach(ctx context.Context, sb *pods.Sandbox) ([]netip.Addr, error) {
	rec := sb.Record()
	cfg := rec.Config.V
	mk := event.Event{
		Step:      event.StepNetwork,
		Component: "runtime",
		At:        time.Now(),
		Subject:   Subject(cfg.GetMetadata()),
	}
	detail := &event.Network{HostNetwork: rec.Options().GetNetwork() == runtimeapi.NamespaceMode_NODE}
	mk.Detail = detail
	if detail.HostNetwork || c.network == nil {
		c.marks.Emit(mk)
		return nil, nil
	}
	pod, err := podOf(sb)
	if err != nil {
		return nil, err
	}
	got, err := c.network.Attach(ctx, pod)
	if err == nil && len(got.Addrs) == 0 {
		err = errors.New("the network gave it no address")
	}
	mk.Took = time.Since(mk.At)
	detail.CNI = got.CNI
	detail.Plugins = got.Plugins
	for _, ip := range got.Addrs {
		detail.IPs = append(detail.IPs, ip.String())
	}
	if err != nil {
		mk.Err = err.Error()
		c.marks.Emit(mk)
		return nil, fmt.Errorf("attach to the pod network: %w", err)
	}
	c.marks.Emit(mk)
	if c.connected == nil {
		return got.Addrs, nil
	}
	return got.Addrs, c.connected(ctx, cfg, got.Addrs)
}

// Subject names the pod in events.
func Subject(m *runtimeapi.PodSandboxMetadata) event.Subject {
	return event.Subject{
		Resource:  "pods",
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		UID:       m.GetUid(),
	}
}

// podOf returns the input of Network.Attach for a sandbox.
func podOf(sb *pods.Sandbox) (Pod, error) {
	cfg := sb.Record().Config.V
	m := cfg.GetMetadata()
	ports, err := portsOf(cfg)
	return Pod{
		ID:           sb.ID,
		Netns:        sb.NS(linux.NetworkNamespace),
		Namespace:    m.GetNamespace(),
		Name:         m.GetName(),
		UID:          m.GetUid(),
		Annotations:  cfg.GetAnnotations(),
		CgroupParent: cfg.GetLinux().GetCgroupParent(),
		DNS:          cfg.GetDnsConfig(),
		Ports:        ports,
	}, err
}

func portsOf(cfg *runtimeapi.PodSandboxConfig) ([]PortMapping, error) {
	var out []PortMapping
	for _, portMapping := range cfg.GetPortMappings() {
		if portMapping.GetHostPort() == 0 {
			continue
		}
		if portMapping.GetHostPort() < 0 || portMapping.GetHostPort() > 65535 || portMapping.GetContainerPort() <= 0 ||
			portMapping.GetContainerPort() > 65535 {
			return nil, fault.InvalidArgument("port mapping %d to %d", portMapping.GetHostPort(),
				portMapping.GetContainerPort())
		}
		pm := PortMapping{
			Protocol:      portMapping.GetProtocol().String(),
			HostPort:      uint16(portMapping.GetHostPort()),
			ContainerPort: uint16(portMapping.GetContainerPort()),
		}
		if ip := portMapping.GetHostIp(); ip != "" {
			var err error
			if pm.HostIP, err = netip.ParseAddr(ip); err != nil {
				return nil, fault.InvalidArgument("port mapping: host ip %q", ip)
			}
			if pm.HostIP.IsUnspecified() {
				pm.HostIP = netip.Addr{}
			}
		}
		out = append(out, pm)
	}
	return out, nil
}
