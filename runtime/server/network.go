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

	"keelson/lib/mark"
)

// Network connects pods. Implementations must bear being called again after a crash.
type Network interface {
	// Attach connects a pod's network namespace. Attaching what is attached gives the same addresses. What a failure leaves half done,
	// Detach undoes; the Attachment then says how far it got.
	Attach(ctx context.Context, pod Pod) (Attachment, error)
	// Detach undoes Attach, for the id of a pod sandbox. Detaching what is not attached is no error.
	Detach(ctx context.Context, id string) error
	// Attached lists what is attached, so that the server can detach what it does not know.
	Attached() []string
	// Watch calls report with why no pod can be attached, or nil, at first and whenever that changes, and returns when ctx is done.
	Watch(ctx context.Context, report func(error)) error
}

// Pod is a pod sandbox as a Network wants to know it.
type Pod struct {
	// ID names the sandbox, Netns is where its network namespace is held.
	ID, Netns            string
	Namespace, Name, UID string
	Annotations          map[string]string
	CgroupParent         string
	DNS                  *runtimeapi.DNSConfig
	// Ports are to be reachable from the host.
	Ports []PortMapping
}

// PortMapping is a port of the host that leads to one of the pod.
type PortMapping struct {
	Protocol      string     // TCP, UDP, SCTP
	HostIP        netip.Addr // invalid: all addresses
	HostPort      uint16
	ContainerPort uint16
}

// Attachment is what a Network gave a pod.
type Attachment struct {
	// Addrs are the pod's addresses, the first one first.
	Addrs []netip.Addr
	// CNI is the network's name where CNI plugins connect pods, and Plugins are those that ran, also when one failed.
	CNI     string
	Plugins []mark.Plugin
}

// networkState is what Watch last reported.
type networkState struct {
	mu  sync.Mutex
	err error
}

// watchNetwork follows the network until ctx is done. known waits until it has said how it is.
func (s *Server) watchNetwork(ctx context.Context, wg *sync.WaitGroup) (known func()) {
	if s.cfg.Network == nil {
		return func() {}
	}
	first := make(chan struct{})
	said := sync.OnceFunc(func() { close(first) })
	wg.Go(func() {
		defer said()
		err := s.cfg.Network.Watch(ctx, func(err error) {
			s.networkIs(err)
			said()
		})
		if err != nil && ctx.Err() == nil {
			s.networkIs(fmt.Errorf("it is not watched any more, restart this process: %w", err))
		}
	})
	return func() { <-first }
}

// networkIs notes how the network is. Those who listen hear of news that concern no single pod.
func (s *Server) networkIs(err error) {
	s.network.mu.Lock()
	s.network.err = err
	s.network.mu.Unlock()
	s.events.send(&runtimeapi.ContainerEventResponse{ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, CreatedAt: time.Now().UnixNano()})
}

// networkReady is the condition NetworkReady, worded as containerd does.
func (s *Server) networkReady() *runtimeapi.RuntimeCondition {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	c := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := s.network.err; err != nil {
		c.Status, c.Reason, c.Message = false, "NetworkPluginNotReady", fmt.Sprintf("Network plugin returns error: %v", err)
	}
	return c
}

// connect attaches the pod to the network and leaves the mark.
func (s *Server) connect(ctx context.Context, sb *sandbox) ([]netip.Addr, error) {
	cfg := sb.rec.Config.v
	m := mark.Mark{Step: mark.StepNetwork, Component: "runtime", At: time.Now(), Subject: subject(cfg.GetMetadata())}
	detail := &mark.Network{HostNetwork: sb.rec.options().GetNetwork() == runtimeapi.NamespaceMode_NODE}
	m.Detail = detail
	if detail.HostNetwork || s.cfg.Network == nil {
		return nil, s.cfg.Marks.Reach(m)
	}
	pod, err := podOf(sb)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Network.Attach(ctx, pod)
	if err == nil && len(got.Addrs) == 0 {
		err = errors.New("the network gave it no address")
	}
	m.Took = time.Since(m.At)
	detail.CNI, detail.Plugins = got.CNI, got.Plugins
	for _, ip := range got.Addrs {
		detail.IPs = append(detail.IPs, ip.String())
	}
	if err != nil {
		m.Err = err.Error()
		s.cfg.Marks.Emit(m)
		return nil, fmt.Errorf("attach to the pod network: %w", err)
	}
	if err := s.cfg.Marks.Reach(m); err != nil || s.cfg.Connected == nil {
		return got.Addrs, err
	}
	return got.Addrs, s.cfg.Connected(ctx, cfg, got.Addrs)
}
