// SPDX-License-Identifier: Apache-2.0

package apiserver

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
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
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
	codec  objects.Codec
	writes int64                // number of renewals of its key
	seen   map[string]peerLease // by key
}

// peerLease is another server's key, and since when it has not changed.
type peerLease struct {
	revision int64
	since    time.Time
}

func newPeers() *peers {
	// deprecated, but still read by clients
	return &peers{
		codec: objects.Protobuf(corev1.SchemeGroupVersion.WithKind("Endpoints"), func() kind.Object {
			return &corev1.Endpoints{}
		}, nil),
		seen: map[string]peerLease{},
	}
}

// ownEndpoint is this server's address for others; invalid: none.
func (s *Server) ownEndpoint() (netip.AddrPort, error) {
	host, port, err := s.advertised()
	if err != nil || host == "" {
		return netip.AddrPort{}, err
	}
	ip, err := netip.ParseAddr(host)
	return netip.AddrPortFrom(ip, uint16(port)), err // a port
}

// reconcileEndpoints updates the endpoints of the Service "kubernetes" to the running servers.
func (s *Server) reconcileEndpoints(ctx context.Context) error {
	own, err := s.ownEndpoint()
	if err != nil {
		return err
	}
	var want []netip.AddrPort
	if own.IsValid() {
		want = append(want, own)
	}
	if s.config.SharedStore {
		if err := s.renewLease(ctx, own); err != nil {
			return fmt.Errorf("tell that this server lives: %w", err)
		}
		if want, err = s.livePeers(ctx, time.Now()); err != nil {
			return fmt.Errorf("find the servers that live: %w", err)
		}
	}
	return s.writeEndpoints(ctx, want)
}

// writeEndpoints updates the Endpoints and EndpointSlices of the Service "kubernetes" if they differ from want.
func (s *Server) writeEndpoints(ctx context.Context, want []netip.AddrPort) error {
	objs := endpointsOf(want)
	if err := s.ensureAll(ctx, objs); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, obj := range objs {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
			keep[slice.Name] = true
		}
	}
	st, err := s.reader.storage(slicesResource)
	if err != nil {
		return err
	}
	query := objects.ListQuery{
		Namespace: metav1.NamespaceDefault,
		Labels:    labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: kubernetesName}),
		Fields:    fields.Everything(),
	}
	page, err := st.List(ctx, query)
	if err != nil {
		return err
	}
	for _, e := range page.Items {
		if name := e.Object.GetName(); !keep[name] &&
			(name == kubernetesName || strings.HasPrefix(name, kubernetesName+"-")) {
			if err := s.deleteOwn(ctx, slicesResource, e.Object); err != nil {
				return err
			}
		}
	}
	if len(want) > 0 {
		return nil
	}
	stale, err := s.reader.Get(ctx, endpointsResource, metav1.NamespaceDefault, kubernetesName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	o, ok := stale.(kind.Object)
	if !ok {
		return nil
	}
	return s.deleteOwn(ctx, endpointsResource, o)
}

func (s *Server) deleteOwn(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
	if err := s.handler.Delete(ctx, serverUser, gvr, obj); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s %s: %w", gvr.Resource, obj.GetName(), err)
	}
	return nil
}

