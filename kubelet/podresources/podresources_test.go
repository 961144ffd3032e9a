// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apiv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"keelson/api/apitest"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// node is what a server answers from.
type node struct {
	active, ended []*corev1.Pod
	devices       map[string][]deviceplugin.Device // by "uid/container"
	claims        map[string][]dra.Claim           // by "uid/container"
	asked         int
}

func (n *node) Active() []*corev1.Pod { return append([]*corev1.Pod(nil), n.active...) }
func (n *node) All() []*corev1.Pod    { return append(n.Active(), n.ended...) }
func (n *node) Devices(uid, container string) []deviceplugin.Device {
	n.asked++
	return n.devices[uid+"/"+container]
}
func (n *node) Allocatable() []deviceplugin.Device { return n.devices["node"] }
func (n *node) Claims(p *corev1.Pod, c *corev1.Container) []dra.Claim {
	return n.claims[string(p.UID)+"/"+c.Name]
}

func (n *node) server(dir string) *Server {
	s := New(Config{
		Dir:     rootdir.Dir(dir),
		Pods:    n,
		Devices: n,
		Claims:  n,
	})
	s.limiter = rate.NewLimiter(rate.Inf, 0)
	return s
}

// serve runs a server until the test ends, or stop is called.
func serve(t *testing.T, server *Server) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }() // ends with ctx
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	conn, err := plugin.Dial(string(server.cfg.Dir), socketDir+"/"+socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := apiv1.NewPodResourcesListerClient(conn).List(t.Context(), &apiv1.ListPodResourcesRequest{},
		grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return conn, stop
}

func pod(name string, containers ...string) *corev1.Pod {
	return apitest.Pod("dev/"+name, apitest.UID("uid-"+name), apitest.Containers(containers...))
}

// TestAnswers: List and Get return active pods' sidecars and containers with all that they have, v1alpha1 those of all
// pods. Requests are counted.
func TestAnswers(t *testing.T) {
	n := &node{
		active: []*corev1.Pod{pod("two", "main"), pod("one", "init:setup", "sidecar:helper", "main")},
		ended:  []*corev1.Pod{pod("ended", "main")},
	}
	card := deviceplugin.Device{Resource: "example.com/card", ID: "card-0", NUMANodes: []int64{0, 3}}
	plain := deviceplugin.Device{Resource: "example.com/plain", ID: "p"}
	n.devices = map[string][]deviceplugin.Device{
		"uid-one/setup":  {card},
		"uid-one/helper": {plain},
		"uid-one/main":   {card, plain},
		"uid-ended/main": {plain},
		"node":           {card},
	}
	n.claims = map[string][]dra.Claim{"uid-one/main": {{
		Namespace: "dev",
		Name:      "c",
		Devices: []dra.Device{
			{
				Driver:  "gpus",
				Pool:    "n",
				Name:    "gpu-0",
				ShareID: new("share"),
				CDI:     []string{"gpus/claim=a", "gpus/claim=b"},
			}, {Driver: "gpus", Pool: "n", Name: "gpu-1"},
		},
	}}}
	server := n.server(t.TempDir())
	conn, _ := serve(t, server)
	api := apiv1.NewPodResourcesListerClient(conn)

	cards := []*apiv1.ContainerDevices{
		{
			ResourceName: "example.com/card",
			DeviceIds:    []string{"card-0"},
			Topology:     &apiv1.TopologyInfo{Nodes: []*apiv1.NUMANode{{ID: 0}}},
		},
		{
			ResourceName: "example.com/card",
			DeviceIds:    []string{"card-0"},
			Topology:     &apiv1.TopologyInfo{Nodes: []*apiv1.NUMANode{{ID: 3}}},
		},
	}
	plains := &apiv1.ContainerDevices{ResourceName: "example.com/plain", DeviceIds: []string{"p"}}
	one := &apiv1.PodResources{
		Name:      "one",
		Namespace: "dev",
		Containers: []*apiv1.ContainerResources{
			{Name: "helper", Devices: []*apiv1.ContainerDevices{plains}},
			{
				Name:    "main",
				Devices: []*apiv1.ContainerDevices{cards[0], cards[1], plains},
				DynamicResources: []*apiv1.DynamicResource{{
					ClaimName:      "c",
					ClaimNamespace: "dev",
					ClaimResources: []*apiv1.ClaimResource{
						{
							DriverName: "gpus",
							PoolName:   "n",
							DeviceName: "gpu-0",
							ShareId:    new("share"),
							CdiDevices: []*apiv1.CDIDevice{{Name: "gpus/claim=a"}, {Name: "gpus/claim=b"}},
						},
						{DriverName: "gpus", PoolName: "n", DeviceName: "gpu-1"},
					},
				}},
			},
		},
	}
	two := &apiv1.PodResources{Name: "two", Namespace: "dev", Containers: []*apiv1.ContainerResources{{Name: "main"}}}
	list, err := api.List(t.Context(), &apiv1.ListPodResourcesRequest{})
	same(t, "List", &apiv1.ListPodResourcesResponse{PodResources: []*apiv1.PodResources{one, two}}, list, err)
	got, err := api.Get(t.Context(), &apiv1.GetPodResourcesRequest{PodNamespace: "dev", PodName: "one"})
	same(t, "Get", &apiv1.GetPodResourcesResponse{PodResources: one}, got, err)
	_, err = api.Get(t.Context(), &apiv1.GetPodResourcesRequest{PodNamespace: "dev", PodName: "ended"})
	if s := grpcstatus.Convert(err); s.Code() != codes.Unknown ||
		s.Message() != "pod ended in namespace dev not found" {
		t.Errorf("Get of a pod that has ended: %v", err)
	}
	able, err := api.GetAllocatableResources(t.Context(), &apiv1.AllocatableResourcesRequest{})
	same(t, "GetAllocatableResources", &apiv1.AllocatableResourcesResponse{Devices: cards}, able, err)

	old, err := apiv1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &apiv1alpha1.ListPodResourcesRequest{})
	plainOld := &apiv1alpha1.ContainerDevices{ResourceName: "example.com/plain", DeviceIds: []string{"p"}}
	same(t, "v1alpha1 List", &apiv1alpha1.ListPodResourcesResponse{PodResources: []*apiv1alpha1.PodResources{
		{
			Name:      "ended",
			Namespace: "dev",
			Containers: []*apiv1alpha1.ContainerResources{
				{Name: "main", Devices: []*apiv1alpha1.ContainerDevices{plainOld}},
			},
		},
		{
			Name:      "one",
			Namespace: "dev",
			Containers: []*apiv1alpha1.ContainerResources{
				{
					Name: "main",
					Devices: []*apiv1alpha1.ContainerDevices{
						{ResourceName: "example.com/card", DeviceIds: []string{"card-0"}}, plainOld,
					},
				},
			},
		},
		{Name: "two", Namespace: "dev", Containers: []*apiv1alpha1.ContainerResources{{Name: "main"}}},
	}}, old, err)

	want := map[string]float64{
		"requests_total v1":           5,
		"requests_total v1alpha1":     1,
		"requests_list v1":            2,
		"requests_get v1":             2,
		"errors_get v1":               1,
		"requests_get_allocatable v1": 1,
	}
	if diff := cmp.Diff(want, counted(t, server)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func same(t *testing.T, call string, want, got any, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", call, err)
		return
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", call, diff)
	}
}

// counted are the metrics, as "name version".
func counted(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(s)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[strings.TrimPrefix(f.GetName(), "kubelet_pod_resources_endpoint_")+" "+
				m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}

// TestTwoOfAName: of a pod that ends and one that takes its name, Get returns the second.
func TestTwoOfAName(t *testing.T) {
	old := pod("p", "old")
	next := pod("p", "next")
	old.DeletionTimestamp = &metav1.Time{}
	for _, active := range [][]*corev1.Pod{{old, next}, {next, old}} {
		s := &v1Server{Server: (&node{active: active}).server(t.TempDir())}
		got, err := s.Get(t.Context(), &apiv1.GetPodResourcesRequest{PodNamespace: "dev", PodName: "p"})
		if err != nil || got.GetPodResources().GetContainers()[0].GetName() != "next" {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

// TestLimits: requests beyond the rate are refused and not counted, and an answer that grows too large is given up
// before it is whole.
func TestLimits(t *testing.T) {
	n := &node{claims: map[string][]dra.Claim{}, devices: map[string][]deviceplugin.Device{}}
	server := n.server(t.TempDir())
	conn, _ := serve(t, server)
	api := apiv1.NewPodResourcesListerClient(conn)
	before := counted(t, server)["requests_total v1"]
	server.limiter.SetBurst(2)
	server.limiter.SetLimit(0)
	for i := range 4 {
		_, err := api.List(t.Context(), &apiv1.ListPodResourcesRequest{})
		if refused := grpcstatus.Code(err) == codes.ResourceExhausted && strings.HasSuffix(err.Error(),
			"rejected by rate limit"); refused != (i >= 2) || !refused && err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if got := counted(t, server)["requests_total v1"] - before; got != 2 {
		t.Errorf("%v requests were counted", got)
	}
	server.limiter.SetLimit(rate.Inf)

	p := pod("large")
	for range 100 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c"})
	}
	n.active = []*corev1.Pod{p}
	n.claims["uid-large/c"] = []dra.Claim{{Devices: []dra.Device{{CDI: []string{strings.Repeat("x", 1<<20)}}}}}
	n.asked = 0
	if _, err := api.List(t.Context(), &apiv1.ListPodResourcesRequest{}); grpcstatus.Code(
		err) != codes.ResourceExhausted || n.asked > 20 {
		t.Errorf("an answer of 100 MiB: %v, after %d containers", err, n.asked)
	}
	for range 100 {
		n.devices["node"] = append(n.devices["node"], deviceplugin.Device{ID: strings.Repeat("x", 1<<20)})
	}
	if _, err := api.GetAllocatableResources(t.Context(), &apiv1.AllocatableResourcesRequest{}); grpcstatus.Code(
		err) != codes.ResourceExhausted {
		t.Errorf("allocatable devices of 100 MiB: %v", err)
	}
	if got := counted(t, server); got["errors_list v1"] != 1 || got["errors_get_allocatable v1"] != 1 {
		t.Errorf("counted %v", got)
	}
}
