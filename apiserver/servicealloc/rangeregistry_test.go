// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fakeRegistry is a RangeRegistry in memory. Allocators receive each change.
type fakeRegistry struct {
	mu       sync.Mutex
	now      *corev1.RangeAllocation
	version  int
	watchers []*Allocator
	writes   int
	breaks   error // what becomes of writes, after they are done
}

func (p *fakeRegistry) GuaranteedUpdate(
	_ context.Context, f func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error),
) error {
	for {
		p.mu.Lock()
		was := p.now
		p.mu.Unlock()
		next, err := f(was)
		if err != nil || next == was {
			return err
		}
		p.mu.Lock()
		if p.now != was {
			p.mu.Unlock()
			continue
		}
		p.writeLocked(next)
		err = p.breaks
		p.mu.Unlock()
		return err
	}
}

func (p *fakeRegistry) writeLocked(r *corev1.RangeAllocation) {
	p.version++
	p.writes++
	r.ResourceVersion = fmt.Sprint(p.version)
	p.now = r
	for _, a := range p.watchers {
		a.SetRangeAllocation(r)
	}
}

// fail makes writes answer with err, after they are done.
func (p *fakeRegistry) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breaks = err
}

func (p *fakeRegistry) ports(t *testing.T) []int32 {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := decodeRangeAllocation(p.now)
	if err != nil {
		t.Fatal(err)
	}
	return b.ports()
}

// server is one more server that shares p; problems holds what it reports.
func (p *fakeRegistry) server(
	t *testing.T, ports PortRange, services ...*corev1.Service,
) (allocator *Allocator, problems *[]string) {
	t.Helper()
	problems = &[]string{}
	allocator, err := New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, ports, newFakeIPAddresses(), p, func(
		_ context.Context, q Problem,
	) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		*problems = append(*problems, fmt.Sprintf("%s %s: %s", q.Service.Name, q.Reason, q.Message))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		allocator.SetService(s)
	}
	p.mu.Lock()
	p.watchers = append(p.watchers, allocator)
	if p.now != nil {
		allocator.SetRangeAllocation(p.now)
	}
	p.mu.Unlock()
	if err := allocator.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return allocator, problems
}

func portService(name string, ports ...int32) *corev1.Service {
	service := serviceOf(name, corev1.ServiceTypeNodePort)
	for i, port := range ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name:     fmt.Sprint(i),
			Port:     80 + int32(i),
			NodePort: port,
			Protocol: "TCP",
		})
	}
	service.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	service.Spec.ClusterIP = corev1.ClusterIPNone
	return service
}

// begun takes what s asks for.
func begun(t *testing.T, a *Allocator, s, old *corev1.Service) (settle func(bool)) {
	t.Helper()
	settle, err := a.Begin(t.Context(), s, old, false)
	if err != nil {
		t.Fatal(err)
	}
	return settle
}

// TestServersShareOneRecord: servers that learn of nothing but the record give no port twice, until there is none.
func TestServersShareOneRecord(t *testing.T) {
	p := &fakeRegistry{}
	ports := PortRange{First: 30000, Last: 30099}
	first, _ := p.server(t, ports)
	second, _ := p.server(t, ports)
	servers := []*Allocator{first, second}
	var mu sync.Mutex
	seen := map[int32]string{}
	var wg sync.WaitGroup
	full := 0
	for i := range 120 {
		wg.Go(func() {
			service := portService(fmt.Sprint("s", i), 0)
			settle, err := servers[i%2].Begin(t.Context(), service, nil, false)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				full++
				if !strings.Contains(err.Error(), "failed to allocate a nodePort: range is full") {
					t.Error(err)
				}
				return
			}
			settle(true)
			if other, taken := seen[service.Spec.Ports[0].NodePort]; taken {
				t.Errorf("%d given to %s and %s", service.Spec.Ports[0].NodePort, other, service.Name)
			}
			seen[service.Spec.Ports[0].NodePort] = service.Name
		})
	}
	wg.Wait()
	if len(seen) != 100 || full != 20 {
		t.Errorf("%d ports given, %d refused", len(seen), full)
	}
}

