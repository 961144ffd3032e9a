// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/client"
	"keelson/lib/signal"
)

// Service is the one by which pods reach their node's server; Manager is who its slices say they are of.
const (
	Service = "kube-dns"
	Manager = "dns.keelson"
)

// publishers are one for each address of this server: the first keeps the service too.
type publishers []*publisher

func newPublishers(cfg Config, addrs ...netip.AddrPort) publishers {
	out := make(publishers, len(addrs))
	for i, a := range addrs {
		name := sliceName(Service, cfg.NodeName)
		if i > 0 {
			name = sliceName(Service+"6", cfg.NodeName) // no other node's first has that beginning
		}
		out[i] = &publisher{
			cfg:  cfg,
			addr: a,
			name: name,
			wake: signal.New(),
		}
	}
	return out
}

func (all publishers) service(s *corev1.Service, there bool) {
	for _, p := range all {
		p.service(s, there)
	}
}

func (all publishers) slice(s *discoveryv1.EndpointSlice, there bool) {
	for _, p := range all {
		p.slice(s, there)
	}
}

func (all publishers) node(n *corev1.Node) {
	for _, p := range all {
		p.node(n)
	}
}

// run lets all work until ctx ends.
func (all publishers) run(ctx context.Context) {
	var work sync.WaitGroup
	for _, p := range all {
		work.Go(func() { p.run(ctx) })
	}
	work.Wait()
}

// publisher keeps the service and this node's slice of it for one address. It holds what the informers saw last.
type publisher struct {
	cfg  Config
	addr netip.AddrPort
	name string // of the slice
	wake signal.Signal

	mu      sync.Mutex
	svc     *corev1.Service
	own     *discoveryv1.EndpointSlice
	machine *corev1.Node
	foreign bool // it was said that the service is somebody else's
}

func (p *publisher) changed(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	p.wake.Notify()
}

func (p *publisher) service(s *corev1.Service, there bool) {
	if s.Namespace != metav1.NamespaceSystem || s.Name != Service {
		return
	}
	p.changed(func() {
		if p.svc = s; !there {
			p.svc = nil
		}
	})
}

func (p *publisher) slice(s *discoveryv1.EndpointSlice, there bool) {
	if s.Namespace != metav1.NamespaceSystem || s.Name != p.name {
		return
	}
	p.changed(func() {
		if p.own = s; !there {
			p.own = nil
		}
	})
}

func (p *publisher) node(n *corev1.Node) {
	p.mu.Lock()
	same := p.machine != nil && p.machine.UID == n.UID
	p.mu.Unlock()
	if n.Name == p.cfg.NodeName && !same {
		p.changed(func() { p.machine = n })
	}
}

// sliceName returns the name of a node's slice; a long name is cut and kept unique by a hash.
func sliceName(prefix, node string) string {
	name := prefix + "-" + node
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(node))
		name = name[:180] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// pauses after writes that failed.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 30 * time.Second
	writeLimit   = 10 * time.Second
)

// run brings the objects to what they should be whenever something about them changes, until ctx ends.
func (p *publisher) run(ctx context.Context) {
	pause := firstPause
	for {
		err := p.pass(ctx)
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			p.cfg.Log.Warn("the service of names is not as it should be yet", "err", err)
			again = time.After(pause)
			pause = min(2*pause, longestPause)
		} else {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake.C():
		case <-again:
		}
	}
}

