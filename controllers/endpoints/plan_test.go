// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// aPod is a pod with addresses; marks: r ready, d being deleted, f failed.
func aPod(name, marks string, ports map[string]int32, ips ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      name,
			UID:       types.UID("uid-" + name),
			Labels:    map[string]string{"app": "web"},
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c"}}},
	}
	for n, number := range ports {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
			Name:          n,
			ContainerPort: number,
			Protocol:      corev1.ProtocolTCP,
		})
	}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
	}
	if strings.Contains(marks, "r") {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if strings.Contains(marks, "d") {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	if strings.Contains(marks, "f") {
		pod.Status.Phase = corev1.PodFailed
	}
	return pod
}

func web(change func(*corev1.Service), ports ...corev1.ServicePort) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{
			Selector:   map[string]string{"app": "web"},
			ClusterIP:  "10.96.0.7",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      ports,
		},
	}
	if change != nil {
		change(service)
	}
	return service
}

func tcp(name string, target intstr.IntOrString) corev1.ServicePort {
	return corev1.ServicePort{
		Name:       name,
		Port:       80,
		TargetPort: target,
		Protocol:   corev1.ProtocolTCP,
	}
}

// show writes subsets as "a b | notready c : port,port; ...".
func show(subsets []corev1.EndpointSubset) string {
	var all []string
	for _, endpointSubset := range subsets {
		var words []string
		for _, a := range endpointSubset.Addresses {
			words = append(words, a.IP)
			if a.Hostname != "" {
				words = append(words, "("+a.Hostname+")")
			}
		}
		if len(endpointSubset.NotReadyAddresses) > 0 {
			words = append(words, "|")
			for _, a := range endpointSubset.NotReadyAddresses {
				words = append(words, a.IP)
			}
		}
		var ports []string
		for _, p := range endpointSubset.Ports {
			ports = append(ports, fmt.Sprintf("%s=%d", p.Name, p.Port))
		}
		all = append(all, strings.Join(words, " ")+" : "+strings.Join(ports, ","))
	}
	return strings.Join(all, "; ")
}