// TestOneRecordEveryWay: what one server does with a port the other one knows at once.
func TestOneRecordEveryWay(t *testing.T) {
	p := &fakeRegistry{}
	first, _ := p.server(t, DefaultPorts)
	second, _ := p.server(t, DefaultPorts)
	s := portService("s", 30080, 0)
	settle := begun(t, first, s, nil)
	if given := s.Spec.Ports[1].NodePort; given < 30000+DefaultPorts.static() {
		t.Errorf("given from the part that is left for those who ask: %d", given)
	}
	if p.writes != 2 { // the empty record, and both ports in one
		t.Errorf("%d writes", p.writes)
	}
	other := portService("o", 30080)
	_, err := second.Begin(t.Context(), other, nil, false)
	if err == nil || !strings.HasSuffix(err.Error(),
		"spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated") {
		t.Errorf("taken by another server: %v", err)
	}
	if _, err := second.Begin(t.Context(), other, nil, true); err == nil {
		t.Error("a dry run takes what another server has")
	}
	settle(false) // it was refused
	if got := p.ports(t); len(got) != 0 {
		t.Errorf("a refused service keeps %v", got)
	}
	settle = begun(t, second, other, nil)
	settle(true)
	// An update through the other server, which knows the service, gives one port for another.
	first.SetService(other)
	second.SetService(other)
	next := other.DeepCopy()
	next.Spec.Ports[0].NodePort = 30081
	settle = begun(t, first, next, other)
	if got := p.ports(t); !slices.Equal(got, []int32{30080, 30081}) {
		t.Errorf("before the update is stored: %v", got)
	}
	settle(true)
	if got := p.ports(t); !slices.Equal(got, []int32{30081}) {
		t.Errorf("after it: %v", got)
	}
	second.SetService(next)
	if held := second.nodePorts[30080]; held != nil {
		t.Errorf("the other server still holds %v", held)
	}
	writes := p.writes
	plain := serviceOf("plain", corev1.ServiceTypeClusterIP, corev1.ServicePort{Port: 80})
	begun(t, first, plain, nil)(true)
	same := next.DeepCopy()
	begun(t, first, same, next)(true)
	if p.writes != writes {
		t.Errorf("%d writes for what takes no node port", p.writes-writes)
	}
	first.AfterDelete(t.Context(), next)
	if got := p.ports(t); len(got) != 0 {
		t.Errorf("a service that is gone keeps %v", got)
	}
}

// TestRecordIsRepaired: what a server left behind that was killed between its two writes is given back, and not before
// it is certain.
func TestRecordIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeRegistry{}
		has := portService("has", 30010)
		allocator, problems := p.server(t, DefaultPorts, has)
		if got := p.ports(t); !slices.Equal(got, []int32{30010}) {
			t.Fatalf("the first record: %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- allocator.Run(ctx, slog.New(slog.DiscardHandler)) }() // ends with ctx
		defer func() {
			cancel()
			<-done
		}()
		killed, _ := p.server(t, DefaultPorts, has)
		begun(t, killed, portService("lost", 30020), nil) // and nothing more is learned of it
		slow := begun(t, allocator, portService("slow", 30021), nil)
		time.Sleep(portLeakTime / 2)
		begun(t, killed, portService("later", 30022), nil)
		time.Sleep(portLeakTime/2 + 5*time.Second)
		if got := p.ports(t); !slices.Equal(got, []int32{30010, 30021, 30022}) {
			t.Errorf("after the first has leaked: %v", got)
		}
		slow(true) // this server's own has all the time it takes
		time.Sleep(portLeakTime)
		if got := p.ports(t); !slices.Equal(got, []int32{30010, 30021}) {
			t.Errorf("after the second has: %v", got)
		}
		// A service that came into the store past all servers.
		allocator.SetService(portService("past", 30030))
		time.Sleep(2 * settleTime)
		if got := p.ports(t); !slices.Equal(got, []int32{30010, 30021, 30030}) {
			t.Errorf("a service without its port in the record: %v", got)
		}
		// Somebody removes the record.
		p.mu.Lock()
		p.now = nil
		allocator.RemoveRangeAllocation(nil)
		p.mu.Unlock()
		if _, err := allocator.Begin(ctx, portService("early", 0), nil, false); err == nil ||
			!strings.Contains(err.Error(), errNoRangeAllocation.Error()) {
			t.Errorf("without a record: %v", err)
		}
		time.Sleep(2 * settleTime)
		if got := p.ports(t); !slices.Equal(got, []int32{30010, 30021, 30030}) {
			t.Errorf("after the record was removed: %v", got)
		}
		synctest.Wait()
		writes := p.writes
		time.Sleep(time.Hour)
		synctest.Wait()
		if p.writes != writes {
			t.Errorf("%d writes in an hour in which nothing happened", p.writes-writes)
		}
		if want := []string{"past PortNotAllocated: Port 30030 is not allocated; repairing"}; !slices.Equal(
			(*problems)[:1], want) {
			t.Errorf("problems: %q", *problems)
		}
	})
}

// TestWriteOfUnknownOutcome: a port that was written down although the store answered with an error comes back.
func TestWriteOfUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeRegistry{}
		a, _ := p.server(t, DefaultPorts)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx, slog.New(slog.DiscardHandler)) }() // ends with ctx
		p.fail(errors.New("the line broke"))
		if _, err := a.Begin(ctx, portService("s", 30020), nil, false); err == nil ||
			!strings.Contains(err.Error(), "the line broke") {
			t.Errorf("got %v", err)
		}
		p.fail(nil)
		time.Sleep(portLeakTime + 2*settleTime)
		if got := p.ports(t); len(got) != 0 {
			t.Errorf("kept: %v", got)
		}
		cancel()
		<-done
	})
}