func (p *publisher) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	p.mu.Lock()
	svc := p.svc
	own := p.own
	node := p.machine
	p.mu.Unlock()
	api := p.cfg.Client
	if svc == nil {
		if err := p.createService(ctx); err != nil {
			return err
		}
	} else if len(svc.Spec.Selector) > 0 {
		if !p.foreign {
			p.foreign = true
			p.cfg.Log.Warn("the service of names selects pods: it is somebody else's, and this server is not behind "+
				"it; --dns=none switches this one off", "service", Service)
		}
		if own != nil {
			return ignoreGone(api.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Delete(ctx, own.Name,
				metav1.DeleteOptions{}))
		}
		return nil
	}
	if p.foreign = false; node == nil {
		return nil // its kubelet will bring it
	}
	want := p.want(node)
	slices := api.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	switch next, same := merged(own, want); {
	case own == nil:
		_, err := slices.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the informer will show it
		}
		return err
	case own.AddressType != want.AddressType: // it cannot change
		return ignoreGone(slices.Delete(ctx, own.Name, metav1.DeleteOptions{}))
	case same:
		return nil
	default:
		_, err := slices.Update(ctx, next, metav1.UpdateOptions{})
		return ignoreGone(err)
	}
}

// createService makes the service, unless it is there and the informer has not shown it yet: its address is then
// refused as taken before its name is.
func (p *publisher) createService(ctx context.Context) error {
	services := p.cfg.Client.CoreV1().Services(metav1.NamespaceSystem)
	_, err := services.Create(ctx, service(p.cfg.ServiceIP), metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if _, missing := services.Get(ctx, Service, metav1.GetOptions{}); missing == nil {
		return nil
	}
	return fmt.Errorf("create the service %s: %w", Service, err)
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the informer will show what is there
	}
	return err
}

// service is what everybody expects by this name.
func service(ip netip.Addr) *corev1.Service {
	local := corev1.ServiceInternalTrafficPolicyLocal
	families := corev1.IPFamilyPolicyPreferDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem,
			Name:      Service,
			Labels: map[string]string{
				"k8s-app":                       "kube-dns",
				"kubernetes.io/cluster-service": "true",
				"kubernetes.io/name":            "KeelsonDNS",
			},
		},
		Spec: corev1.ServiceSpec{
			InternalTrafficPolicy: &local,
			IPFamilyPolicy:        &families,
			Ports: []corev1.ServicePort{
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {
					Name:     "dns-tcp",
					Port:     53,
					Protocol: corev1.ProtocolTCP,
				},
			},
		},
	}
	if ip.IsValid() {
		svc.Spec.ClusterIP = ip.String()
	}
	return svc
}

// want is this node's slice.
func (p *publisher) want(node *corev1.Node) *discoveryv1.EndpointSlice {
	ready := true
	port := int32(p.addr.Port())
	udp := corev1.ProtocolUDP
	tcp := corev1.ProtocolTCP
	name := "dns"
	nameTCP := "dns-tcp"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem,
			Name:      p.name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: Service, discoveryv1.LabelManagedBy: Manager},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       node.Name,
				UID:        node.UID,
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: &name, Protocol: &udp, Port: &port},
			{Name: &nameTCP, Protocol: &tcp, Port: &port},
		},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{p.addr.Addr().String()},
			NodeName:   &node.Name,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		}},
	}
	if p.addr.Addr().Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	return slice
}

// merged is have with what want says; same: it says that already.
func merged(have, want *discoveryv1.EndpointSlice) (next *discoveryv1.EndpointSlice, same bool) {
	if have == nil {
		return want, false
	}
	next = have.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	next.OwnerReferences = want.OwnerReferences
	next.Ports = want.Ports
	next.Endpoints = want.Endpoints
	same = maps.Equal(next.Labels, have.Labels) && slices.EqualFunc(have.OwnerReferences, want.OwnerReferences,
		func(a, b metav1.OwnerReference) bool { return a.UID == b.UID }) &&
		equality.Semantic.DeepEqual(have.Ports, next.Ports) && equality.Semantic.DeepEqual(have.Endpoints,
		next.Endpoints)
	return next, same
}

// Withdraw takes a node's slices away: with --dns=none another server answers at the service's address.
func Withdraw(ctx context.Context, c *client.Client, node string) error {
	var errs []error
	for _, prefix := range []string{Service, Service + "6"} {
		errs = append(errs, ignoreGone(c.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Delete(ctx,
			sliceName(prefix, node), metav1.DeleteOptions{})))
	}
	return errors.Join(errs...)
}
