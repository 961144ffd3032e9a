// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind/kindtest"
)

// storedService is a service as it comes out of the store.
func storedService(t *testing.T, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	t.Helper()
	service := &corev1.Service{Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"},
		Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
	}}
	service.Name = "web"
	service.Namespace = "default"
	service.Spec.ClusterIP = "10.43.0.7"
	for _, f := range change {
		f(&service.Spec)
	}
	if errs := create(service, corev1.IPv4Protocol); len(errs) > 0 {
		t.Fatalf("the service to update: %v", errs)
	}
	if errs := Service().Validate(service); len(errs) > 0 {
		t.Fatalf("the service to update is invalid: %v", errs)
	}
	return service
}

// create does what the server does before it validates, but for addresses and ports.
func create(s *corev1.Service, cluster ...corev1.IPFamily) field.ErrorList {
	k := Service()
	k.Default(s)
	Complete(s, nil)
	errs := SettleFamilies(s, nil, cluster)
	k.PrepareCreate(s)
	return errs
}

// update does the same with an update, and judges it.
func update(s, old *corev1.Service, cluster ...corev1.IPFamily) field.ErrorList {
	k := Service()
	k.Default(s)
	Complete(s, old)
	if errs := SettleFamilies(s, old, cluster); len(errs) > 0 {
		return errs
	}
	k.PrepareUpdate(s, old)
	return k.ValidateUpdate(s, old)
}

func nodePort(s *corev1.ServiceSpec) {
	s.Type = corev1.ServiceTypeNodePort
	s.Ports[0].NodePort = 30080
}

func TestServiceUpdate(t *testing.T) {
	tests := []struct {
		name  string
		setup func(*corev1.ServiceSpec)
		do    func(*corev1.ServiceSpec)
		want  []string
	}{
		{"nothing", nil, func(*corev1.ServiceSpec) {}, nil},
		{"left out what was allocated", nodePort, func(s *corev1.ServiceSpec) {
			s.ClusterIP = ""
			s.ClusterIPs = nil
			s.Ports[0].NodePort = 0
		}, nil},
		{
			"other cluster IP", nil, func(s *corev1.ServiceSpec) { s.ClusterIP = "10.43.0.8" },
			[]string{`spec.clusterIPs[0]: Invalid value: ["10.43.0.8"]: may not change once set`},
		},
		{
			"headless", nil, func(s *corev1.ServiceSpec) { s.ClusterIP = "None" },
			[]string{`spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set`},
		},
		{"to ExternalName", nodePort, func(s *corev1.ServiceSpec) {
			s.Type = corev1.ServiceTypeExternalName
			s.ExternalName = "example.com"
		}, nil},
		{"to ClusterIP", nodePort, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeClusterIP }, nil},
		{
			"to ClusterIP with another node port", nodePort, func(s *corev1.ServiceSpec) {
				s.Type = corev1.ServiceTypeClusterIP
				s.Ports[0].NodePort = 30081
			},
			[]string{"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		},
		{"to LoadBalancer", nil, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }, nil},
		{
			"class changes", func(s *corev1.ServiceSpec) {
				s.Type = corev1.ServiceTypeLoadBalancer
				s.LoadBalancerClass = new("a/b")
			},
			func(s *corev1.ServiceSpec) { s.LoadBalancerClass = new("a/c") },
			[]string{`spec.loadBalancerClass: Invalid value: "a/c": may not change once set`},
		},
		{
			"families", nil, func(s *corev1.ServiceSpec) { s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			[]string{
				"spec.clusterIPs[0]: Invalid value: \"10.43.0.7\": expected an IPv6 value as indicated by " +
					"`ipFamilies[0]`",
			},
		},
	}
	for _, tt := range tests {
		setup := tt.setup
		if setup == nil {
			setup = func(*corev1.ServiceSpec) {}
		}
		old := storedService(t, setup)
		s := old.DeepCopy()
		tt.do(&s.Spec)
		kindtest.Same(t, tt.name, update(s, old, corev1.IPv4Protocol), tt.want)
		if len(tt.want) == 0 && s.Spec.Type == old.Spec.Type {
			if d := cmp.Diff(old.Spec, s.Spec); d != "" {
				t.Errorf("%s changed the service (-old +new):\n%s", tt.name, d)
			}
		}
	}
}

func TestServiceToExternalNameDropsAllocations(t *testing.T) {
	old := storedService(t, nodePort)
	service := old.DeepCopy()
	service.Spec.Type = corev1.ServiceTypeExternalName
	service.Spec.ExternalName = "example.com"
	Service().PrepareUpdate(service, old)
	want := corev1.ServiceSpec{
		Type:            corev1.ServiceTypeExternalName,
		ExternalName:    "example.com",
		Selector:        old.Spec.Selector,
		SessionAffinity: corev1.ServiceAffinityNone,
		Ports:           slices.Clone(old.Spec.Ports),
	}
	want.Ports[0].NodePort = 0
	if d := cmp.Diff(want, service.Spec); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestServiceNames: a Service's name is a DNS label, which may begin with a digit (RelaxedServiceNameValidation).
func TestServiceNames(t *testing.T) {
	for name, ok := range map[string]bool{"1-web": true, "9": true, "-web": false, "web.a": false, "Web": false} {
		if msgs := Service().ValidateName(name, false); (len(msgs) == 0) != ok {
			t.Errorf("%s: got %q", name, msgs)
		}
	}
}

func TestServiceDefaults(t *testing.T) {
	service := &corev1.Service{
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeLoadBalancer,
			SessionAffinity: corev1.ServiceAffinityClientIP,
			Ports:           []corev1.ServicePort{{Port: 53}},
		},
	}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.2.3.4"}}
	defaultService(service)
	if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster ||
		!*service.Spec.AllocateLoadBalancerNodePorts ||
		*service.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != 10800 ||
		service.Spec.Ports[0].TargetPort.IntVal != 53 ||
		*service.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("defaults: %+v", service)
	}
}

