// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/endpointslice"
	endpointutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"keelson/api/core/pod"
)

const (
	// managedBy is the label of Endpoints that this controller created; they are deleted with their Service.
	managedBy = "endpoints.kubernetes.io/managed-by"
	manager   = "endpoint-controller"
	// maxCapacity is the maximum number of addresses; the annotation EndpointsOverCapacity marks truncated Endpoints.
	maxCapacity = 1000
	truncated   = "truncated"
)

// plan returns the Service's wanted Endpoints, nil if current (nil: there is none) is equal. since is the time of the
// change that led to it, zero: unknown.
func plan(current *corev1.Endpoints, service *corev1.Service, pods []*corev1.Pod, since time.Time) *corev1.Endpoints {
	subsets, over := truncateToCapacity(subsetsOf(service, pods))
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	if current != nil {
		if sameSubsets(current.Subsets, subsets) && maps.Equal(current.Labels, labelsOf(service)) &&
			(current.Annotations[corev1.EndpointsOverCapacity] != "") == over {
			return nil
		}
		want = current.DeepCopy()
	}
	want.Subsets = subsets
	want.Labels = labelsOf(service)
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	delete(want.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(want.Annotations, corev1.EndpointsOverCapacity)
	if !since.IsZero() {
		want.Annotations[corev1.EndpointsLastChangeTriggerTime] = since.UTC().Format(time.RFC3339Nano)
	}
	if over {
		want.Annotations[corev1.EndpointsOverCapacity] = truncated
	}
	return want
}

// labelsOf are the Service's labels with those of generated Endpoints.
func labelsOf(service *corev1.Service) map[string]string {
	l := maps.Clone(service.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[managedBy] = manager
	delete(l, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == "" {
		l[corev1.IsHeadlessService] = ""
	}
	return l
}

// endpointAddress is a pod as an address of the Service.
type endpointAddress struct {
	address corev1.EndpointAddress
	ready   bool
	pod     *corev1.Pod
}

// addressesOf are the pods with an address of the Service's first family, by address.
func addressesOf(service *corev1.Service, pods []*corev1.Pod) []endpointAddress {
	var all []endpointAddress
	for _, p := range pods {
		if !endpointutil.ShouldPodBeInEndpoints(p, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		ip := addressOf(service, p)
		if ip == "" {
			continue
		}
		address := endpointAddress{
			pod:   p,
			ready: service.Spec.PublishNotReadyAddresses || pod.Ready(p),
			address: corev1.EndpointAddress{
				IP: ip,
				TargetRef: &corev1.ObjectReference{
					Kind:      "Pod",
					Namespace: p.Namespace,
					Name:      p.Name,
					UID:       p.UID,
				},
			},
		}
		if p.Spec.NodeName != "" {
			address.address.NodeName = &p.Spec.NodeName
		}
		if endpointutil.ShouldSetHostname(p, service) {
			address.address.Hostname = p.Spec.Hostname
		}
		all = append(all, address)
	}
	slices.SortFunc(all, func(a, b endpointAddress) int {
		return cmp.Or(strings.Compare(a.address.IP, b.address.IP),
			strings.Compare(string(a.pod.UID), string(b.pod.UID)))
	})
	return all
}

// addressOf is the pod's address of the Service's first family, "" if there is none.
func addressOf(service *corev1.Service, p *corev1.Pod) string {
	v6 := utilnet.IsIPv6String(service.Spec.ClusterIP)
	if len(service.Spec.IPFamilies) > 0 {
		v6 = service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	}
	for _, ip := range p.Status.PodIPs {
		if utilnet.IsIPv6String(ip.IP) == v6 {
			return ip.IP
		}
	}
	return ""
}

// port is a comparable EndpointPort.
type port struct {
	name           string
	port           int32
	protocol       corev1.Protocol
	appProtocol    string
	hasAppProtocol bool
}

// subsetsOf groups the Service's pods: ports served by the same pods share a subset. It is sorted by ports and
// addresses.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	addresses := addressesOf(service, pods)
	if len(service.Spec.Ports) == 0 {
		if service.Spec.ClusterIP != corev1.ClusterIPNone || len(addresses) == 0 {
			return nil
		}
		return []corev1.EndpointSubset{newSubset(addresses, nil, nil)}
	}
	serving := map[port][]byte{} // the indexes of the addresses, four bytes each, usable as a map key
	for i, m := range addresses {
		for j := range service.Spec.Ports {
			sp := &service.Spec.Ports[j]
			number, err := endpointslice.FindPort(m.pod, sp)
			if err != nil {
				continue // the pod has no port of that name
			}
			k := port{name: sp.Name, port: int32(number), protocol: sp.Protocol} // the API admits ports only
			if sp.AppProtocol != nil {
				k.appProtocol = *sp.AppProtocol
				k.hasAppProtocol = true
			}
			list := serving[k]
			if n := len(list); n == 0 || binary.BigEndian.Uint32(list[n-4:]) != uint32(i) {
				serving[k] = binary.BigEndian.AppendUint32(list, uint32(i))
			}
		}
	}
	together := map[string][]port{}
	for p, list := range serving {
		together[string(list)] = append(together[string(list)], p)
	}
	var subsets []corev1.EndpointSubset
	for list, ports := range together {
		subsets = append(subsets, newSubset(addresses, []byte(list), ports))
	}
	slices.SortFunc(subsets, func(a, b corev1.EndpointSubset) int {
		return slices.CompareFunc(a.Ports, b.Ports, comparePorts)
	})
	return subsets
}

// newSubset has the addresses of the list, or all if there are no ports.
func newSubset(all []endpointAddress, list []byte, ports []port) corev1.EndpointSubset {
	var endpointSubset corev1.EndpointSubset
	add := func(m endpointAddress) {
		if m.ready {
			endpointSubset.Addresses = append(endpointSubset.Addresses, m.address)
		} else {
			endpointSubset.NotReadyAddresses = append(endpointSubset.NotReadyAddresses, m.address)
		}
	}
	if ports == nil {
		for _, m := range all {
			add(m)
		}
	}
	for ; len(list) > 0; list = list[4:] {
		add(all[binary.BigEndian.Uint32(list)])
	}
	for _, p := range ports {
		ep := corev1.EndpointPort{Name: p.name, Port: p.port, Protocol: p.protocol}
		if p.hasAppProtocol {
			ep.AppProtocol = &p.appProtocol
		}
		endpointSubset.Ports = append(endpointSubset.Ports, ep)
	}
	slices.SortFunc(endpointSubset.Ports, comparePorts)
	return endpointSubset
}

func comparePorts(a, b corev1.EndpointPort) int {
	app := func(p corev1.EndpointPort) string {
		if p.AppProtocol == nil {
			return ""
		}
		return *p.AppProtocol
	}
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port),
		strings.Compare(string(a.Protocol), string(b.Protocol)),
		strings.Compare(app(a), app(b)))
}

// truncateToCapacity keeps at most maxCapacity addresses, ready ones first, in proportion for each subset, and reports
// whether it removed any.
func truncateToCapacity(subsets []corev1.EndpointSubset) ([]corev1.EndpointSubset, bool) {
	ready := 0
	notReady := 0
	for i := range subsets {
		ready = ready + len(subsets[i].Addresses)
		notReady = notReady + len(subsets[i].NotReadyAddresses)
	}
	if ready+notReady <= maxCapacity {
		return subsets, false
	}
	list := func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress { return &s.NotReadyAddresses }
	total := notReady
	room := maxCapacity - ready
	if ready > maxCapacity {
		list = func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress { return &s.Addresses }
		total = ready
		room = maxCapacity
	}
	left := room
	for i := range subsets {
		if ready > maxCapacity {
			subsets[i].NotReadyAddresses = nil
		}
		l := list(&subsets[i])
		share := min(int(math.Ceil(float64(len(*l))/float64(total)*float64(room))), left, len(*l))
		*l = (*l)[:share]
		left -= share
	}
	// A subset without addresses is invalid.
	return slices.DeleteFunc(subsets, func(s corev1.EndpointSubset) bool {
		return len(s.Addresses)+len(s.NotReadyAddresses) == 0
	}), true
}

// sameSubsets replaces a reflective comparison, which is twenty times slower: there may be a thousand addresses,
// compared each time a pod becomes ready.
func sameSubsets(a, b []corev1.EndpointSubset) bool {
	return slices.EqualFunc(a, b, func(a, b corev1.EndpointSubset) bool {
		return slices.EqualFunc(a.Addresses, b.Addresses, sameAddress) && slices.EqualFunc(a.NotReadyAddresses,
			b.NotReadyAddresses, sameAddress) &&
			slices.EqualFunc(a.Ports, b.Ports, func(a, b corev1.EndpointPort) bool {
				return a.Name == b.Name && a.Port == b.Port && a.Protocol == b.Protocol &&
					ptr.Equal(a.AppProtocol, b.AppProtocol)
			})
	})
}

func sameAddress(a, b corev1.EndpointAddress) bool {
	return a.IP == b.IP && a.Hostname == b.Hostname && ptr.Equal(a.NodeName, b.NodeName) &&
		ptr.Equal(a.TargetRef, b.TargetRef)
}
