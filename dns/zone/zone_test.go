// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "write the golden file")

func service(ns, name string, spec corev1.ServiceSpec) *corev1.Service {
	if spec.ClusterIPs == nil && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}
}

func port4(name string, proto corev1.Protocol, n int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: proto, Port: n}
}

type point struct {
	addr, host string
	unready    bool
}

func sliceOf(ns, service, name string, ports []corev1.ServicePort, points ...point) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns,
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
	}
	for _, p := range points {
		ready := !p.unready
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{p.addr},
			Conditions: discoveryv1.EndpointConditions{
				Ready: &ready,
			},
		}
		if p.host != "" {
			endpoint.Hostname = &p.host
		}
		if strings.Contains(p.addr, ":") {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

// town is a cluster with one service of each kind.
func town() *Index {
	index := New("cluster.local", 5)
	for _, ns := range []string{"default", "kube-system", "empty"} {
		index.SetNamespace(ns)
	}
	web := []corev1.ServicePort{port4("http", corev1.ProtocolTCP, 80), port4("quic", corev1.ProtocolUDP, 443)}
	index.SetService(service("kube-system", "kube-dns", corev1.ServiceSpec{
		ClusterIP: "10.96.0.10",
		Ports:     []corev1.ServicePort{port4("dns", corev1.ProtocolUDP, 53), port4("dns-tcp", corev1.ProtocolTCP, 53)},
	}))
	index.SetService(service("default", "kubernetes", corev1.ServiceSpec{
		ClusterIP: "10.96.0.1",
		Ports:     []corev1.ServicePort{port4("https", corev1.ProtocolTCP, 443)},
	}))
	index.SetService(service("default", "web", corev1.ServiceSpec{
		ClusterIP:  "10.96.1.1",
		ClusterIPs: []string{"10.96.1.1", "fd00:96::11"},
		Ports:      web,
	}))
	index.SetSlice(sliceOf("default", "web", "web-a", web, point{addr: "10.1.0.5"}, point{
		addr: "10.1.0.6",
		host: "named",
	}))
	index.SetService(service("default", "plain", corev1.ServiceSpec{
		ClusterIP: "10.96.1.2",
		Ports:     []corev1.ServicePort{port4("", corev1.ProtocolTCP, 8080)},
	}))
	index.SetService(service("default", "db", corev1.ServiceSpec{
		ClusterIP: "None",
		Ports:     []corev1.ServicePort{port4("sql", corev1.ProtocolTCP, 5432)},
	}))
	index.SetSlice(sliceOf("default", "db", "db-a", []corev1.ServicePort{port4("sql", corev1.ProtocolTCP, 5432)},
		point{addr: "10.1.0.1", host: "db-0"}, point{addr: "10.1.0.2", host: "db-1"}, point{addr: "10.1.0.3"}, point{
			addr:    "10.1.0.4",
			host:    "db-3",
			unready: true,
		}))
	index.SetSlice(sliceOf("default", "db", "db-b", []corev1.ServicePort{port4("sql", corev1.ProtocolTCP, 5432)},
		point{addr: "fd00:1::1", host: "db-0"}, point{addr: "fd00:1::3"}))
	index.SetService(service("default", "idle", corev1.ServiceSpec{
		ClusterIP: "None",
		Ports:     []corev1.ServicePort{port4("sql", corev1.ProtocolTCP, 5432)},
	}))
	index.SetService(service("default", "portless", corev1.ServiceSpec{ClusterIP: "None"}))
	index.SetSlice(sliceOf("default", "portless", "portless-a", nil, point{addr: "10.1.0.9", host: "p-0"}))
	index.SetService(service("default", "ext", corev1.ServiceSpec{
		Type:         corev1.ServiceTypeExternalName,
		ExternalName: "www.example.com",
	}))
	index.SetService(service("default", "alias", corev1.ServiceSpec{
		Type:         corev1.ServiceTypeExternalName,
		ExternalName: "web.default.svc.cluster.local",
	}))
	index.SetService(service("default", "lost", corev1.ServiceSpec{
		Type:         corev1.ServiceTypeExternalName,
		ExternalName: "nowhere.default.svc.cluster.local",
	}))
	index.SetService(service("default", "ring", corev1.ServiceSpec{
		Type:         corev1.ServiceTypeExternalName,
		ExternalName: "ring.default.svc.cluster.local",
	}))
	index.SetService(service("default", "number", corev1.ServiceSpec{
		Type:         corev1.ServiceTypeExternalName,
		ExternalName: "192.0.2.1",
	}))
	return index
}

func text(answer Answer) string {
	var out strings.Builder
	if !answer.Mine {
		return "not the cluster's\n"
	}
	fmt.Fprintf(&out, "%s\n", dns.RcodeToString[answer.Rcode])
	for _, s := range []struct {
		name string
		rrs  []dns.RR
	}{{"answer", answer.Answer}, {"authority", answer.Authority}, {"additional", answer.Additional}} {
		var lines []string
		for _, rr := range s.rrs {
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 1
			}
			lines = append(lines, fmt.Sprintf("  %s: %s\n", s.name, strings.ReplaceAll(rr.String(), "\t", " ")))
		}
		if len(lines) > 0 && s.rrs[0].Header().Rrtype != dns.TypeCNAME {
			slices.Sort(lines)
		}
		out.WriteString(strings.Join(lines, ""))
	}
	if answer.Chase != "" {
		fmt.Fprintf(&out, "  then: %s\n", answer.Chase)
	}
	return out.String()
}

// TestAnswers holds answers against testdata/answers.txt, which has a question and what the specification says to it.
func TestAnswers(t *testing.T) {
	file := filepath.Join("testdata", "answers.txt")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	index := town()
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") || line == "\n" {
			out.WriteString(line)
			continue
		}
		q, ok := strings.CutPrefix(line, "? ")
		if !ok {
			continue
		}
		f := strings.Fields(q)
		fmt.Fprintf(&out, "? %s\n", strings.Join(f, " "))
		out.WriteString(
			text(index.Resolve(dns.Question{Name: f[0], Qtype: dns.StringToType[f[1]], Qclass: dns.ClassINET})))
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out.String() != string(raw) {
		t.Errorf("answers differ from %s (-update writes it):\n%s", file, out.String())
	}
}