func TestServiceRow(t *testing.T) {
	lb := &corev1.Service{Spec: corev1.ServiceSpec{
		Type:       corev1.ServiceTypeLoadBalancer,
		ClusterIPs: []string{"10.43.0.1"},
		Ports:      []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: "TCP"}, {Port: 53, Protocol: "UDP"}},
	}}
	if d := cmp.Diff([]any{"LoadBalancer", "10.43.0.1", "<pending>", "80:30080/TCP,53/UDP"},
		serviceRow(lb)[1:5]); d != "" {
		t.Errorf("pending (-want +got):\n%s", d)
	}
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "z"}, {IP: "1.2.3.4"}}
	lb.Spec.ExternalIPs = []string{"5.6.7.8"}
	if got := serviceRow(lb)[3]; got != "1.2.3.4,z,5.6.7.8" {
		t.Errorf("external IP: got %v", got)
	}
	name := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}}
	if d := cmp.Diff([]any{"ExternalName", "<none>", "example.com", "<none>", "<unknown>", "<none>"},
		serviceRow(name)[1:]); d != "" {
		t.Errorf("external name (-want +got):\n%s", d)
	}
}

func TestServiceWarnings(t *testing.T) {
	near := corev1.ServiceTrafficDistributionPreferClose
	service := storedService(t, func(s *corev1.ServiceSpec) {
		s.ClusterIP = ""
		s.ExternalIPs = []string{"1.2.3.4"}
		s.LoadBalancerIP = "1.2.3.5"
		s.TrafficDistribution = &near
		s.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	service.Annotations = map[string]string{corev1.DeprecatedAnnotationTopologyAwareHints: "auto"}
	want := []string{
		"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use " +
			"service.kubernetes.io/topology-mode instead",
		"spec.externalIPs is deprecated and may no longer be implemented in some clusters",
		`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`,
	}
	if d := cmp.Diff(want, Service().Warnings(service, nil)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	service.Annotations = nil
	service.Spec.TrafficDistribution = nil
	service.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	want = []string{
		"spec.loadBalancerIP is ignored for headless services", "spec.externalIPs is ignored for headless services",
		"spec.SessionAffinity is ignored for headless services",
	}
	if d := cmp.Diff(want, Service().Warnings(service, nil)); d != "" {
		t.Errorf("headless (-want +got):\n%s", d)
	}
}

// TestOldFormsStay: what older rules let in is no obstacle to an update; new values are read strictly.
func TestOldFormsStay(t *testing.T) {
	old := storedService(t, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer })
	old.Spec.ExternalIPs = []string{"192.000.002.001"}
	old.Spec.LoadBalancerSourceRanges = []string{"10.1.2.3/8"}
	old.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.000.002.001", IPMode: new(corev1.LoadBalancerIPModeVIP)},
	}
	service := old.DeepCopy()
	service.Labels = map[string]string{"a": "b"}
	kindtest.Same(t, "labels", update(service, old, corev1.IPv4Protocol), nil)
	kindtest.Same(t, "status", validateLoadBalancerStatus(service, old), nil)
	service.Spec.ExternalIPs = []string{"192.000.002.001", "192.000.002.002"}
	service.Spec.LoadBalancerSourceRanges = []string{"10.1.2.3/8", "10.1.2.4/8"}
	kindtest.Same(t, "new values", update(service, old, corev1.IPv4Protocol), []string{
		`spec.externalIPs[1]: Invalid value: "192.000.002.002": must not have leading 0s`,
		`spec.LoadBalancerSourceRanges[1]: Invalid value: "10.1.2.4/8": must not have bits set beyond the prefix length`,
	})
	// of an update of the status
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.000.002.002", IPMode: new(corev1.LoadBalancerIPModeVIP)},
	}
	kindtest.Same(t, "new status", validateLoadBalancerStatus(service, old),
		[]string{`status.loadBalancer.ingress[0].ip: Invalid value: "192.000.002.002": must not have leading 0s`})
	old.Spec.ExternalIPs = []string{"127.000.000.001"} // never allowed, in whatever form
	service = old.DeepCopy()
	kindtest.Same(t, "loopback", update(service, old, corev1.IPv4Protocol),
		[]string{
			`spec.externalIPs[0]: Invalid value: "127.000.000.001": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
		})
}
