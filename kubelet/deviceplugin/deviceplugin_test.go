// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"keelson/api/apitest"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
	"keelson/lib/signal"
)

const gpus = "example.com/gpu"

// node is a kubelet's Manager that runs.
type node struct {
	*Manager
	t       *testing.T
	dir     string
	changed signal.Signal
	health  chan string // pods whose devices' health has changed
	stop    func()
}

func newNode(t *testing.T, dir string, grace time.Duration) *node {
	t.Helper()
	n := &node{
		t:       t,
		dir:     dir,
		changed: signal.New(),
		health:  make(chan string, 100),
	}
	n.Manager = New(Config{
		Dir:              rootdir.Dir(dir),
		Log:              slog.New(slog.DiscardHandler),
		StopGracePeriod:  grace,
		AllocateWait:     time.Millisecond,
		HealthTimeout:    time.Millisecond,
		ResourcesChanged: n.changed.Notify,
		HealthChanged:    func(uid string) { n.health <- uid },
	})
	if err := n.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }() // ends with ctx
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(n.stop)
	// it listens: sockets that come now stay
	if err := n.register(&pluginapi.RegisterRequest{}); err == nil || !strings.Contains(err.Error(), "API version") {
		t.Fatal(err)
	}
	return n
}

// waitForResources waits for the node's resources, as "capacity allocatable".
func (n *node) waitForResources(want string) {
	n.t.Helper()
	var got string
	for {
		capacity, allocatable := n.Resources()
		c := capacity[gpus]
		a := allocatable[gpus]
		if got = c.String() + " " + a.String(); got == want {
			return
		}
		select {
		case <-n.changed.C():
		case <-time.After(time.Minute):
			n.t.Fatalf("after a minute: %s, want %s", got, want)
		}
	}
}

// register does what a plugin does to be known. The kubelet's socket may come only later.
func (n *node) register(q *pluginapi.RegisterRequest) error {
	conn, err := plugin.Dial(filepath.Join(n.dir, socketsDir), ownSocket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(n.t.Context(), q, grpc.WaitForReady(true))
	return err
}

// fake is a plugin.
type fake struct {
	pluginapi.UnimplementedDevicePluginServer
	lists   chan []*pluginapi.Device
	prefer  []string
	answers int // for how many containers it answers
	fails   error

	mu    sync.Mutex
	calls []string
	stop  func()
}

func (f *fake) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case l := <-f.lists:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: l}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (f *fake) called(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, what)
}

func (f *fake) GetPreferredAllocation(
	_ context.Context, q *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	c := q.GetContainerRequests()[0]
	f.called(fmt.Sprint("prefer ", c.GetAllocationSize(), c.GetMustIncludeDeviceIDs(), c.GetAvailableDeviceIDs()))
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: f.prefer},
	}}, nil
}

func (f *fake) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := q.GetContainerRequests()[0].GetDevicesIds()
	f.called(fmt.Sprint("allocate ", ids))
	out := &pluginapi.AllocateResponse{}
	for range f.answers {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"GPUS": strings.Join(ids, ",")},
			Annotations: map[string]string{"a": "b"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/gpu=" + ids[0]}},
		})
	}
	return out, f.fails
}

func (f *fake) PreStartContainer(
	_ context.Context, q *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	f.called(fmt.Sprint("start ", q.GetDevicesIds()))
	return &pluginapi.PreStartContainerResponse{}, nil
}

// serve has a plugin listen and register, with all options.
func (n *node) serve(f *fake, socket string) *fake {
	n.t.Helper()
	f.lists = make(chan []*pluginapi.Device, 10)
	f.answers = max(f.answers, 1)
	if err := os.MkdirAll(filepath.Join(n.dir, socketsDir), 0o750); err != nil {
		n.t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(n.dir, socketsDir, socket))
	if err != nil {
		n.t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, f)
	done := make(chan struct{})
	go func() { // ends with Stop
		defer close(done)
		_ = s.Serve(l)
	}()
	f.stop = func() {
		s.Stop()
		<-done
	}
	n.t.Cleanup(f.stop)
	if err := n.register(&pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     socket,
		ResourceName: gpus,
		Options:      &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
	}); err != nil {
		n.t.Fatal(err)
	}
	return f
}