func TestSubsets(t *testing.T) {
	number := tcp("http", intstr.FromInt32(8080))
	named := tcp("admin", intstr.FromString("admin"))
	headless := func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }
	for _, tc := range []struct {
		name    string
		service *corev1.Service
		pods    []*corev1.Pod
		want    string
	}{
		{"none", web(nil, number), nil, ""},
		{
			"ready and not", web(nil, number),
			[]*corev1.Pod{
				aPod("b", "r", nil, "10.0.0.2"), aPod("a", "r", nil, "10.0.0.1"), aPod("c", "", nil, "10.0.0.3"),
			},
			"10.0.0.1 10.0.0.2 | 10.0.0.3 : http=8080",
		},
		{
			"ended, going, without address", web(nil, number), []*corev1.Pod{
				aPod("a", "rf", nil, "10.0.0.1"), aPod("b", "rd", nil, "10.0.0.2"), aPod("c", "r", nil),
			}, "",
		},
		{
			"published before they are ready", web(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true },
				number),
			[]*corev1.Pod{
				aPod("a", "", nil, "10.0.0.1"), aPod("b", "d", nil, "10.0.0.2"), aPod("c", "f", nil, "10.0.0.3"),
			},
			"10.0.0.1 10.0.0.2 : http=8080",
		},
		{"a port that only some have", web(nil, number, named), []*corev1.Pod{
			aPod("a", "r", map[string]int32{"admin": 9000}, "10.0.0.1"), aPod("b", "r", nil, "10.0.0.2"),
		}, "10.0.0.1 : admin=9000; 10.0.0.1 10.0.0.2 : http=8080"},
		{"a name of several numbers", web(nil, named), []*corev1.Pod{
			aPod("a", "r", map[string]int32{"admin": 9000}, "10.0.0.1"),
			aPod("b", "r", map[string]int32{"admin": 9001}, "10.0.0.2"),
		}, "10.0.0.1 : admin=9000; 10.0.0.2 : admin=9001"},
		{
			"ports of the same pods", web(nil, number, tcp("alt", intstr.FromInt32(81))), []*corev1.Pod{
				aPod("a", "r", nil, "10.0.0.1"),
			}, "10.0.0.1 : alt=81,http=8080",
		},
		{
			"headless without ports", web(headless), []*corev1.Pod{
				aPod("a", "r", nil, "10.0.0.1"), aPod("b", "", nil, "10.0.0.2"),
			}, "10.0.0.1 | 10.0.0.2 : ",
		},
		{"headless without ports or pods", web(headless), nil, ""},
		{
			"the first family", web(func(s *corev1.Service) {
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			}, number),
			[]*corev1.Pod{aPod("a", "r", nil, "10.0.0.1", "fd00::1"), aPod("b", "r", nil, "10.0.0.2")},
			"fd00::1 : http=8080",
		},
		{"a hostname in the service's domain", web(nil, number), []*corev1.Pod{func() *corev1.Pod {
			p := aPod("a", "r", nil, "10.0.0.1")
			p.Spec.Hostname = "db-0"
			p.Spec.Subdomain = "web"
			return p
		}()}, "10.0.0.1 (db-0) : http=8080"},
	} {
		if got := show(subsetsOf(tc.service, tc.pods)); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestPlan(t *testing.T) {
	service := web(nil, tcp("http", intstr.FromInt32(8080)))
	pods := []*corev1.Pod{aPod("a", "r", nil, "10.0.0.1")}
	since := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	first := plan(nil, service, pods, since)
	if first == nil || first.Labels[managedBy] != manager || first.Labels["team"] != "a" ||
		first.Annotations[corev1.EndpointsLastChangeTriggerTime] != "2030-01-02T03:04:05Z" {
		t.Fatalf("a service without endpoints: got %+v", first)
	}
	if _, headless := first.Labels[corev1.IsHeadlessService]; headless {
		t.Error("a service with an address is labelled headless")
	}
	if again := plan(first, service, pods, time.Time{}); again != nil {
		t.Errorf("a second pass wants %+v", again)
	}
	service.Spec.ClusterIP = corev1.ClusterIPNone
	next := plan(first, service, pods, time.Time{})
	if next == nil {
		t.Fatal("a service turned headless: nothing to do")
	}
	if _, headless := next.Labels[corev1.IsHeadlessService]; !headless ||
		next.Annotations[corev1.EndpointsLastChangeTriggerTime] != "" {
		t.Errorf("a service turned headless: labels %v, annotations %v", next.Labels, next.Annotations)
	}
	if len(first.Subsets) != 1 || first.Labels[corev1.IsHeadlessService] != "" {
		t.Error("the plan changed what it was given")
	}
}

// TestOverCapacity: at most 1,000 addresses, ready ones first, with the annotation that says so, and a second pass is
// empty.
func TestOverCapacity(t *testing.T) {
	service := web(nil, tcp("http", intstr.FromInt32(8080)), tcp("admin", intstr.FromString("admin")))
	podsOf := func(ready, not int) []*corev1.Pod {
		var pods []*corev1.Pod
		for i := range ready + not {
			marks := "r"
			ports := map[string]int32{"admin": 9000 + int32(i%3)}
			if i >= ready {
				marks = ""
			}
			pods = append(pods, aPod(fmt.Sprintf("p%04d", i), marks, ports, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
		}
		return pods
	}
	count := func(e *corev1.Endpoints) (ready, not int) {
		for _, s := range e.Subsets {
			ready = ready + len(s.Addresses)
			not = not + len(s.NotReadyAddresses)
		}
		return ready, not
	}
	for _, tc := range []struct{ ready, not, wantReady, wantNot int }{
		{499, 0, 998, 0}, {400, 200, 800, 200}, {700, 100, 1000, 0}, {500, 1, 1000, 0},
	} {
		pods := podsOf(tc.ready, tc.not)
		endpoints := plan(nil, service, pods, time.Time{})
		over := 2*(tc.ready+tc.not) > maxCapacity
		if ready, not := count(endpoints); ready != tc.wantReady || not != tc.wantNot ||
			(endpoints.Annotations[corev1.EndpointsOverCapacity] == truncated) != over {
			t.Errorf("%d ready and %d not: got %d and %d, %v; want %d and %d, truncated %v", tc.ready, tc.not, ready,
				not, endpoints.Annotations, tc.wantReady, tc.wantNot, over)
		}
		if slices.ContainsFunc(endpoints.Subsets, func(s corev1.EndpointSubset) bool {
			return len(s.Addresses)+len(s.NotReadyAddresses) == 0
		}) {
			t.Errorf("%d ready and %d not: a subset has no address", tc.ready, tc.not)
		}
		if again := plan(endpoints, service, pods, time.Time{}); again != nil {
			t.Errorf("%d ready and %d not: a second pass is not empty", tc.ready, tc.not)
		}
	}
}

func BenchmarkPlan1000(b *testing.B) {
	service := web(nil, tcp("http", intstr.FromInt32(8080)))
	var pods []*corev1.Pod
	for i := range 1000 {
		pods = append(pods, aPod(fmt.Sprintf("p%04d", i), "r", nil, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
	}
	now := plan(nil, service, pods, time.Time{})
	for b.Loop() {
		if plan(now, service, pods, time.Time{}) != nil {
			b.Fatal("changed")
		}
	}
}
