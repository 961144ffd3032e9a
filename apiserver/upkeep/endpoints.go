// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/addresses"
	"keelson/apiserver/objects"
	"keelson/lib/keyed"
	"keelson/store"
)

// The endpoints of the Service "kubernetes" are the addresses of the running API servers. A server with a store of its
// own is the only one; it writes only if they are wrong. Servers that share a store each write a key below
// leasesPrefix, as kube-apiserver does, and renew it. When a key is not renewed, the other servers remove it and the
// address (docs/decisions/0090).
const (
	leasesPrefix = "/registry/masterleases/"
	leaseRenewal = 10 * time.Second
	leaseTTL     = 15 * time.Second
	// kubernetesName is the name of the Service, of its Endpoints and of its first EndpointSlice.
	kubernetesName = "kubernetes"
)

var (
	endpointsResource = corev1.SchemeGroupVersion.WithResource("endpoints")
	slicesResource    = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// peers tracks the other servers on the same store.
type peers struct {
	store  store.Store
	own    addresses.Own
	codec  objects.Codec
	writes int64                // number of renewals of its key
	seen   map[string]peerLease // by key
}

// peerLease is another server's key, and since when it has not changed.
type peerLease struct {
	revision int64
	since    time.Time
}

func newPeers(st store.Store, own addresses.Own) *peers {
	// deprecated, but still read by clients
	return &peers{
		store: st,
		own:   own,
		codec: objects.Protobuf(corev1.SchemeGroupVersion.WithKind("Endpoints"), func() kind.Object {
			return &corev1.Endpoints{}
		}, nil),
		seen: map[string]peerLease{},
	}
}

// reconcileEndpoints updates the endpoints of the Service "kubernetes" to the running servers, and reports whether it
// wrote any.
func (u *Upkeep) reconcileEndpoints(ctx context.Context) (wrote bool, err error) {
	own, err := u.config.Address.Endpoint()
	if err != nil {
		return false, err
	}
	var want []netip.AddrPort
	if own.IsValid() {
		want = append(want, own)
	}
	if u.config.Shared {
		if err := u.peers.renewLease(ctx, own); err != nil {
			return false, fmt.Errorf("renew this server's lease: %w", err)
		}
		if want, err = u.peers.live(ctx, time.Now()); err != nil {
			return false, fmt.Errorf("find the servers that live: %w", err)
		}
	}
	return u.writeEndpoints(ctx, want)
}

// writeEndpoints updates the Endpoints and EndpointSlices of the Service "kubernetes" if they differ from want, and
// reports whether they did.
func (u *Upkeep) writeEndpoints(ctx context.Context, want []netip.AddrPort) (wrote bool, err error) {
	keep := map[objectRef]bool{}
	for _, obj := range endpointsOf(want) {
		kept, ok, err := u.row(obj)
		if err != nil {
			return wrote, err
		}
		if !ok {
			continue
		}
		keep[kept.ref] = true
		changed, err := u.ensure(ctx, kept)
		wrote = wrote || changed
		if err != nil {
			return wrote, err
		}
	}
	for _, gvr := range []schema.GroupVersionResource{endpointsResource, slicesResource} {
		st, err := u.config.Served.Storage(gvr)
		if err != nil {
			return wrote, err
		}
		page, err := st.List(ctx, objects.ListQuery{
			Namespace: metav1.NamespaceDefault,
			Labels:    labels.Everything(),
			Fields:    fields.Everything(),
		})
		if err != nil {
			return wrote, err
		}
		for _, e := range page.Items {
			if !ofKubernetes(e.Object) || keep[refOf(gvr, e.Object)] {
				continue
			}
			if err := u.deleteOwn(ctx, gvr, e.Object); err != nil {
				return wrote, err
			}
			wrote = true
		}
	}
	return wrote, nil
}

// ofKubernetes reports whether o is the Endpoints or an EndpointSlice of the Service "kubernetes", by its name or its
// label.
func ofKubernetes(o kind.Object) bool {
	if o.GetNamespace() != metav1.NamespaceDefault {
		return false
	}
	_, slice := o.(*discoveryv1.EndpointSlice)
	return o.GetName() == kubernetesName || slice && o.GetLabels()[discoveryv1.LabelServiceName] == kubernetesName
}

func (u *Upkeep) deleteOwn(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
	if err := u.config.Own.Delete(ctx, gvr, obj); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s %s: %w", gvr.Resource, obj.GetName(), err)
	}
	return nil
}

// endpointsOf builds the Endpoints and EndpointSlices of the Service "kubernetes". Servers with the same port share a
// subset and a slice.
func endpointsOf(servers []netip.AddrPort) []kind.Object {
	if len(servers) == 0 {
		return nil
	}
	servers = slices.Clone(servers)
	slices.SortFunc(servers, func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(a.Port(), b.Port()), a.Addr().Compare(b.Addr()))
	})
	endpoints := &corev1.Endpoints{ // deprecated, but still read by clients
		ObjectMeta: metav1.ObjectMeta{
			Name:      kubernetesName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
	}
	out := []kind.Object{endpoints}
	for len(servers) > 0 {
		n := 1
		for n < len(servers) && servers[n].Port() == servers[0].Port() {
			n++
		}
		name := "https"
		protocol := corev1.ProtocolTCP
		ready := true
		port := int32(servers[0].Port())
		// the same
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: name, Port: port, Protocol: protocol}}}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:      kubernetesName,
				Namespace: metav1.NamespaceDefault,
				Labels:    map[string]string{discoveryv1.LabelServiceName: kubernetesName},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		}
		if len(out) > 1 {
			slice.Name = fmt.Sprintf("%s-%d", kubernetesName, port)
		}
		if servers[0].Addr().Is6() {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		for _, server := range servers[:n] {
			ip := server.Addr().String()
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: ip}) // the same
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{ip},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		endpoints.Subsets = append(endpoints.Subsets, subset)
		out = append(out, slice)
		servers = servers[n:]
	}
	return out
}

