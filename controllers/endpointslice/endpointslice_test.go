// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func node(name, zone string) *corev1.Node {
	return apitest.Node(name, apitest.NodeLabels(corev1.LabelTopologyZone, zone), apitest.NodeReady)
}

func pod(name, nodeName string, ready bool, ips ...string) *corev1.Pod {
	p := apitest.Pod(name, apitest.On(nodeName), apitest.Labels("app", "web"), apitest.IPs(ips...))
	if ready {
		apitest.Ready(p)
	}
	return p
}

func web(change func(*corev1.Service)) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "web",
			UID:       "uid-web",
			Labels:    map[string]string{"team": "a"},
		},
		Spec: corev1.ServiceSpec{
			Selector:   map[string]string{"app": "web"},
			ClusterIP:  "10.96.0.7",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{
				Name:       "http",
				Port:       80,
				TargetPort: intstr.FromInt32(8080),
				Protocol:   corev1.ProtocolTCP,
			}},
		},
	}
	if change != nil {
		change(service)
	}
	return service
}

// cluster has helpers around one with the controller running.
type cluster struct {
	*controllertest.Cluster
	t *testing.T
}

func start(t *testing.T, objs ...runtime.Object) cluster {
	c := controllertest.New(objs...)
	c.Start(t, "endpointslice-controller", New)
	return cluster{c, t}
}

