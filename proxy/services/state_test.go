// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/network/nft"
)

var testNode = Node{
	Name:        "node",
	Zone:        "z1",
	ExternalIPs: true,
	PodCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
}

func named(in ...Input) map[types.NamespacedName]Input {
	out := map[types.NamespacedName]Input{}
	for _, i := range in {
		out[types.NamespacedName{Namespace: i.Service.Namespace, Name: i.Service.Name}] = i
	}
	return out
}

// TestGolden shows what each kind of Service adds to the table.
func TestGolden(t *testing.T) {
	local := corev1.ServiceExternalTrafficPolicyLocal
	for name, in := range map[string]Input{
		"cluster-ip": service("s", "10.96.0.1", "TCP", nil, "10.244.1.2", "10.244.2.2"),
		"no-endpoints": service("s", "10.96.0.1", "UDP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalIPs = []string{"203.0.113.1"}
		}),
		"headless": service("s", "None", "TCP", nil, "10.244.1.2"),
		"node-port-local": service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = 30080
			s.Spec.ExternalTrafficPolicy = local
		}, "10.244.1.2", "10.244.2.2"),
		"load-balancer": service("s", "10.96.0.1", "SCTP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "192.0.2.7/32", " 198.51.100.0/25"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		}, "10.244.1.2"),
		"affinity": service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = 30080
		}, "10.244.1.2", "10.244.2.2"),
	} {
		table, state, _ := Table("test", testNode, named(in))
		base := Base("test", testNode)
		for name := range base.Chains {
			delete(table.Chains, name)
		}
		for name := range base.Sets {
			if len(table.Elements[name]) == 0 {
				delete(table.Sets, name)
			}
		}
		if len(state.parts) != 1 {
			t.Errorf("%s: %d parts", name, len(state.parts))
		}
		golden(t, name, table.String())
	}
	golden(t, "base", Base("test", testNode).String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".nft")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got; UPDATE_GOLDEN=1 writes it):\n%s", file, d)
	}
}

// anyService is a Service of some kind; few names, addresses and ports make them meet.
func anyService(rnd *rand.Rand, i int) Input {
	proto := []corev1.Protocol{"TCP", "UDP"}[rnd.IntN(2)]
	var eps []string
	for e := range 6 {
		if rnd.IntN(2) == 0 {
			eps = append(eps, fmt.Sprintf("10.244.%d.%d", 1+e%2, 2+e))
		}
	}
	return service(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", 1+i), proto, func(
		svc *corev1.Service, sl *discoveryv1.EndpointSlice,
	) {
		svc.CreationTimestamp.Time = time.Unix(int64(i), 0)
		svc.Spec.Type = []corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer"}[rnd.IntN(3)]
		if svc.Spec.Type != "ClusterIP" {
			svc.Spec.Ports[0].NodePort = int32(30000 + i)
			svc.Spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"}[rnd.IntN(2)]
		}
		if svc.Spec.Type == "LoadBalancer" {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("203.0.113.", rnd.IntN(3))}}
			if rnd.IntN(2) == 0 {
				svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "192.0.2.0/24"}
			}
		}
		if rnd.IntN(4) == 0 {
			svc.Spec.ExternalIPs = []string{fmt.Sprint("203.0.113.", rnd.IntN(3))}
		}
		if rnd.IntN(4) == 0 {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		for e := range sl.Endpoints {
			sl.Endpoints[e].Conditions.Ready = new(rnd.IntN(5) > 0)
		}
	}, eps...)
}

var number = regexp.MustCompile(`(numgen|random)[^\n]*|( \. \d+)( : 10\.244)`)

// TestDifferencesEqualTheWhole: whatever happens to Services, the table that grew is the one built at once, but for the
// numbers of endpoints; and running twice changes nothing.
func TestDifferencesEqualTheWhole(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 7))
	all := map[types.NamespacedName]Input{}
	grown, state, _ := Table("test", testNode, nil)
	update := func(in map[types.NamespacedName]Input) {
		for range 20 { // until no service waits for a free frontend
			c := state.Update(in)
			c.Delta.Apply(grown)
			in = map[types.NamespacedName]Input{}
			for _, n := range c.Freed {
				in[n] = all[n]
			}
			if len(in) == 0 {
				return
			}
		}
	}
	for step := range 400 {
		in := map[types.NamespacedName]Input{}
		for range 1 + rnd.IntN(4) {
			i := rnd.IntN(8)
			one := anyService(rnd, i)
			n := types.NamespacedName{Namespace: "default", Name: one.Service.Name}
			if rnd.IntN(3) == 0 {
				delete(all, n)
				in[n] = Input{}
				continue
			}
			all[n] = one
			in[n] = one
		}
		update(in)
		whole, fresh, _ := Table("test", testNode, all)
		for frontend := range fresh.claims { // who came first is history
			if _, ok := state.claims[frontend]; !ok {
				t.Fatalf("seed %d, step %d: no service has %q, which %s claims", seed, step, frontend,
					fresh.claims[frontend])
			}
		}
		if !samePeople(fresh.claims, state.claims) {
			continue
		}
		if d := cmp.Diff(shape(whole), shape(grown)); d != "" {
			t.Fatalf("seed %d, step %d (-whole +grown):\n%s", seed, step, d)
		}
		before := grown.String()
		update(all)
		if d := cmp.Diff(before, grown.String()); d != "" {
			t.Fatalf("seed %d, step %d: a second pass changed\n%s", seed, step, d)
		}
	}
	gone := map[types.NamespacedName]Input{}
	for n := range all {
		gone[n] = Input{}
	}
	all = map[types.NamespacedName]Input{}
	update(gone)
	if d := cmp.Diff(Base("test", testNode).String(), grown.String()); d != "" {
		t.Errorf("seed %d: without Services (-base +grown):\n%s", seed, d)
	}
	if len(state.claims)+len(state.chains)+len(state.sets)+len(state.shared)+len(state.parts) > 0 {
		t.Errorf("seed %d: the state keeps %v %v %v %v", seed, state.claims, state.chains, state.sets, state.shared)
	}
}

