// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func serviceOf(uid string, kind corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Spec:       corev1.ServiceSpec{Type: kind, Ports: ports},
	}
}

// fakeIPAddresses is IPAddresses in memory. Allocators receive each change.
type fakeIPAddresses struct {
	mu       sync.Mutex
	objects  map[netip.Addr]*networkingv1.IPAddress
	watchers []*Allocator
	releases int
}

func newFakeIPAddresses() *fakeIPAddresses {
	return &fakeIPAddresses{objects: map[netip.Addr]*networkingv1.IPAddress{}}
}

func (b *fakeIPAddresses) Create(_ context.Context, ip netip.Addr, service types.NamespacedName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if page, ok := b.objects[ip]; ok {
		if owner, ours := Of(page); !ours || owner != service {
			return ErrAllocated
		}
		return nil
	}
	b.putLocked(ip, service, time.Now())
	return nil
}

func (b *fakeIPAddresses) putLocked(ip netip.Addr, service types.NamespacedName, since time.Time) {
	page := Address(ip, service)
	page.CreationTimestamp = metav1.NewTime(since)
	b.objects[ip] = page
	for _, a := range b.watchers {
		a.SetAddress(page)
	}
}

func (b *fakeIPAddresses) Delete(_ context.Context, ip netip.Addr, service types.NamespacedName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if page, ok := b.objects[ip]; ok {
		if owner, ours := Of(page); ours && owner == service {
			b.removeLocked(ip)
		}
	}
	return nil
}

func (b *fakeIPAddresses) removeLocked(ip netip.Addr) {
	page := b.objects[ip]
	delete(b.objects, ip)
	b.releases++
	for _, a := range b.watchers {
		a.RemoveAddress(page)
	}
}

func (b *fakeIPAddresses) has(ip string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[netip.MustParseAddr(ip)] != nil
}

func untold(context.Context, Problem) error { return nil }

func allocator(t *testing.T, cidr string) *Allocator {
	t.Helper()
	return sharing(t, cidr, newFakeIPAddresses())
}

func sharing(t *testing.T, cidr string, b *fakeIPAddresses) *Allocator {
	t.Helper()
	a, err := New([]netip.Prefix{netip.MustParsePrefix(cidr)}, DefaultPorts, b, nil, untold)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAllocatesOnce(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	var mu sync.Mutex
	seen := map[string]string{}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			service := serviceOf(fmt.Sprint("s", i), corev1.ServiceTypeNodePort,
				corev1.ServicePort{Port: 80, Protocol: "TCP"}, corev1.ServicePort{Port: 80, Protocol: "UDP"})
			settle, err := a.Begin(t.Context(), service, nil, false)
			if err != nil {
				t.Error(err)
				return
			}
			settle(true)
			mu.Lock()
			defer mu.Unlock()
			if service.Spec.Ports[0].NodePort != service.Spec.Ports[1].NodePort {
				t.Errorf("one port of two protocols got node ports %d and %d", service.Spec.Ports[0].NodePort,
					service.Spec.Ports[1].NodePort)
			}
			for _, key := range []string{service.Spec.ClusterIP, fmt.Sprint(service.Spec.Ports[0].NodePort)} {
				if other, taken := seen[key]; taken {
					t.Errorf("%s given to %s and %s", key, other, service.Name)
				}
				seen[key] = service.Name
			}
		})
	}
	wg.Wait()
}

func TestRefusals(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	first := serviceOf("first", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	first.Spec.ClusterIP = "10.96.0.10"
	first.Spec.ClusterIPs = []string{"10.96.0.10"}
	a.SetService(first)
	for _, c := range []struct {
		name, ip string
		port     int32
		want     string
	}{
		{
			"taken", "10.96.0.10", 0,
			`spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed to allocate IP 10.96.0.10: provided IP is already allocated`,
		},
		{
			"outside", "1.2.3.4", 0, "failed to allocate IP 1.2.3.4: the provided network does not match the current " +
				"range",
		},
		{"port taken", "", 30080, "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"},
		{
			"port outside", "", 80, "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid " +
				"range. The range of valid ports is 30000-32767",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serviceOf("second", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: c.port})
			if c.ip != "" {
				s.Spec.ClusterIP = c.ip
				s.Spec.ClusterIPs = []string{c.ip}
			}
			taken := len(a.ips) + len(a.nodePorts)
			_, err := a.Begin(t.Context(), s, nil, false)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
			if now := len(a.ips) + len(a.nodePorts); now != taken {
				t.Errorf("a refused service took something: %d, %d before", now, taken)
			}
		})
	}
}

func TestGivesBack(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	service := serviceOf("s", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80})
	settle, err := a.Begin(t.Context(), service, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	settle(true)
	// The update drops the node port; until it is stored no one else may have it.
	port := service.Spec.Ports[0].NodePort
	next := service.DeepCopy()
	next.Spec.Type = corev1.ServiceTypeClusterIP
	next.Spec.Ports[0].NodePort = 0
	settle, err = a.Begin(t.Context(), next, service, false)
	if err != nil {
		t.Fatal(err)
	}
	if next.Spec.ClusterIP != service.Spec.ClusterIP {
		t.Errorf("cluster IP changed from %s to %s", service.Spec.ClusterIP, next.Spec.ClusterIP)
	}
	if len(a.nodePorts[port]) != 1 || a.nodePorts[port][0].uid != "s" {
		t.Error("node port was free before the update was stored")
	}
	settle(true)
	if _, taken := a.nodePorts[port]; taken {
		t.Error("node port is still taken")
	}
	a.RemoveService(next)
	if len(a.ips)+len(a.nodePorts) != 0 {
		t.Errorf("a removed service keeps %v %v", a.ips, a.nodePorts)
	}
}

