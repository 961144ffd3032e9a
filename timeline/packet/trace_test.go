// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/networking/reach"
	"keelson/api/networking/wireguard"
)

// journey is from pod a to the service web, whose two pods are on this node and on another one.
func journey() *TraceInput {
	web := web()
	http := "http"
	tcp := corev1.ProtocolTCP
	port := int32(8080)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-x2f4k"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Protocol: &tcp, Port: &port}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{"role": "friend"}},
	}
	pod.Spec.NodeName = "n1"
	pod.Status.PodIP = "10.42.0.4"
	traceInput := &TraceInput{
		From:       pod,
		To:         "svc/web:80",
		Port:       80,
		Protocol:   tcp,
		Address:    netip.MustParseAddr("10.96.12.3"),
		Service:    web.Service,
		Pods:       []*corev1.Pod{pod},
		Nodes:      map[string]*corev1.Node{},
		Namespaces: map[string]map[string]string{"default": {}},
	}
	for i, name := range []string{"n1", "n2"} {
		p := web.Pods[i].DeepCopy()
		p.Spec.NodeName = name
		traceInput.Pods = append(traceInput.Pods, p)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIP},
			NodeName:  &traceInput.Pods[i+1].Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: p.Name},
		})
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: []string{"192.0.2.1", "192.0.2.2"}[i]},
		}
		traceInput.Nodes[name] = n
	}
	traceInput.Slices = []*discoveryv1.EndpointSlice{slice}
	traceInput.Answer = &reach.Answer{
		Node: "n1",
		Names: &reach.Names{
			Servers:   []string{"10.96.0.10"},
			Searches:  []string{"default.svc.cluster.local", "svc.cluster.local"},
			NDots:     5,
			Addresses: []netip.Addr{traceInput.Address},
			Tries: []reach.Try{{
				Name:      "web.default.svc.cluster.local",
				Search:    "default.svc.cluster.local",
				Server:    "10.96.0.10",
				Code:      "NOERROR",
				Addresses: []netip.Addr{traceInput.Address},
				Took:      400 * time.Microsecond,
			}},
		},
		Connection: &reach.Connection{
			Local:    netip.MustParseAddrPort("10.42.0.4:40000"),
			Remote:   netip.MustParseAddrPort("10.96.12.3:80"),
			Outcome:  reach.Connected,
			Took:     300 * time.Microsecond,
			Endpoint: netip.MustParseAddrPort("10.42.0.6:8080"),
			Route:    "tunnel kx-1 (VXLAN)",
		},
	}
	return traceInput
}

// fails is a probe that did not come through.
func fails(j *TraceInput, how reach.Outcome) {
	j.Answer.Connection = &reach.Connection{
		Remote:  j.Answer.Connection.Remote,
		Outcome: how,
		Took:    time.Second,
		Error:   "dial: " + string(how),
	}
}

func ingress(name string, from map[string]string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "web"}
	if from != nil {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: from}}}},
		}
	}
	return p
}

