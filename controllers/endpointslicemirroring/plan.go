// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"

	"keelson/api/meta"
)

// maxAddressesPerSubset is the maximum number of mirrored addresses per subset (--mirroring-max-endpoints-per-subset).
const maxAddressesPerSubset = 1000

// shouldMirror reports whether the Endpoints is mirrored: not with the label that disables it, and not if it is a
// leader election lock.
func shouldMirror(e *corev1.Endpoints) bool {
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// changes are the writes to make, with numbers for metrics and events.
type changes struct {
	create, update, remove []*discoveryv1.EndpointSlice
	// desired and slices are the wanted numbers of endpoints and of slices.
	desired, slices int
	// invalid addresses are no IP addresses; skipped ones are these and those beyond maxAddressesPerSubset.
	invalid, skipped               int
	added, updated, removedAddress int
}

// group is the wanted content of one slice.
type group struct {
	family    discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

type groupKey struct {
	family discoveryv1.AddressType
	ports  endpointutil.PortMapKey
}

func keyOf(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) groupKey {
	return groupKey{family, endpointutil.NewPortMapKey(slices.Clone(ports))}
}

// plan compares the mirrored slices of an Endpoints with the wanted ones: one per set of ports and address family.
func plan(endpoints *corev1.Endpoints, existing []*discoveryv1.EndpointSlice) *changes {
	c := &changes{}
	groups := c.groupsOf(endpoints)
	have := map[groupKey]*discoveryv1.EndpointSlice{}
	existing = slices.SortedFunc(slices.Values(existing), func(a, b *discoveryv1.EndpointSlice) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, s := range existing {
		k := keyOf(s.AddressType, s.Ports)
		if groups[k] == nil || have[k] != nil || !ownedBy(s, endpoints) {
			c.remove = append(c.remove, s)
			c.removedAddress += len(s.Endpoints)
			continue
		}
		have[k] = s
	}
	order := slices.SortedFunc(maps.Keys(groups), func(a, b groupKey) int {
		return cmp.Or(strings.Compare(string(a.family), string(b.family)),
			strings.Compare(string(a.ports), string(b.ports)))
	})
	for _, k := range order {
		group := groups[k]
		c.desired += len(group.endpoints)
		c.slices++
		if s := have[k]; s != nil {
			c.compare(endpoints, s, group)
			continue
		}
		c.added += len(group.endpoints)
		if i := slices.IndexFunc(c.remove, func(s *discoveryv1.EndpointSlice) bool {
			return s.AddressType == group.family && ownedBy(s, endpoints)
		}); i >= 0 {
			c.update = append(c.update, sliceOf(endpoints, c.remove[i], group))
			c.remove = slices.Delete(c.remove, i, i+1)
			continue
		}
		c.create = append(c.create, sliceOf(endpoints, nil, group))
	}
	return c
}

// compare plans an update of s if it differs from g.
func (c *changes) compare(e *corev1.Endpoints, s *discoveryv1.EndpointSlice, g *group) {
	want := sliceOf(e, s, g)
	if apiequality.Semantic.DeepEqual(s.Endpoints, want.Endpoints) && maps.Equal(s.Labels, want.Labels) &&
		maps.Equal(s.Annotations, want.Annotations) {
		return
	}
	c.update = append(c.update, want)
	was := map[string]*discoveryv1.Endpoint{}
	for i := range s.Endpoints {
		was[endpointKey(&s.Endpoints[i])] = &s.Endpoints[i]
	}
	for i := range g.endpoints {
		id := endpointKey(&g.endpoints[i])
		switch old := was[id]; {
		case old == nil:
			c.added++
		case !apiequality.Semantic.DeepEqual(old, &g.endpoints[i]):
			c.updated++
		}
		delete(was, id)
	}
	c.removedAddress += len(was)
}

// groupsOf groups the addresses of an Endpoints by family and ports.
func (c *changes) groupsOf(e *corev1.Endpoints) map[groupKey]*group {
	groups := map[groupKey]*group{}
	at := map[groupKey]map[string]int{}
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		ports := portsOf(subset.Ports)
		n := 0
		add := func(a *corev1.EndpointAddress, ready bool) {
			if n >= maxAddressesPerSubset {
				c.skipped++
				return
			}
			endpoint, family, ok := endpointOf(a, ready)
			if !ok {
				c.invalid++
				c.skipped++
				return
			}
			n++
			k := keyOf(family, ports)
			g := groups[k]
			if g == nil {
				g = &group{family: family, ports: ports}
				groups[k] = g
				at[k] = map[string]int{}
			}
			id := endpointKey(&endpoint)
			if j, ok := at[k][id]; ok { // a duplicate address: the last one counts
				g.endpoints[j] = endpoint
			} else if len(g.endpoints) < maxAddressesPerSubset {
				at[k][id] = len(g.endpoints)
				g.endpoints = append(g.endpoints, endpoint)
			}
		}
		for j := range subset.Addresses {
			add(&subset.Addresses[j], true)
		}
		for j := range subset.NotReadyAddresses {
			add(&subset.NotReadyAddresses[j], false)
		}
	}
	return groups
}

// endpointKey is the comparable identity of an endpoint.
func endpointKey(e *discoveryv1.Endpoint) string {
	id := strings.Join(e.Addresses, ",")
	if e.Hostname != nil {
		id += " " + *e.Hostname
	}
	if e.TargetRef != nil {
		id += " " + e.TargetRef.Kind + " " + e.TargetRef.Namespace + "/" + e.TargetRef.Name + " " + string(
			e.TargetRef.UID)
	}
	return id
}

func endpointOf(address *corev1.EndpointAddress, ready bool) (discoveryv1.Endpoint, discoveryv1.AddressType, bool) {
	ip := utilnet.ParseIPSloppy(address.IP)
	if ip == nil {
		return discoveryv1.Endpoint{}, "", false
	}
	family := discoveryv1.AddressTypeIPv6
	if ip.To4() != nil {
		family = discoveryv1.AddressTypeIPv4
	}
	e := discoveryv1.Endpoint{
		Addresses:  []string{ip.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef:  address.TargetRef,
		NodeName:   address.NodeName,
	}
	if address.Hostname != "" {
		e.Hostname = &address.Hostname
	}
	return e, family, true
}

func portsOf(ports []corev1.EndpointPort) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	for i := range ports {
		p := &ports[i]
		out = append(out, discoveryv1.EndpointPort{
			Name:        &p.Name,
			Port:        &p.Port,
			Protocol:    &p.Protocol,
			AppProtocol: p.AppProtocol,
		})
	}
	return out
}

func ownedBy(s *discoveryv1.EndpointSlice, e *corev1.Endpoints) bool {
	return slices.ContainsFunc(s.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == e.UID })
}

// sliceOf is the slice for g; was, which may be nil, is the current one.
func sliceOf(endpoints *corev1.Endpoints, was *discoveryv1.EndpointSlice, g *group) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:    endpoints.Namespace,
			GenerateName: meta.ChildName(endpoints.Name, "-"),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(endpoints, corev1.SchemeGroupVersion.WithKind("Endpoints")),
			},
		},
		AddressType: g.family,
	}
	if was != nil {
		slice = was.DeepCopy()
	}
	slice.Ports = g.ports
	slice.Endpoints = g.endpoints
	slice.Labels = map[string]string{}
	slice.Annotations = map[string]string{}
	maps.Copy(slice.Labels, endpoints.Labels)
	slice.Labels[discoveryv1.LabelServiceName] = endpoints.Name
	slice.Labels[discoveryv1.LabelManagedBy] = manager
	for name, value := range endpoints.Annotations {
		if name != corev1.EndpointsLastChangeTriggerTime && name != corev1.LastAppliedConfigAnnotation {
			slice.Annotations[name] = value
		}
	}
	return slice
}
