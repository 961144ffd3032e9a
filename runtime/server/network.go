// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
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

// networkState is the last report of Network.Watch.
type networkState struct {
	mu  sync.Mutex
	err error
}

// watchNetwork watches the network until ctx is done. known waits for the first report.
func (s *Server) watchNetwork(ctx context.Context, wg *sync.WaitGroup) (known func()) {
	if s.cfg.Network == nil {
		return func() {}
	}
	first := make(chan struct{})
	reported := sync.OnceFunc(func() { close(first) })
	wg.Go(func() {
		defer reported()
		err := s.cfg.Network.Watch(ctx, func(err error) {
			s.setNetworkState(err)
			reported()
		})
		if err != nil && ctx.Err() == nil {
			s.setNetworkState(fmt.Errorf("it is not watched any more, restart this process: %w", err))
		}
	})
	return func() { <-first }
}

// setNetworkState stores the network's state. It sends an event without a pod, so that the kubelet asks for the
// runtime's status.
func (s *Server) setNetworkState(err error) {
	s.network.mu.Lock()
	s.network.err = err
	s.network.mu.Unlock()
	s.events.send(&runtimeapi.ContainerEventResponse{
		ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		CreatedAt:          time.Now().UnixNano(),
	})
}

// networkReady returns the condition NetworkReady, with containerd's reason and message.
func (s *Server) networkReady() *runtimeapi.RuntimeCondition {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	c := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := s.network.err; err != nil {
		c.Status = false
		c.Reason = "NetworkPluginNotReady"
		c.Message = fmt.Sprintf("Network plugin returns error: %v", err)
	}
	return c
}

// attachNetwork attaches the pod to the network and emits the event.
func (s *Server) attachNetwork(ctx context.Context, sb *pods.Sandbox) ([]netip.Addr, error) {
	rec := sb.Record()
	cfg := rec.Config.V
	mk := event.Event{
		Step:      event.StepNetwork,
		Component: "runtime",
		At:        time.Now(),
		Subject:   subject(cfg.GetMetadata()),
	}
	detail := &event.Network{HostNetwork: rec.Options().GetNetwork() == runtimeapi.NamespaceMode_NODE}
	mk.Detail = detail
	if detail.HostNetwork || s.cfg.Network == nil {
		return nil, s.cfg.Marks.Reach(mk)
	}
	pod, err := podOf(sb)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Network.Attach(ctx, pod)
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
		s.cfg.Marks.Emit(mk)
		return nil, fmt.Errorf("attach to the pod network: %w", err)
	}
	if err := s.cfg.Marks.Reach(mk); err != nil || s.cfg.Connected == nil {
		return got.Addrs, err
	}
	return got.Addrs, s.cfg.Connected(ctx, cfg, got.Addrs)
}
