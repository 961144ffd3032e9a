// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func endpoints(change func(*corev1.Endpoints), subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "db",
			UID:       "uid-db",
			Labels:    map[string]string{"team": "a"},
			Annotations: map[string]string{
				"note":                                "n",
				corev1.LastAppliedConfigAnnotation:    "{}",
				corev1.EndpointsLastChangeTriggerTime: "t",
			},
		},
		Subsets: subsets,
	}
	if change != nil {
		change(e)
	}
	return e
}

// subset of "ip ip | ip" (after the bar: not ready) with a port.
func subset(ips string, port int32) corev1.EndpointSubset {
	ready, not, _ := strings.Cut(ips, "|")
	list := func(text string) (out []corev1.EndpointAddress) {
		for ip := range strings.FieldsSeq(text) {
			out = append(out, corev1.EndpointAddress{IP: ip})
		}
		return out
	}
	return corev1.EndpointSubset{
		Addresses:         list(ready),
		NotReadyAddresses: list(not),
		Ports:             []corev1.EndpointPort{{Port: port, Protocol: corev1.ProtocolTCP}},
	}
}

// show writes slices as "IPv4 ip ip !ip :port", in order.
func show(all []*discoveryv1.EndpointSlice) string {
	var out []string
	for _, s := range all {
		words := []string{string(s.AddressType)}
		for _, e := range s.Endpoints {
			mark := "!"
			if *e.Conditions.Ready {
				mark = ""
			}
			words = append(words, mark+e.Addresses[0])
		}
		for _, p := range s.Ports {
			words = append(words, fmt.Sprintf(":%d", *p.Port))
		}
		out = append(out, strings.Join(words, " "))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// stored gives made slices names, as a server does.
func stored(p *changes) []*discoveryv1.EndpointSlice {
	for i, s := range p.create {
		s.Name = fmt.Sprintf("db-%d", i)
	}
	return slices.Concat(p.create, p.update)
}

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) { return New(env, NewMetrics()) }

func TestPlan(t *testing.T) {
	e := endpoints(nil, subset("10.0.0.1 10.0.0.2|10.0.0.3", 80), subset("10.0.0.1 fd00::1", 81))
	first := plan(e, nil)
	if got, want := show(first.create),
		"IPv4 10.0.0.1 10.0.0.2 !10.0.0.3 :80; IPv4 10.0.0.1 :81; IPv6 fd00::1 :81"; got != want {
		t.Fatalf("at first: got %q, want %q", got, want)
	}
	for _, s := range first.create {
		if s.Labels["team"] != "a" || s.Labels[discoveryv1.LabelServiceName] != "db" ||
			s.Labels[discoveryv1.LabelManagedBy] != manager ||
			len(s.Annotations) != 1 || s.Annotations["note"] != "n" || s.GenerateName != "db-" ||
			s.OwnerReferences[0].Kind != "Endpoints" {
			t.Errorf("labels %v, annotations %v, owner %v", s.Labels, s.Annotations, s.OwnerReferences)
		}
	}
	have := stored(first)
	if p := plan(e, have); len(p.create)+len(p.update)+len(p.remove) > 0 {
		t.Errorf("a second pass does %+v", p)
	}
	for _, tc := range []struct {
		name           string
		e              *corev1.Endpoints
		update, remove string
		counts         [3]int // added, updated, removed
	}{
		{
			"one more, one ready", endpoints(nil, subset("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", 80),
				subset("10.0.0.1 fd00::1", 81)),
			"IPv4 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 :80", "",
			[3]int{1, 1, 0},
		},
		{
			"another port: its slice becomes the new one", endpoints(nil, subset("10.0.0.1 10.0.0.2|10.0.0.3", 82),
				subset("10.0.0.1 fd00::1", 81)),
			"IPv4 10.0.0.1 10.0.0.2 !10.0.0.3 :82", "",
			[3]int{3, 0, 3},
		},
		{
			"a family less", endpoints(nil, subset("10.0.0.1 10.0.0.2|10.0.0.3", 80), subset("10.0.0.1", 81)), "",
			"IPv6 fd00::1 :81",
			[3]int{0, 0, 1},
		},
		{
			"another label", endpoints(func(e *corev1.Endpoints) { e.Labels["team"] = "b" }, e.Subsets...),
			first.show(), "",
			[3]int{},
		},
		{"nothing left", endpoints(nil), "", first.show(), [3]int{0, 0, 5}},
	} {
		p := plan(tc.e, have)
		if len(p.create) > 0 || show(p.update) != tc.update || show(p.remove) != tc.remove ||
			[3]int{p.added, p.updated, p.removedAddress} != tc.counts {
			t.Errorf("%s: create %q, update %q, remove %q, counts %d %d %d; want update %q, remove %q, counts %v",
				tc.name,
				show(p.create), show(p.update), show(p.remove), p.added, p.updated, p.removedAddress, tc.update,
				tc.remove, tc.counts)
		}
	}
}

func (c *changes) show() string { return show(slices.Concat(c.create, c.update)) }

func TestPlanLimits(t *testing.T) {
	var many []string
	for i := range 1100 {
		many = append(many, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
	}
	p := plan(endpoints(nil, subset(strings.Join(many, " "), 80)), nil)
	if len(p.create) != 1 || len(p.create[0].Endpoints) != maxAddressesPerSubset || p.skipped != 100 || p.invalid != 0 {
		t.Errorf("1,100 addresses: %d slices, %d skipped, %d invalid", len(p.create), p.skipped, p.invalid)
	}
	p = plan(endpoints(nil, subset("10.0.0.1 nonsense | 10.0.0.1", 80)), nil)
	if got := show(p.create); got != "IPv4 !10.0.0.1 :80" || p.invalid != 1 || p.skipped != 1 {
		t.Errorf("an invalid address, and one that is ready and not: %q, %d invalid, %d skipped", got, p.invalid,
			p.skipped)
	}
}

// TestMirrors runs the controller over Endpoints that are for mirroring and such that are not.
func TestMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := func(name string, selector map[string]string) *corev1.Service {
			return apitest.Service(name, corev1.ServiceSpec{
				Selector: selector,
				Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
			})
		}
		named := func(name string, change func(*corev1.Endpoints)) *corev1.Endpoints {
			e := endpoints(change, subset("10.0.0.1", 80))
			e.Name = name
			e.UID = ""
			return e
		}
		cluster := controllertest.New(
			service("db", nil), named("db", nil), named("late", nil),
			service("selecting", map[string]string{"app": "x"}), named("selecting", nil),
			service("skipped", nil), named("skipped", func(e *corev1.Endpoints) {
				e.Labels[discoveryv1.LabelSkipMirror] = "true"
			}),
			service("lock", nil), named("lock", func(e *corev1.Endpoints) {
				e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] = "{}"
			}),
			service("strange", nil), func() *corev1.Endpoints {
				e := named("strange", nil)
				e.Subsets[0].Addresses[0].IP = "nonsense"
				return e
			}(),
		)
		cluster.Start(t, "endpointslicemirroring-controller", newController)
		check := func(when string, want map[string]string) {
			t.Helper()
			time.Sleep(time.Second)
			list, err := cluster.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][]*discoveryv1.EndpointSlice{}
			for i := range list.Items {
				s := &list.Items[i]
				got[s.Labels[discoveryv1.LabelServiceName]] = append(got[s.Labels[discoveryv1.LabelServiceName]], s)
			}
			for _, name := range []string{"db", "late", "selecting", "skipped", "lock", "strange"} {
				if show(got[name]) != want[name] {
					t.Errorf("%s: slices of %s are %q, want %q", when, name, show(got[name]), want[name])
				}
			}
		}
		check("at first", map[string]string{"db": "IPv4 10.0.0.1 :80"})
		if said := strings.Join(cluster.EventsSeen(), "\n"); !strings.Contains(said,
			"Warning InvalidIPAddress Skipped 1 invalid IP addresses when mirroring to EndpointSlices") {
			t.Errorf("events: %s", said)
		}
		if _, err := cluster.CoreV1().Services("default").Create(t.Context(), service("late", nil),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e := named("db", nil)
		e.Subsets[0].Addresses[0].IP = "10.0.0.9"
		if _, err := cluster.CoreV1().Endpoints("default").Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("a service and another address", map[string]string{
			"db":   "IPv4 10.0.0.9 :80",
			"late": "IPv4 10.0.0.1 :80",
		})
		list, err := cluster.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=late",
		})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("slices of late: %v %v", list, err)
		}
		if err := cluster.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), list.Items[0].Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := cluster.CoreV1().Endpoints("default").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("endpoints deleted, a slice deleted", map[string]string{"late": "IPv4 10.0.0.1 :80"})
		if _, err := cluster.CoreV1().Services("default").Update(t.Context(),
			service("late", map[string]string{"app": "x"}),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("a selector", nil)
	})
}