// TestStartWithOldRecord: a start takes over what was recorded under another range, or in no form at all; a server of
// another range gives no ports.
func TestStartWithOldRecord(t *testing.T) {
	p := &fakeRegistry{}
	begins := PortRange{First: 30000, Last: 30031}
	old, _ := p.server(t, begins)
	begun(t, old, portService("a", 30001, 30020), nil)(true)
	wide, _ := p.server(t, PortRange{First: 30010, Last: 30100}, portService("a", 30001, 30020))
	if got := p.ports(t); !slices.Equal(got, []int32{30020}) || p.now.Range != "30010-30100" {
		t.Errorf("after the range changed: %v of %s", got, p.now.Range)
	}
	if _, err := old.Begin(t.Context(), portService("b", 0), nil, false); err == nil ||
		!strings.Contains(err.Error(), "node ports are 30000-30031 here and 30010-30100 in the store") {
		t.Errorf("a server of another range: %v", err)
	}
	for _, bad := range []corev1.RangeAllocation{
		{Range: "all of them"}, {Range: "5-4"}, {Range: "0-99999"}, {Range: "30010-30100", Data: make([]byte, 1<<20)},
	} {
		p.mu.Lock()
		p.writeLocked(&bad)
		p.mu.Unlock()
		if _, err := wide.Begin(t.Context(), portService("b", 0), nil, false); err == nil {
			t.Errorf("a port by the record %q", bad.Range)
		}
		requeueAfter, _ := p.server(t, PortRange{First: 30010, Last: 30100}, portService("a", 30001, 30020))
		if got := p.ports(t); !slices.Equal(got, []int32{30020}) {
			t.Errorf("after an unreadable record: %v", got)
		}
		begun(t, requeueAfter, portService("c", 30021), nil)(false)
	}
}

// TestProblemsAreReported: what cannot be repaired is reported once for each service.
func TestProblemsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeRegistry{}
		at := func(name, ip string, port int32) *corev1.Service {
			s := portService(name, port)
			s.Spec.ClusterIP = ip
			s.Spec.ClusterIPs = []string{ip}
			return s
		}
		ok := at("ok", "10.96.0.10", 30010)
		allocator, problems := p.server(t, DefaultPorts, ok, at("twin", "10.96.0.10", 30010),
			at("outside", "192.168.0.7", 20000))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- allocator.Run(ctx, slog.New(slog.DiscardHandler)) }() // ends with ctx
		time.Sleep(time.Minute)
		allocator.SetRange(cidr("more", "True", "10.200.0.0/24"))
		time.Sleep(time.Minute)
		synctest.Wait()
		slices.Sort(*problems)
		want := []string{
			"outside ClusterIPOutOfRange: Cluster IP [IPv4]: 192.168.0.7 is not within any configured Service CIDR; " +
				"please recreate service",
			"outside PortOutOfRange: Port 20000 is not within the port range 30000-32767; please recreate service",
			"twin ClusterIPAlreadyAllocated: Cluster IP [IPv4]:10.96.0.10 was assigned to multiple services; please " +
				"recreate service",
			"twin PortAlreadyAllocated: Port 30010 was assigned to multiple services; please recreate service",
		}
		if !slices.Equal(*problems, want) {
			t.Errorf("problems:\n%s", strings.Join(*problems, "\n"))
		}
		allocator.RemoveService(ok)
		allocator.AfterDelete(ctx, ok)
		if got := p.ports(t); !slices.Equal(got, []int32{30010}) {
			t.Errorf("the twin's port after the first of the two has gone: %v", got)
		}
		for _, uid := range []types.UID{"twin", "outside"} {
			allocator.RemoveService(allocator.services[uid])
		}
		if n := len(allocator.services) + len(allocator.nodePorts) + len(allocator.problems.reported) +
			len(allocator.problems.recheck); n != 0 {
			t.Errorf("%d things are remembered of services that are gone", n)
		}
		cancel()
		<-done
	})
}

// BenchmarkNodePorts takes and gives back, without and with a record.
func BenchmarkNodePorts(b *testing.B) {
	for _, c := range []struct {
		name   string
		record RangeRegistry
	}{{"alone", nil}, {"shared", &fakeRegistry{now: &corev1.RangeAllocation{Range: DefaultPorts.String()}}}} {
		b.Run(c.name, func(b *testing.B) {
			a, err := New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, DefaultPorts, newFakeIPAddresses(),
				c.record, untold)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				settle, err := a.Begin(b.Context(), portService("s", 0), nil, false)
				if err != nil {
					b.Fatal(err)
				}
				settle(false)
			}
		})
	}
}