// endpointsOf builds the Endpoints and EndpointSlices of the Service "kubernetes". Servers with the same port share a
// subset and a slice.
func endpointsOf(servers []netip.AddrPort) []runtime.Object {
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
	out := []runtime.Object{endpoints}
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
func (s *Server) renewLease(ctx context.Context, own netip.AddrPort) error {
	if !own.IsValid() {
		return nil
	}
	s.peers.writes++
	value, err := s.peers.codec.Encode(&corev1.Endpoints{ // the format of the lease
		ObjectMeta: metav1.ObjectMeta{Generation: s.peers.writes},
		Subsets: []corev1.EndpointSubset{{ // the same
			Addresses: []corev1.EndpointAddress{{IP: own.Addr().String()}},
			Ports:     []corev1.EndpointPort{{Port: int32(own.Port())}},
		}},
	})
	if err != nil {
		return err
	}
	key := leaseKey(own)
	st := s.config.Store
	for {
		kv, _, err := st.Get(ctx, key, 0)
		if errors.Is(err, store.ErrNotFound) {
			_, err = st.Create(ctx, key, value)
			if errors.Is(err, store.ErrExists) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		_, err = st.Update(ctx, key, value, kv.Revision)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) || errors.Is(err, store.ErrNotFound) {
			continue
		}
		return err
	}
}

// livePeers are the servers that renew their keys. It removes a key that has not changed for leaseTTL.
func (s *Server) livePeers(ctx context.Context, now time.Time) ([]netip.AddrPort, error) {
	page, err := s.config.Store.List(ctx, store.Range{Prefix: leasesPrefix})
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	seen := map[string]peerLease{}
	for _, kv := range page.Items {
		was, known := s.peers.seen[kv.Key]
		if !known || was.revision != kv.Revision {
			was = peerLease{kv.Revision, now}
		}
		if now.Sub(was.since) > leaseTTL {
			var conflict *store.ConflictError
			if _, _, err := s.config.Store.Delete(ctx, kv.Key, kv.Revision); err != nil &&
				!errors.Is(err, store.ErrNotFound) && !errors.As(err, &conflict) {
				return nil, err
			}
			continue
		}
		seen[kv.Key] = was
		if at, ok := s.peerOf(kv); ok {
			out = append(out, at)
		}
	}
	s.peers.seen = seen
	return out, nil
}

// peerOf decodes a key. Kubernetes' servers write no port: all have the same.
func (s *Server) peerOf(kv store.KV) (netip.AddrPort, bool) {
	ip, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, leasesPrefix))
	if err != nil {
		return netip.AddrPort{}, false
	}
	_, port, err := s.advertised()
	if err != nil {
		return netip.AddrPort{}, false
	}
	if obj, err := s.peers.codec.Decode(kv.Value); err == nil {
		// the format of the lease
		if e, ok := obj.(*corev1.Endpoints); ok && len(e.Subsets) == 1 && len(e.Subsets[0].Ports) == 1 {
			port = e.Subsets[0].Ports[0].Port
		}
	}
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip, uint16(port)), true
}

// runEndpoints renews this server's key and checks the others' until ctx is done. It returns at once if the store is
// not shared.
func (s *Server) runEndpoints(ctx context.Context) error {
	if !s.config.SharedStore {
		return nil
	}
	tick := time.NewTicker(leaseRenewal)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.reconcileEndpoints(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("endpoints of the service kubernetes are not up to date", "error", err)
		}
	}
}

// removeOwnEndpoint removes this server's address from the endpoints while it shuts down.
func (s *Server) removeOwnEndpoint(ctx context.Context) {
	own, err := s.ownEndpoint()
	if err != nil || !s.config.SharedStore || !own.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, _, err = s.config.Store.Delete(ctx, leaseKey(own), 0); err == nil {
		var left []netip.AddrPort
		if left, err = s.livePeers(ctx, time.Now()); err == nil {
			err = s.writeEndpoints(ctx, left)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.log.Warn("this server's address stays an endpoint of the service kubernetes for a while", "error", err)
	}
}

// endpointsDiffer reports whether a client has changed endpoints that only this server writes.
func (s *Server) endpointsDiffer(obj runtime.Object) bool {
	own, err := s.ownEndpoint()
	if err != nil || s.config.SharedStore {
		return false
	}
	var want []runtime.Object
	if own.IsValid() {
		want = endpointsOf([]netip.AddrPort{own})
	}
	switch o := obj.(type) {
	case *corev1.Endpoints: // deprecated, but still read by clients
		return o.Namespace == metav1.NamespaceDefault && o.Name == kubernetesName && !slices.ContainsFunc(want, func(
			w runtime.Object,
		) bool {
			e, ok := w.(*corev1.Endpoints) // the same
			return ok && apiequality.Semantic.DeepEqual(e.Subsets, o.Subsets)
		})
	case *discoveryv1.EndpointSlice:
		return o.Namespace == metav1.NamespaceDefault && o.Labels[discoveryv1.LabelServiceName] == kubernetesName &&
			strings.HasPrefix(o.Name, kubernetesName) &&
			!slices.ContainsFunc(want, func(w runtime.Object) bool {
				e, ok := w.(*discoveryv1.EndpointSlice)
				return ok && e.Name == o.Name && apiequality.Semantic.DeepEqual(e.Endpoints, o.Endpoints) &&
					apiequality.Semantic.DeepEqual(e.Ports, o.Ports)
			})
	}
	return false
}