func (c cluster) slices() []discoveryv1.EndpointSlice {
	c.t.Helper()
	time.Sleep(time.Second)
	l, err := c.DiscoveryV1().EndpointSlices("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return l.Items
}

// show writes each slice as "IPv4 :8080 ip/rst@zone>hint ...", in order; r, s, t: ready, serving, terminating.
func (c cluster) show() string {
	c.t.Helper()
	var out []string
	for _, s := range c.slices() {
		words := []string{string(s.AddressType)}
		for _, p := range s.Ports {
			words = append(words, fmt.Sprintf(":%d", *p.Port))
		}
		var list []string
		for _, endpoint := range s.Endpoints {
			w := strings.Join(endpoint.Addresses, "+") + "/"
			for flag, on := range map[string]*bool{
				"r": endpoint.Conditions.Ready,
				"s": endpoint.Conditions.Serving,
				"t": endpoint.Conditions.Terminating,
			} {
				if on != nil && *on {
					w += flag
				}
			}
			w = w[:strings.Index(w, "/")+1] + sorted(w[strings.Index(w, "/")+1:])
			if endpoint.Zone != nil {
				w += "@" + *endpoint.Zone
			}
			if endpoint.Hostname != nil {
				w += "#" + *endpoint.Hostname
			}
			if endpoint.Hints != nil {
				for _, z := range endpoint.Hints.ForZones {
					w += ">" + z.Name
				}
				for _, n := range endpoint.Hints.ForNodes {
					w += ">>" + n.Name
				}
			}
			list = append(list, w)
		}
		slices.Sort(list)
		out = append(out, strings.Join(append(words, list...), " "))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func sorted(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(b)
}

func (c cluster) check(when, want string) {
	c.t.Helper()
	if got := c.show(); got != want {
		c.t.Errorf("%s: slices are %q, want %q", when, got, want)
	}
}

func (c cluster) setPod(p *corev1.Pod) {
	c.t.Helper()
	if _, err := c.CoreV1().Pods("default").Update(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c cluster) setService(s *corev1.Service) {
	c.t.Helper()
	if _, err := c.CoreV1().Services("default").Update(c.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// TestFollowsPods is the life of a service: no pods, ready, going, ended, relabelled, another selector.
func TestFollowsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, node("n1", "z1"), node("n2", "z2"), web(nil), pod("other", "n1", true))
		cluster.check("no pod with an address", "IPv4")
		s := cluster.slices()[0]
		if s.Labels[discoveryv1.LabelManagedBy] != manager || s.Labels[discoveryv1.LabelServiceName] != "web" ||
			s.Labels["team"] != "a" ||
			len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "uid-web" ||
			s.Annotations[corev1.EndpointsLastChangeTriggerTime] == "" {
			t.Errorf("labels %v, owners %v, annotations %v", s.Labels, s.OwnerReferences, s.Annotations)
		}
		a := pod("a", "n1", false, "10.0.0.1")
		if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.check("a pod that is not ready", "IPv4 :8080 10.0.0.1/@z1")
		cluster.setPod(pod("a", "n1", true, "10.0.0.1"))
		cluster.check("ready", "IPv4 :8080 10.0.0.1/rs@z1")
		going := pod("a", "n1", true, "10.0.0.1")
		going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		going.Finalizers = []string{"x/y"}
		cluster.setPod(going)
		cluster.check("going", "IPv4 :8080 10.0.0.1/st@z1")
		cluster.setService(web(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }))
		cluster.check("going but published", "IPv4 :8080 10.0.0.1/rst@z1")
		cluster.setService(web(nil))
		ended := pod("a", "n1", false, "10.0.0.1")
		ended.Status.Phase = corev1.PodSucceeded
		cluster.setPod(ended)
		cluster.check("ended", "IPv4")
		back := pod("a", "n1", true, "10.0.0.1")
		cluster.setPod(back)
		cluster.check("running", "IPv4 :8080 10.0.0.1/rs@z1")
		back = back.DeepCopy()
		back.Labels = map[string]string{"app": "db"}
		cluster.setPod(back)
		cluster.check("relabelled", "IPv4")
		cluster.setService(web(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "db"} }))
		cluster.check("another selector", "IPv4 :8080 10.0.0.1/rs@z1")
		if _, err := cluster.CoreV1().Nodes().Update(t.Context(), node("n1", "z9"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.check("the node's zone", "IPv4 :8080 10.0.0.1/rs@z9")
		if err := cluster.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.check("deleted", "IPv4")
	})
}

func TestFamiliesPortsAndNames(t *testing.T) {
	dual := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	named := pod("db", "n1", true, "10.0.0.1", "fd00::1")
	named.Spec.Hostname = "db-0"
	named.Spec.Subdomain = "web"
	for _, tc := range []struct {
		name    string
		service *corev1.Service
		want    string
		labels  string
	}{
		{
			"dual stack", web(func(s *corev1.Service) { s.Spec.IPFamilies = dual }),
			"IPv4 :8080 10.0.0.1/rs@z1#db-0; IPv6 :8080 fd00::1/rs@z1#db-0", "",
		},
		{
			"headless", web(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
			"IPv4 :8080 10.0.0.1/rs@z1#db-0", corev1.IsHeadlessService,
		},
		{"headless without ports", web(func(s *corev1.Service) {
			s.Spec.ClusterIP = corev1.ClusterIPNone
			s.Spec.Ports = nil
		}), "IPv4 10.0.0.1/rs@z1#db-0", corev1.IsHeadlessService},
		{"without a selector", web(func(s *corev1.Service) { s.Spec.Selector = nil }), "", ""},
		{"an external name", web(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), "", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t, node("n1", "z1"), tc.service, named.DeepCopy())
			c.check(tc.name, tc.want)
			for _, s := range c.slices() {
				if _, ok := s.Labels[corev1.IsHeadlessService]; ok != (tc.labels != "") {
					t.Errorf("%s: labels %v", tc.name, slices.Collect(maps.Keys(s.Labels)))
				}
			}
		})
	}
}

// TestRestores: slices that others change or delete come back; a hundred endpoints fill one.
func TestRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{node("n1", "z1"), web(nil)}
		for i := range 250 {
			objs = append(objs, pod(fmt.Sprintf("p%03d", i), "n1", true, fmt.Sprintf("10.0.0.%d", i+1)))
		}
		cluster := start(t, objs...)
		sizes := func() (out []int) {
			for _, s := range cluster.slices() {
				out = append(out, len(s.Endpoints))
			}
			slices.Sort(out)
			return out
		}
		if got := sizes(); !slices.Equal(got, []int{50, 100, 100}) {
			t.Fatalf("250 pods: slices of %v", got)
		}
		api := cluster.DiscoveryV1().EndpointSlices("default")
		all := cluster.slices()
		edited := all[0].DeepCopy()
		edited.Endpoints = edited.Endpoints[:10]
		edited.Generation = edited.Generation + 1
		if _, err := api.Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := api.Delete(t.Context(), all[1].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, n := range sizes() {
			total += n
			if n > maxEndpointsPerSlice {
				t.Errorf("a slice has %d endpoints", n)
			}
		}
		if total != 250 {
			t.Errorf("after an edit and a deletion there are %d endpoints, want 250", total)
		}
	})
}