func TestFull(t *testing.T) {
	a := allocator(t, "10.96.0.0/29")
	given := 0
	for i := range 10 {
		if _, err := a.Begin(t.Context(), serviceOf(fmt.Sprint(i), corev1.ServiceTypeClusterIP), nil,
			false); err == nil {
			given++
		} else if !strings.Contains(err.Error(), "range is full") {
			t.Error(err)
		}
	}
	if given != 5 { // 8 less network, broadcast and the first
		t.Errorf("%d addresses given, want 5", given)
	}
}

// TestTwoFamilies: a second address comes and goes with the family, also where a first one stays; a dry run takes
// neither.
func TestTwoFamilies(t *testing.T) {
	addresses := newFakeIPAddresses()
	allocator, err := New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd00:1::/108")},
		DefaultPorts, addresses, nil, untold)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	do := func(s, old *corev1.Service, dry bool) {
		t.Helper()
		settle, err := allocator.Begin(ctx, s, old, dry)
		if err != nil {
			t.Fatal(err)
		}
		settle(true)
	}
	service := serviceOf("s", corev1.ServiceTypeClusterIP)
	do(service, nil, false)
	next := service.DeepCopy()
	next.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	try := next.DeepCopy()
	do(try, service, true)
	if try.Spec.ClusterIPs[1] != "fd00:1::" || len(allocator.ips) != 1 {
		t.Errorf("a dry run got %v and took %d addresses", try.Spec.ClusterIPs, len(allocator.ips)-1)
	}
	do(next, service, false)
	second := next.Spec.ClusterIPs[1]
	if !strings.HasPrefix(second, "fd00:1::") || !addresses.has(second) ||
		next.Spec.ClusterIP != service.Spec.ClusterIP {
		t.Errorf("a second family: %v", next.Spec.ClusterIPs)
	}
	last := next.DeepCopy()
	last.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	do(last, next, false)
	if addresses.has(second) || !addresses.has(service.Spec.ClusterIP) || len(last.Spec.ClusterIPs) != 1 {
		t.Errorf("the second family is gone: %v, its address is claimed: %v", last.Spec.ClusterIPs,
			addresses.has(second))
	}
	allocator.AfterDelete(ctx, last)
	if addresses.has(service.Spec.ClusterIP) || len(allocator.ips) != 0 {
		t.Error("a service that is gone keeps its address")
	}
}

// TestPortWords: one row for what is said of node ports, and what they become.
func TestPortWords(t *testing.T) {
	type ports = []corev1.ServicePort
	a := allocator(t, "10.96.0.0/24")
	has := serviceOf("has", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	a.SetService(has)
	balanced := corev1.ServiceSpec{
		Type:                  corev1.ServiceTypeLoadBalancer,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
	}
	asked := *balanced.DeepCopy()
	asked.HealthCheckNodePort = 30080
	for _, tt := range []struct {
		what string
		spec corev1.ServiceSpec
		old  *corev1.Service
		dry  bool
		want string
	}{
		{
			"two ports, one number",
			corev1.ServiceSpec{
				Type:  "NodePort",
				Ports: ports{{Port: 1, NodePort: 30001}, {Port: 2, NodePort: 30001, Protocol: "UDP"}},
			},
			nil, false,
			`spec.ports[1].nodePort: Invalid value: 30001: provided port is already allocated`,
		},
		{
			"named by the other protocol", corev1.ServiceSpec{
				Type:  "NodePort",
				Ports: ports{{Port: 1}, {Port: 1, NodePort: 30002, Protocol: "UDP"}},
			}, nil, false, "[30002 30002]",
		},
		{
			"none wanted", corev1.ServiceSpec{
				Type:                          "LoadBalancer",
				AllocateLoadBalancerNodePorts: new(false),
				Ports:                         ports{{Port: 1}, {Port: 2, NodePort: 30003}},
			}, nil, false, "[0 30003]",
		},
		{
			"a dry run",
			corev1.ServiceSpec{Type: "NodePort", Ports: ports{{Port: 1}, {Port: 2}}},
			nil, true,
			"[32769 32770]",
		},
		{
			"a dry run out of range",
			corev1.ServiceSpec{Type: "NodePort", Ports: ports{{Port: 1, NodePort: 1}}},
			nil,
			true, "[1]",
		},
		{
			"health checks' is taken", asked, nil, false, "Internal error occurred: failed to allocate requested " +
				"HealthCheck NodePort 30080: provided port is already allocated",
		},
		{"kept", corev1.ServiceSpec{Type: "NodePort", Ports: ports{{Port: 81}}}, has, false, "[30080]"},
		{
			"twice", corev1.ServiceSpec{
				Type:  "NodePort",
				Ports: ports{{Port: 1, NodePort: 30080}, {Port: 2, NodePort: 30080}},
			}, has, false, "duplicate nodePort: { 30080}",
		},
	} {
		s := &corev1.Service{Spec: tt.spec}
		s.Name = "s"
		s.UID = "s"
		got := ""
		settle, err := a.Begin(t.Context(), s, tt.old, tt.dry)
		if err != nil {
			got = err.Error()
		} else {
			var numbers []int32
			for _, p := range s.Spec.Ports {
				numbers = append(numbers, p.NodePort)
			}
			got = fmt.Sprint(numbers)
			settle(false)
		}
		if !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: got %s\nwant %s", tt.what, got, tt.want)
		}
	}
	if len(a.nodePorts) != 1 {
		t.Errorf("taken: %v", a.nodePorts)
	}
}