func leaseKey(server netip.AddrPort) string { return leasesPrefix + server.Addr().String() }

// renewLease writes this server's key. The value is Kubernetes': Endpoints with the address, and a generation that is
// incremented; the port is our addition.
func (p *peers) renewLease(ctx context.Context, own netip.AddrPort) error {
	if !own.IsValid() {
		return nil
	}
	p.writes++
	value, err := p.codec.Encode(&corev1.Endpoints{ // the format of the lease
		ObjectMeta: metav1.ObjectMeta{Generation: p.writes},
		Subsets: []corev1.EndpointSubset{{ // the same
			Addresses: []corev1.EndpointAddress{{IP: own.Addr().String()}},
			Ports:     []corev1.EndpointPort{{Port: int32(own.Port())}},
		}},
	})
	if err != nil {
		return err
	}
	key := leaseKey(own)
	for {
		kv, _, err := p.store.Get(ctx, key, 0)
		if errors.Is(err, store.ErrNotFound) {
			_, err = p.store.Create(ctx, key, value)
			if errors.Is(err, store.ErrExists) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		_, err = p.store.Update(ctx, key, value, kv.Revision)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) || errors.Is(err, store.ErrNotFound) {
			continue
		}
		return err
	}
}

// live are the servers that renew their keys. It removes a key that has not changed for leaseTTL.
func (p *peers) live(ctx context.Context, now time.Time) ([]netip.AddrPort, error) {
	page, err := p.store.List(ctx, store.Range{Prefix: leasesPrefix})
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	seen := map[string]peerLease{}
	for _, kv := range page.Items {
		was, known := p.seen[kv.Key]
		if !known || was.revision != kv.Revision {
			was = peerLease{kv.Revision, now}
		}
		if now.Sub(was.since) > leaseTTL {
			var conflict *store.ConflictError
			if _, _, err := p.store.Delete(ctx, kv.Key, kv.Revision); err != nil &&
				!errors.Is(err, store.ErrNotFound) && !errors.As(err, &conflict) {
				return nil, err
			}
			continue
		}
		seen[kv.Key] = was
		if at, ok := p.peerOf(kv); ok {
			out = append(out, at)
		}
	}
	p.seen = seen
	return withPorts(out, p.own.Advertised)
}

// withPorts gives the servers whose key has no port the smallest port of the others, so that all servers agree, or else
// the one of this server.
func withPorts(peers []netip.AddrPort, own func() (string, int32, error)) ([]netip.AddrPort, error) {
	smallest := uint16(0)
	for _, peer := range peers {
		if port := peer.Port(); port != 0 && (smallest == 0 || port < smallest) {
			smallest = port
		}
	}
	if smallest == 0 {
		_, port, err := own()
		if err != nil || port < 1 || port > 65535 {
			return nil, err
		}
		smallest = uint16(port)
	}
	for i, peer := range peers {
		if peer.Port() == 0 {
			peers[i] = netip.AddrPortFrom(peer.Addr(), smallest)
		}
	}
	return peers, nil
}

// peerOf decodes a key. Kubernetes' servers write no port, which is 0 then: all have the same.
func (p *peers) peerOf(kv store.KV) (netip.AddrPort, bool) {
	ip, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, leasesPrefix))
	if err != nil {
		return netip.AddrPort{}, false
	}
	port := int32(0)
	if obj, err := p.codec.Decode(kv.Value); err == nil {
		// the format of the lease
		if e, ok := obj.(*corev1.Endpoints); ok && len(e.Subsets) == 1 && len(e.Subsets[0].Ports) == 1 {
			port = e.Subsets[0].Ports[0].Port
		}
	}
	if port < 0 || port > 65535 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip, uint16(port)), true
}

// newEndpointsLoop is the loop that keeps the endpoints: after a change of theirs and, if the store is shared, every
// leaseRenewal, when it renews this server's key and checks the others'. It is a loop of its own: a webhook that delays
// other objects of the system must not delay the renewal.
func (u *Upkeep) newEndpointsLoop() *keyed.Loop[struct{}] {
	space := &spacing{most: leaseRenewal}
	return keyed.New(keyed.Config[struct{}]{
		Pause:     restoreRetry,
		PauseMost: leaseRenewal,
		Do: func(ctx context.Context, _ struct{}) (again time.Duration, err error) {
			again, err = space.pass(func() (bool, error) { return u.reconcileEndpoints(ctx) })
			if u.config.Shared && again == 0 {
				again = leaseRenewal
			}
			return again, err
		},
		Failed: func(_ struct{}, err error) {
			u.config.Log.Warn("endpoints of the service kubernetes are not up to date", "error", err)
		},
	})
}

// RunEndpoints keeps the endpoints until ctx ends.
func (u *Upkeep) RunEndpoints(ctx context.Context) error {
	u.endpoints.Add(struct{}{})
	return u.endpoints.Run(ctx)
}

// Leave removes this server's address from the endpoints while it shuts down, after RunEndpoints.
func (u *Upkeep) Leave(ctx context.Context) {
	own, err := u.config.Address.Endpoint()
	if err != nil || !u.config.Shared || !own.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, _, err = u.config.Store.Delete(ctx, leaseKey(own), 0); err == nil {
		var left []netip.AddrPort
		if left, err = u.peers.live(ctx, time.Now()); err == nil {
			_, err = u.writeEndpoints(ctx, left)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		u.config.Log.Warn("this server's address stays an endpoint of the service kubernetes for a while", "error", err)
	}
}
