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

func service(uid string, kind corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}, Spec: corev1.ServiceSpec{Type: kind, Ports: ports},
	}
}

// book is IPAddresses in memory, with the allocators that hear of each change.
type book struct {
	mu       sync.Mutex
	pages    map[netip.Addr]*networkingv1.IPAddress
	hears    []*Allocator
	releases int
}

func newBook() *book { return &book{pages: map[netip.Addr]*networkingv1.IPAddress{}} }

func (b *book) Claim(_ context.Context, ip netip.Addr, service types.NamespacedName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if page, ok := b.pages[ip]; ok {
		if owner, ours := Of(page); !ours || owner != service {
			return ErrTaken
		}
		return nil
	}
	b.putLocked(ip, service, time.Now())
	return nil
}

func (b *book) putLocked(ip netip.Addr, service types.NamespacedName, since time.Time) {
	page := Address(ip, service)
	page.CreationTimestamp = metav1.NewTime(since)
	b.pages[ip] = page
	for _, a := range b.hears {
		a.SetAddress(page)
	}
}

func (b *book) Release(_ context.Context, ip netip.Addr, service types.NamespacedName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if page, ok := b.pages[ip]; ok {
		if owner, ours := Of(page); ours && owner == service {
			b.tearLocked(ip)
		}
	}
	return nil
}

func (b *book) tearLocked(ip netip.Addr) {
	page := b.pages[ip]
	delete(b.pages, ip)
	b.releases++
	for _, a := range b.hears {
		a.RemoveAddress(page)
	}
}

func (b *book) has(ip string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pages[netip.MustParseAddr(ip)] != nil
}

func allocator(t *testing.T, cidr string) *Allocator {
	t.Helper()
	return sharing(t, cidr, newBook())
}

func sharing(t *testing.T, cidr string, b *book) *Allocator {
	t.Helper()
	a, err := New(cidr, b)
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
			s := service(fmt.Sprint("s", i), corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, Protocol: "TCP"}, corev1.ServicePort{Port: 80, Protocol: "UDP"})
			settle, err := a.Allocate(t.Context(), s, nil, false)
			if err != nil {
				t.Error(err)
				return
			}
			settle(true)
			mu.Lock()
			defer mu.Unlock()
			if s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
				t.Errorf("one port of two protocols got node ports %d and %d", s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort)
			}
			for _, key := range []string{s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].NodePort)} {
				if other, taken := seen[key]; taken {
					t.Errorf("%s given to %s and %s", key, other, s.Name)
				}
				seen[key] = s.Name
			}
		})
	}
	wg.Wait()
}

func TestRefusals(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	first := service("first", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	first.Spec.ClusterIP, first.Spec.ClusterIPs = "10.96.0.10", []string{"10.96.0.10"}
	a.SetService(first)
	for _, c := range []struct {
		name, ip string
		port     int32
		want     string
	}{
		{"taken", "10.96.0.10", 0, `spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed to allocate IP 10.96.0.10: provided IP is already allocated`},
		{"outside", "1.2.3.4", 0, "failed to allocate IP 1.2.3.4: the provided IP (1.2.3.4) is not in the valid range"},
		{"port taken", "", 30080, "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"},
		{"port outside", "", 80, "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := service("second", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: c.port})
			if c.ip != "" {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = c.ip, []string{c.ip}
			}
			taken := len(a.ips) + len(a.ports)
			_, err := a.Allocate(t.Context(), s, nil, false)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
			if now := len(a.ips) + len(a.ports); now != taken {
				t.Errorf("a refused service took something: %d, %d before", now, taken)
			}
		})
	}
}

func TestGivesBack(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	s := service("s", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80})
	settle, err := a.Allocate(t.Context(), s, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	settle(true)
	// The update drops the node port; until it is stored nobody else may have it.
	port := s.Spec.Ports[0].NodePort
	next := s.DeepCopy()
	next.Spec.Type, next.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0
	settle, err = a.Allocate(t.Context(), next, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if next.Spec.ClusterIP != s.Spec.ClusterIP {
		t.Errorf("cluster IP changed from %s to %s", s.Spec.ClusterIP, next.Spec.ClusterIP)
	}
	if a.ports[port] != "s" {
		t.Error("node port was free before the update was stored")
	}
	settle(true)
	if _, taken := a.ports[port]; taken {
		t.Error("node port is still taken")
	}
	a.RemoveService(next)
	if len(a.ips)+len(a.ports) != 0 {
		t.Errorf("a removed service keeps %v %v", a.ips, a.ports)
	}
}

func TestFull(t *testing.T) {
	a := allocator(t, "10.96.0.0/29")
	given := 0
	for i := range 10 {
		if _, err := a.Allocate(t.Context(), service(fmt.Sprint(i), corev1.ServiceTypeClusterIP), nil, false); err == nil {
			given++
		} else if !strings.Contains(err.Error(), "range is full") {
			t.Error(err)
		}
	}
	if given != 5 { // 8 less network, broadcast and the first
		t.Errorf("%d addresses given, want 5", given)
	}
}