// TestTrafficDistribution: hints follow spec.trafficDistribution and go with it.
func TestTrafficDistribution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prefer := func(what string) *corev1.Service {
			return web(func(s *corev1.Service) {
				if what != "" {
					s.Spec.TrafficDistribution = &what
				}
			})
		}
		c := start(t, node("n1", "z1"), node("n2", "z2"), prefer(corev1.ServiceTrafficDistributionPreferSameZone),
			pod("a", "n1", true, "10.0.0.1"), pod("b", "n2", true, "10.0.0.2"))
		c.check("same zone", "IPv4 :8080 10.0.0.1/rs@z1>z1 10.0.0.2/rs@z2>z2")
		c.setService(prefer(corev1.ServiceTrafficDistributionPreferSameNode))
		c.check("same node", "IPv4 :8080 10.0.0.1/rs@z1>z1>>n1 10.0.0.2/rs@z2>z2>>n2")
		c.setService(prefer(""))
		c.check("anywhere", "IPv4 :8080 10.0.0.1/rs@z1 10.0.0.2/rs@z2")
	})
}

// TestTopologyAnnotation: hints that share the endpoints out by the zones' processors need to know the nodes, and
// follow them.
func TestTopologyAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sized := func(name, zone string) *corev1.Node {
			n := node(name, zone)
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
			return n
		}
		c := start(t, sized("n1", "z1"), sized("n2", "z2"), web(func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		}), pod("a", "n1", true, "10.0.0.1"), pod("b", "n1", true, "10.0.0.2"), pod("c", "n2", true, "10.0.0.3"), pod(
			"d", "n2", true, "10.0.0.4"))
		c.setPod(pod("a", "n1", false, "10.0.0.1"))
		time.Sleep(time.Second)
		c.setPod(pod("a", "n1", true, "10.0.0.1")) // by now the nodes are known
		c.check("two zones", "IPv4 :8080 10.0.0.1/rs@z1>z1 10.0.0.2/rs@z1>z1 10.0.0.3/rs@z2>z2 10.0.0.4/rs@z2>z2")
		if said := strings.Join(c.EventsSeen(), "\n"); !strings.Contains(said, "TopologyAwareHintsEnabled") {
			t.Errorf("events: %s", said)
		}
	})
}

// TestPortsAreNotSortedInPlace: the library sorts the ports of the slices it is given; those of the cache are
// everybody's.
func TestPortsAreNotSortedInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		three := web(func(s *corev1.Service) {
			for i, name := range []string{"a", "b", "c"} {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
					Name:       name,
					Port:       int32(90 + i),
					TargetPort: intstr.FromInt32(int32(9000 + i)),
					Protocol:   corev1.ProtocolTCP,
				})
			}
		})
		var env *framework.Env
		c := controllertest.New(node("n1", "z1"), three, pod("p", "n1", true, "10.0.0.1"))
		c.Start(t, "endpointslice-controller", func(e *framework.Env) (framework.Controller, error) {
			env = e
			return New(e)
		})
		k := cluster{c, t}
		slice := k.slices()[0].DeepCopy()
		slices.Reverse(slice.Ports)
		slice.Generation++
		if _, err := c.DiscoveryV1().EndpointSlices("default").Update(t.Context(), slice,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		held, err := discoveryinformers.New(env.Shared.Scoped()).EndpointSlices().Lister().EndpointSlices("default").
			Get(slice.Name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range slice.Ports {
			if *held.Ports[i].Name != *slice.Ports[i].Name {
				t.Fatalf("port %d of the cached slice is %s, stored is %s", i, *held.Ports[i].Name,
					*slice.Ports[i].Name)
			}
		}
	})
}
