// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/proxy/services"
)

// TestExternalIPsThatAreOff: a node with endpoints of a Service reports once that it does not serve the external IPs,
// and again when they change; its rules name them; with the gate there is nothing to report.
func TestExternalIPsThatAreOff(t *testing.T) {
	name := types.NamespacedName{Namespace: "a", Name: "web"}
	part := func(gate bool, node string, ips ...string) *services.Part {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}}
		svc.Spec.ClusterIP = "10.96.0.7"
		svc.Spec.ExternalIPs = ips
		svc.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		slice := &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}, NodeName: &node}},
		}
		_, state, _ := services.Table("t", services.Node{Name: "n1", ExternalIPs: gate},
			map[types.NamespacedName]services.Input{
				name: {Service: svc, Slices: []*discoveryv1.EndpointSlice{slice}},
			})
		return state.Part(name)
	}
	off := part(false, "n1", "203.0.113.7")
	for _, tt := range []struct {
		what          string
		before, after *services.Part
		want          bool
	}{
		{"the first time", nil, off, true},
		{"again", off, part(false, "n1", "203.0.113.7"), false},
		{"other addresses", off, part(false, "n1", "203.0.113.8"), true},
		{"the first endpoint here", part(false, "n2", "203.0.113.7"), off, true},
		{"endpoints elsewhere", nil, part(false, "n2", "203.0.113.7"), false},
		{"none", nil, part(false, "n1"), false},
		{"the gate is on", nil, part(true, "n1", "203.0.113.7"), false},
	} {
		if got := offIsNew(tt.before, tt.after); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
	p := &Proxy{live: &liveness{}}
	p.written.note(services.Change{After: map[types.NamespacedName]*services.Part{name: off}}, time.Now())
	rules, err := p.Rules("a", "web")
	if err != nil || !slices.Equal(rules.Refused, []string{"203.0.113.7: " + gateOff}) {
		t.Errorf("rules: %+v, %v", rules, err)
	}
	if want := netip.MustParseAddrPort("10.96.0.7:80"); !slices.Equal(rules.Ports[0].Fronts, []netip.AddrPort{want}) {
		t.Errorf("fronts: %v, want %v", rules.Ports[0].Fronts, want)
	}
}