var journeys = map[string]func(*TraceInput){
	"well": func(*TraceInput) {},
	"allowed": func(j *TraceInput) {
		j.Policies = append(j.Policies, ingress("deny", nil), ingress("friends", map[string]string{"role": "friend"}))
	},
	"denied": func(j *TraceInput) {
		j.Policies = append(j.Policies, ingress("deny", nil))
		fails(j, reach.TimedOut)
	},
	"denied-but-connects": func(j *TraceInput) { j.Policies = append(j.Policies, ingress("deny", nil)) },
	"egress-denied": func(j *TraceInput) {
		j.Policies = append(j.Policies, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "jail"},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			},
		})
		fails(j, reach.TimedOut)
	},
	"no-listener": func(j *TraceInput) {
		fails(j, reach.Refused)
		j.Answer.Connection.Endpoint = netip.MustParseAddrPort("10.42.0.5:8080")
	},
	"no-endpoints": func(j *TraceInput) {
		j.Slices = nil
		fails(j, reach.Refused)
	},
	"wrong-port": func(j *TraceInput) {
		j.Port = 81
		fails(j, reach.Refused)
	},
	"fake": func(j *TraceInput) {
		j.Nodes["n2"].Annotations = map[string]string{annotationFake: "simulate"}
	},
	"sealed": func(j *TraceInput) {
		seal(j.Nodes["n1"], "1")
		seal(j.Nodes["n2"], "2")
		j.Answer.Connection.Route = "tunnel kx-1 (WireGuard)"
	},
	"sealed-one": func(j *TraceInput) {
		seal(j.Nodes["n1"], "1")
		j.Slices[0].Endpoints = j.Slices[0].Endpoints[1:]
		fails(j, reach.Unreachable)
		j.Answer.Connection.Error = "dial tcp 10.96.12.3:80: connect: no route to host"
	},
	"no-probe": func(j *TraceInput) {
		j.Answer = nil
		j.NoAnswer = "node n1 of pod a is simulated: there is no packet to send"
	},
	"no-name": func(j *TraceInput) {
		j.Address = netip.Addr{}
		j.Service = nil
		j.Slices = nil
		j.Answer.Connection = nil
		j.Answer.Names.Addresses = nil
		j.Answer.Names.Tries = []reach.Try{
			{Name: "no-such.default.svc.cluster.local", Code: "NXDOMAIN"},
			{Name: "no-such", Error: "i/o timeout", Server: "10.96.0.10"},
		}
	},
	"address": func(j *TraceInput) {
		j.Service = nil
		j.Slices = nil
		j.Address = netip.MustParseAddr("10.42.0.5")
		j.Port = 8080
		j.To = "10.42.0.5:8080"
		j.Answer.Names = nil
		j.Unread = []string{"services: services is forbidden"}
	},
	"external-ip": func(j *TraceInput) {
		j.Service.Spec.ExternalIPs = []string{"203.0.113.7"}
		j.Address = netip.MustParseAddr("203.0.113.7")
		j.To = "203.0.113.7:80"
		j.Answer = nil
		j.NoAnswer = "not tried"
	},
	"no-service": func(j *TraceInput) {
		j.Service = nil
		j.Slices = nil
		j.Address = netip.MustParseAddr("10.96.77.77")
		j.To = "10.96.77.77:80"
		j.Answer.Names = nil
		j.ServiceRange = netip.MustParsePrefix("10.96.0.0/16")
		fails(j, reach.TimedOut)
	},
	"no-service-but-connects": func(j *TraceInput) {
		j.Service = nil
		j.Slices = nil
		j.Address = netip.MustParseAddr("10.96.77.77")
		j.To = "10.96.77.77:80"
		j.Answer.Names = nil
		j.ServiceRange = netip.MustParsePrefix("10.96.0.0/16")
		j.Answer.Connection.Remote = netip.MustParseAddrPort("10.96.77.77:80")
		j.Answer.Connection.Endpoint = netip.AddrPort{}
		j.Answer.Connection.Route = "eth0"
	},
	"sticky": func(j *TraceInput) {
		j.Service = j.Service.DeepCopy()
		j.Service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	},
	"local": func(j *TraceInput) {
		j.Service = j.Service.DeepCopy()
		local := corev1.ServiceInternalTrafficPolicyLocal
		j.Service.Spec.InternalTrafficPolicy = &local
	},
	"local-none": func(j *TraceInput) {
		j.Service = j.Service.DeepCopy()
		local := corev1.ServiceInternalTrafficPolicyLocal
		j.Service.Spec.InternalTrafficPolicy = &local
		j.Slices[0].Endpoints = j.Slices[0].Endpoints[1:]
		fails(j, reach.TimedOut)
	},
	"strayed-to-neighbour": func(j *TraceInput) {
		j.Answer.Connection.Endpoint = netip.MustParseAddrPort("10.99.0.1:80")
		j.Answer.Connection.Shared = true
	},
	"no-name-by-neighbour": func(j *TraceInput) {
		j.Address = netip.Addr{}
		j.Answer.Connection = nil
		j.Answer.Names.Addresses = nil
		try := &j.Answer.Names.Tries[0]
		try.Addresses = nil
		try.Code = "NXDOMAIN"
		try.Shared = true
	},
	"answered-by-neighbour": func(j *TraceInput) {
		j.Service = nil
		j.Slices = nil
		j.ServiceRange = netip.MustParsePrefix("10.96.0.0/16")
		j.Answer.Connection.Shared = true
	},
	"strayed": func(j *TraceInput) { j.Answer.Connection.Endpoint = netip.MustParseAddrPort("10.99.0.1:80") },
	"datagram": func(j *TraceInput) {
		j.Protocol = corev1.ProtocolUDP
		j.Service = j.Service.DeepCopy()
		udp := corev1.ProtocolUDP
		j.Service.Spec.Ports = []corev1.ServicePort{{
			Name:       "http",
			Port:       80,
			Protocol:   udp,
			TargetPort: intstr.FromInt32(8080),
		}}
		j.Slices[0].Ports[0].Protocol = &udp
		j.Answer.Connection.Outcome = reach.Sent
	},
}

// seal gives a node a key of WireGuard.
func seal(n *corev1.Node, digit string) {
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(digit, wireguard.KeyLen)))
	n.Annotations = map[string]string{wireguard.AnnotationKey: key, wireguard.AnnotationPort: "51820"}
}

func TestFollow(t *testing.T) {
	for name, change := range journeys {
		t.Run(name, func(t *testing.T) {
			j := journey()
			change(j)
			var b bytes.Buffer
			RenderTrace(&b, Follow(j), false)
			golden(t, "trace-"+name, b.Bytes())
		})
	}
}

// TestTook: seconds are not written as thousands of milliseconds.
func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		400 * time.Microsecond:     "0.4 ms",
		999 * time.Millisecond:     "999.0 ms",
		3000300 * time.Microsecond: "3.0 s",
		12340 * time.Millisecond:   "12.3 s",
	} {
		if got := took(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

// TestTraceColors: the verdict and what stops the packets have a color where the terminal has them, and nothing else
// changes.
func TestTraceColors(t *testing.T) {
	trace := &Trace{
		From:    "a/b",
		Hops:    []Hop{{Address: "10.0.0.1:80", NoWay: "no key"}},
		Verdict: "confirmed: no key",
	}
	var plain, colored strings.Builder
	RenderTrace(&plain, trace, false)
	RenderTrace(&colored, trace, true)
	for _, want := range []string{"\x1b[31mno way: no key\x1b[0m", "\x1b[31mconfirmed: no key\x1b[0m"} {
		if !strings.Contains(colored.String(), want) {
			t.Errorf("no %q in %q", want, colored.String())
		}
	}
	if strings.Contains(plain.String(), "\x1b") {
		t.Errorf("escapes in %q", plain.String())
	}
}