func samePeople(a, b map[string]types.NamespacedName) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// shape is the table's text without the numbers of endpoints, in order.
func shape(t *nft.Table) string {
	lines := strings.Split(number.ReplaceAllString(t.String(), "$3"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// many are n Services of five endpoints.
func many(n int) map[types.NamespacedName]Input {
	all := make(map[types.NamespacedName]Input, n)
	for i := range n {
		var eps []string
		for e := range 5 {
			eps = append(eps, fmt.Sprintf("10.%d.%d.%d", 100+e, byte(i>>8), byte(i)))
		}
		in := service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", byte(i>>8), byte(i)), "TCP", nil, eps...)
		all[types.NamespacedName{Namespace: "default", Name: in.Service.Name}] = in
	}
	return all
}

// A change of one endpoint of many Services touches its own elements alone.
func TestOneEndpointIsAFewElements(t *testing.T) {
	all := many(100)
	table, state, _ := Table("test", testNode, all)
	n := types.NamespacedName{Namespace: "default", Name: "s7"}
	in := all[n]
	in.Slices = []*discoveryv1.EndpointSlice{
		sliceOf("s7", "TCP", 8080, "10.100.0.7", "10.102.0.7", "10.103.0.7", "10.104.0.7", "10.105.0.7"),
	}
	c := state.Update(map[types.NamespacedName]Input{n: in})
	before := map[string]string{}
	maps.Copy(before, table.Elements["cluster-endpoints4"])
	c.Delta.Apply(table)
	changed := 0
	for k, v := range table.Elements["cluster-endpoints4"] {
		if before[k] != v {
			changed++
		}
	}
	if changed != 1 || len(table.Elements["cluster-endpoints4"]) != 500 {
		t.Errorf("%d elements of %d changed for one endpoint, want 1", changed,
			len(table.Elements["cluster-endpoints4"]))
	}
}

// BenchmarkTenThousand measures the budgets: all rules of 10,000 Services of 5 endpoints, and a change of one endpoint
// among them.
func BenchmarkTenThousand(b *testing.B) {
	all := many(10000)
	world := newWorld(b)
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	b.Run("all", func(b *testing.B) {
		before := heap()
		for b.Loop() {
			table, state, _ := Table("test", testNode, all)
			world.state = state
			if err := world.writer.Write(table); err != nil {
				b.Fatal(err)
			}
			if err := world.writer.Repair(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(heap()-before, "MB_held")
	})
	b.Run("one", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i++
			n := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", i%10000)}
			in := all[n]
			in.Slices = []*discoveryv1.EndpointSlice{
				sliceOf(n.Name, "TCP", 8080, "10.200.0.1", fmt.Sprint("10.200.1.", byte(i))),
			}
			c := world.state.Update(map[types.NamespacedName]Input{n: in})
			if err := world.writer.Change(&c.Delta); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkConnect compares connections through a cluster IP with those to the pod itself.
func BenchmarkConnect(b *testing.B) {
	world := newWorld(b)
	world.serve("b", "tcp", 8080)
	world.serve("b", "tcp", 8081) // of its own: the flows of one must not be in the way of the other's
	for _, n := range []int{1, 10000} {
		all := many(n)
		in := service("real", "10.97.0.1", "TCP", func(_ *corev1.Service, s *discoveryv1.EndpointSlice) {
			s.Ports[0].Port = new(int32(8081))
		}, "10.244.1.3")
		all[types.NamespacedName{Namespace: "default", Name: "real"}] = in
		table, _, _ := Table("test", testNode, all)
		if err := world.writer.Write(table); err != nil {
			b.Fatal(err)
		}
		for what, addr := range map[string]string{"direct": "10.244.1.3:8080", "service": "10.97.0.1:80"} {
			b.Run(fmt.Sprintf("%d/%s", n, what), func(b *testing.B) {
				world.in("a", func() {
					for b.Loop() {
						if got := dialOnce(addr); got != nil {
							b.Error(got)
							return
						}
					}
				})
			})
		}
	}
}
