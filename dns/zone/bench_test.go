// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

// city is a cluster of n services with five endpoints each; every tenth service is headless.
func city(n int) *Index {
	index := New("cluster.local", 5)
	index.SetNamespace("default")
	ports := []corev1.ServicePort{port4("http", corev1.ProtocolTCP, 80)}
	for i := range n {
		name := fmt.Sprintf("service-%d", i)
		spec := corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), Ports: ports}
		if i%10 == 0 {
			spec.ClusterIP = corev1.ClusterIPNone
		}
		index.SetService(service("default", name, spec))
		var points []point
		for e := range 5 {
			points = append(points, point{addr: fmt.Sprintf("10.%d.%d.%d", 1+e, i>>8, i&255)})
		}
		index.SetSlice(sliceOf("default", name, name+"-abcde", ports, points...))
	}
	return index
}

// BenchmarkMemory reports how much memory the names of 10,000 services with five endpoints each take.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		before := heap()
		x := city(10000)
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
		runtime.KeepAlive(x)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkResolve is a question for one of 10,000 services, without packets.
func BenchmarkResolve(b *testing.B) {
	x := city(10000)
	for _, q := range []dns.Question{
		{Name: "service-77.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET},
		{Name: "service-70.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET},
		{Name: "_http._tcp.service-70.default.svc.cluster.local.", Qtype: dns.TypeSRV, Qclass: dns.ClassINET},
		{Name: "nothing.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET},
	} {
		b.Run(dns.TypeToString[q.Qtype]+" "+q.Name[:10], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x.Resolve(q)
			}
		})
	}
}