// devices are healthy but for those with a "!".
func devices(ids ...string) (out []*pluginapi.Device) {
	for _, id := range ids {
		d := &pluginapi.Device{ID: strings.TrimPrefix(id, "!"), Health: pluginapi.Healthy}
		if d.ID != id {
			d.Health = pluginapi.Unhealthy
		}
		out = append(out, d)
	}
	return out
}

func container(name string, n int64) corev1.Container {
	return corev1.Container{
		Name: name,
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpus: *resource.NewQuantity(n, resource.DecimalSI)},
		},
	}
}

func pod(name string, containers ...corev1.Container) *corev1.Pod {
	return apitest.Pod(name, func(p *corev1.Pod) { p.Spec.Containers = containers })
}

func TestDevices(t *testing.T) {
	node := newNode(t, t.TempDir(), time.Hour)
	f := node.serve(&fake{prefer: []string{"c", "unknown", "bad"}}, "gpu.sock")
	f.lists <- devices("a", "b", "c", "!bad", "a")
	node.waitForResources("4 3")

	p := pod("p", container("main", 2), corev1.Container{Name: "plain"})
	p.Spec.InitContainers = []corev1.Container{container("init", 1)}
	given, err := node.RunContainerOptions(t.Context(), p, &p.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	if given.Envs["GPUS"] != "c,a" || given.Annotations["a"] != "b" || len(given.Mounts) != 1 ||
		!given.Mounts[0].GetReadonly() || given.Mounts[0].GetHostPath() != "/opt/gpu" ||
		len(given.Devices) != 1 || given.Devices[0].GetPermissions() != "rw" ||
		!slices.Equal(given.CDI, []string{"example.com/gpu=c"}) {
		t.Errorf("given: %+v", given)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(node.Manager)
	counted, err := r.Gather()
	if err != nil || len(counted) != 2 || counted[0].GetMetric()[0].GetHistogram().GetSampleCount() != 2 ||
		counted[1].GetMetric()[0].GetCounter().GetValue() != 1 {
		t.Errorf("counted: %v %v", counted, err)
	}
	want := []string{"prefer 1 [] [a b c]", "allocate [c]", "prefer 2 [c] [c a b]", "allocate [c a]", "start [c a]"}
	if diff := cmp.Diff(want, f.calls); diff != "" {
		t.Errorf("the plugin was asked (-want +got):\n%s", diff)
	}
	if given, err = node.RunContainerOptions(t.Context(), p, &p.Spec.Containers[1]); err != nil || len(given.Envs) > 0 {
		t.Errorf("a container that asks for nothing: %+v %v", given, err)
	}
	other := pod("other", container("main", 2))
	if err := node.Allocate(t.Context(), other); err == nil ||
		!strings.Contains(err.Error(), "Requested: 2, Available: 1") {
		t.Errorf("more than there are: %v", err)
	}
	f.lists <- devices("a", "b", "c", "bad")
	node.waitForResources("4 4")
	if err := node.Allocate(t.Context(), other); err != nil {
		t.Errorf("one has become healthy: %v", err)
	}
	for _, uid := range []string{"p", "p", "other"} {
		if err := node.Release(uid); err != nil {
			t.Error(err)
		}
	}
	if err := node.Allocate(t.Context(), pod("all", container("main", 4))); err != nil {
		t.Errorf("all are given back: %v", err)
	}
}

// TestWaitsForDevices: a pod gets what another gives back while it waits.
func TestWaitsForDevices(t *testing.T) {
	n := newNode(t, t.TempDir(), time.Hour)
	n.serve(&fake{}, "gpu.sock").lists <- devices("a")
	n.waitForResources("1 1")
	if err := n.Allocate(t.Context(), pod("one", container("main", 1))); err != nil {
		t.Fatal(err)
	}
	n.cfg.AllocateWait = time.Minute
	done := make(chan error, 1)
	go func() { done <- n.Allocate(t.Context(), pod("two", container("main", 1))) }() // ends with the test's context
	if err := n.Release("one"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRestart: after a restart of the kubelet pods have what they had, and the plugin registers again.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	node := newNode(t, dir, time.Hour)
	f := node.serve(&fake{}, "gpu.sock")
	f.lists <- devices("a", "b")
	node.waitForResources("2 2")
	p := pod("p", container("main", 1))
	if err := node.Allocate(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	node.stop()
	f.stop()

	node = newNode(t, dir, time.Hour)
	node.waitForResources("2 0")
	if got := node.Pods(); !slices.Equal(got, []string{"p"}) {
		t.Errorf("pods %v", got)
	}
	if given, err := node.RunContainerOptions(t.Context(), p, &p.Spec.Containers[0]); err != nil ||
		given.Envs["GPUS"] != "a" {
		t.Errorf("a container starts again without the plugin: %+v %v", given, err)
	}
	f = node.serve(&fake{}, "new.sock")
	f.lists <- devices("a", "b")
	node.waitForResources("2 2")
	if err := node.Allocate(t.Context(), pod("q", container("main", 1))); err != nil ||
		!slices.Contains(f.calls, "allocate [b]") {
		t.Errorf("another pod: %v %v", err, f.calls)
	}
	f.stop()
	node.waitForResources("2 0")
}

// TestDevicesOfContainers: the PodResources API gets what containers have and what is healthy, with the NUMA nodes of
// the topology, also after a restart without it.
func TestDevicesOfContainers(t *testing.T) {
	dir := t.TempDir()
	node := newNode(t, dir, time.Hour)
	f := node.serve(&fake{prefer: []string{"b"}}, "gpu.sock")
	list := devices("b", "a", "!bad")
	list[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 2}, {ID: 0}, {ID: 2}}}
	f.lists <- list
	node.waitForResources("3 2")
	device := Device{Resource: gpus, ID: "a"}
	b := Device{Resource: gpus, ID: "b", NUMANodes: []int64{0, 2}}
	if diff := cmp.Diff([]Device{device, b}, node.Allocatable()); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	if err := node.Allocate(t.Context(), pod("p", container("main", 1), container("other", 1))); err != nil {
		t.Fatal(err)
	}
	node.stop()
	f.stop()
	node = newNode(t, dir, time.Hour)
	for name, want := range map[string][]Device{"main": {b}, "other": {device}, "plain": nil} {
		if diff := cmp.Diff(want, node.Devices("p", name)); diff != "" {
			t.Errorf("container %s (-want +got):\n%s", name, diff)
		}
	}
	if got := node.Allocatable(); len(got) > 0 {
		t.Errorf("allocatable without the plugin: %v", got)
	}
}

// TestTooManyNodes: the NUMA nodes that a plugin may report are limited.
func TestTooManyNodes(t *testing.T) {
	near := func(n int) *pluginapi.TopologyInfo {
		out := &pluginapi.TopologyInfo{}
		for i := range n {
			out.Nodes = append(out.Nodes, &pluginapi.NUMANode{ID: int64(i)})
		}
		return out
	}
	var many []*pluginapi.Device
	for i := range maxListNUMANodes/maxNUMANodes + 1 {
		many = append(many, &pluginapi.Device{ID: fmt.Sprint(i), Topology: near(maxNUMANodes)})
	}
	for want, list := range map[string][]*pluginapi.Device{
		"":             many[1:],
		"all together": many,
		"is near 65":   {{ID: "a", Topology: near(maxNUMANodes + 1)}},
	} {
		_, err := devicesOf(&pluginapi.ListAndWatchResponse{Devices: list})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestGone: the devices of a plugin that does not come back are the node's no more.
func TestGone(t *testing.T) {
	n := newNode(t, t.TempDir(), time.Millisecond)
	f := n.serve(&fake{}, "gpu.sock")
	f.lists <- devices("a")
	n.waitForResources("1 1")
	f.stop()
	n.waitForResources("0 0")
	if err := n.Allocate(t.Context(), pod("p", container("main", 1))); err == nil ||
		!strings.Contains(err.Error(), "not registered") {
		t.Errorf("got %v", err)
	}
}

// TestReplaced: the latest of two plugins of a resource is asked, and the end of the first has no effect.
func TestReplaced(t *testing.T) {
	n := newNode(t, t.TempDir(), time.Hour)
	first := n.serve(&fake{}, "one.sock")
	first.lists <- devices("a")
	n.waitForResources("1 1")
	n.serve(&fake{}, "two.sock").lists <- devices("b", "c")
	n.waitForResources("2 2")
	first.stop()
	if err := n.Allocate(t.Context(), pod("p", container("main", 2))); err != nil {
		t.Error(err)
	}
}

// TestInvalidAnswers: invalid registrations and answers of plugins are refused, and change nothing.
func TestInvalidAnswers(t *testing.T) {
	node := newNode(t, t.TempDir(), time.Hour)
	for _, q := range []*pluginapi.RegisterRequest{
		{Version: "v2", Endpoint: "a.sock", ResourceName: gpus},
		{Version: pluginapi.Version, Endpoint: "a.sock", ResourceName: "cpu"},
		{Version: pluginapi.Version, Endpoint: "a.sock", ResourceName: "kubernetes.io/gpu"},
		{Version: pluginapi.Version, Endpoint: "../a.sock", ResourceName: gpus},
		{Version: pluginapi.Version, Endpoint: "kubelet.sock", ResourceName: gpus},
		{Version: pluginapi.Version, ResourceName: gpus},
	} {
		if err := node.register(q); err == nil {
			t.Errorf("%v is taken up", q)
		}
	}
	f := node.serve(&fake{answers: 2}, "gpu.sock")
	f.lists <- devices("a", "b")
	node.waitForResources("2 2")
	if err := node.Allocate(t.Context(), pod("p", container("main", 1))); err == nil ||
		!strings.Contains(err.Error(), "for 2 containers") {
		t.Errorf("an answer for two: %v", err)
	}
	f.answers = 1
	f.fails = errors.New("no")
	if err := node.Allocate(t.Context(), pod("p", container("main", 2))); err == nil ||
		!strings.HasSuffix(err.Error(), "desc = no") {
		t.Errorf("an error: %v", err)
	}
	f.fails = nil
	if err := node.Allocate(t.Context(), pod("q", container("main", 2))); err != nil {
		t.Errorf("what failed has kept devices: %v", err)
	}
	many := make([]string, maxDevices+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	f.lists <- devices(many...)
	node.waitForResources("2 0")
}

// TestManyPods: no device goes to two pods.
func TestManyPods(t *testing.T) {
	node := newNode(t, t.TempDir(), time.Hour)
	var ids []string
	for i := range 40 {
		ids = append(ids, fmt.Sprint("d", i))
	}
	node.serve(&fake{prefer: []string{"d1", "d2"}}, "gpu.sock").lists <- devices(ids...)
	node.waitForResources("40 40")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := node.Allocate(t.Context(),
				pod(fmt.Sprint("p", i), container("a", 1), container("b", 1))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	had := map[string]string{}
	for uid, r := range node.pods {
		for _, list := range r.Containers {
			for _, id := range list[0].IDs {
				if had[id] != "" {
					t.Errorf("%s is of %s and %s", id, had[id], uid)
				}
				had[id] = uid
			}
		}
	}
	if len(had) != 40 {
		t.Errorf("%d devices are given", len(had))
	}
}
