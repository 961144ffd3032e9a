// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/client/clienttest"
	"keelson/kubelet/dra/dratest"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

const gpus = "gpus.example.com"

// node is a kubelet's directory with a driver, a manager, and what follows its sockets.
type node struct {
	t      *testing.T
	dir    string
	api    *fake.Clientset
	driver *dratest.Driver
	*Manager
	woken   chan string
	changed chan string // pods whose devices' health has
	stopped func()      // the driver
}

func newNode(t *testing.T, objs ...runtime.Object) *node {
	t.Helper()
	n := &node{
		t:       t,
		dir:     t.TempDir(),
		api:     clienttest.New(objs...),
		woken:   make(chan string, 100),
		changed: make(chan string, 100),
	}
	for _, d := range []string{"plugins", "plugins_registry", "cdi"} {
		if err := os.Mkdir(filepath.Join(n.dir, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	n.driver = &dratest.Driver{
		Name:    gpus,
		Kubelet: n.dir,
		Named:   rootdir.Standard,
		CDI:     filepath.Join(n.dir, "cdi"),
		Claim: func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			return n.api.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
	n.restart()
	return n
}

// restart is another life of the kubelet.
func (n *node) restart() {
	n.t.Helper()
	n.Manager = New(Config{
		Dir:           rootdir.Dir(n.dir),
		Plugins:       filepath.Join(n.dir, "plugins_registry"),
		NodeName:      "n",
		API:           n.api,
		Log:           slog.New(slog.DiscardHandler),
		Wake:          func(uid string) { n.woken <- uid },
		HealthChanged: func(uid string) { n.changed <- uid },
	})
	if err := n.Load(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) info() plugin.Info {
	i, err := n.driver.GetInfo(n.t.Context(), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return plugin.Info{
		Socket:   gpus + "-reg.sock",
		Name:     i.GetName(),
		Endpoint: i.GetEndpoint(),
		Versions: i.GetSupportedVersions(),
	}
}

// serve starts the driver and registers it.
func (n *node) serve() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	done := make(chan error, 1)
	n.driver.Ready = make(chan struct{})
	go func() { done <- n.driver.Serve(ctx) }() // ends with the test
	select {
	case <-n.driver.Ready:
	case err := <-done:
		n.t.Fatal(err)
	}
	n.stopped = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(n.stopped)
	if err := n.Register(n.t.Context(), n.info()); err != nil {
		n.t.Fatal(err)
	}
}

func pod(name string, claims ...string) *corev1.Pod {
	p := apitest.Pod("dev/"+name, apitest.UID("pod-"+name))
	container := corev1.Container{Name: "c"}
	for _, of := range claims {
		of, request, _ := strings.Cut(of, "/")
		if !slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == of }) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{
				Name:              of,
				ResourceClaimName: &of,
			})
		}
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{
			Name:    of,
			Request: request,
		})
	}
	p.Spec.Containers = []corev1.Container{container}
	return p
}

// claimed has devices for its requests, and is reserved for pods.
func claimed(name, requests string, users ...string) *resourcev1.ResourceClaim {
	resourceClaim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: types.UID("uid-" + name)},
	}
	resourceClaim.Status.Allocation = &resourcev1.AllocationResult{}
	for r := range strings.FieldsSeq(requests) {
		resourceClaim.Status.Allocation.Devices.Results = append(
			resourceClaim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
				Request: r,
				Driver:  gpus,
				Pool:    "n",
				Device:  "gpu-" + r,
			})
	}
	for _, u := range users {
		resourceClaim.Status.ReservedFor = append(
			resourceClaim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods",
				Name:     u,
				UID:      types.UID("pod-" + u),
			})
	}
	return resourceClaim
}

func (n *node) expectCalls(want ...string) {
	n.t.Helper()
	if got := n.driver.Calls(); !slices.Equal(got, want) {
		n.t.Errorf("the driver was asked %q, want %q", got, want)
	}
}

func (n *node) expectCDIDevices(p *corev1.Pod, want ...string) {
	n.t.Helper()
	got, err := n.CDIDeviceIDs(n.t.Context(), p, &p.Spec.Containers[0])
	if err != nil || !slices.Equal(got, want) {
		n.t.Errorf("pod %s: devices %q, %v, want %q", p.Name, got, err, want)
	}
}

// TestSharedClaim: a claim that two pods share is prepared once, survives the kubelet, is prepared again for a pod of
// the next life, and is given back with the second pod.
func TestSharedClaim(t *testing.T) {
	a := pod("a", "c/x")
	b := pod("b", "c")
	node := newNode(t, claimed("c", "x y", "a", "b"))
	node.serve()
	for _, p := range []*corev1.Pod{a, b, a} {
		if err := node.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	node.expectCalls("prepare c")
	node.expectCDIDevices(a, gpus+"/claim=uid-c-0")
	node.expectCDIDevices(b, gpus+"/claim=uid-c-0", gpus+"/claim=uid-c-1")
	node.restart()
	if got := node.Pods(); !slices.Equal(got, []string{"pod-a", "pod-b"}) {
		t.Errorf("after a restart %q use claims", got)
	}
	node.expectCDIDevices(a, gpus+"/claim=uid-c-0") // a container that starts again, its driver is not there yet
	node.expectCalls()
	if err := node.Register(t.Context(), node.info()); err != nil {
		t.Fatal(err)
	}
	if err := node.Prepare(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	node.expectCalls("prepare c")
	for range 2 {
		if err := node.Unprepare(t.Context(), "pod-a"); err != nil {
			t.Fatal(err)
		}
	}
	node.expectCalls()
	node.expectCDIDevices(b, gpus+"/claim=uid-c-0", gpus+"/claim=uid-c-1")
	if err := node.Unprepare(t.Context(), "pod-b"); err != nil {
		t.Fatal(err)
	}
	node.expectCalls("unprepare c")
	left, err := os.ReadDir(filepath.Join(node.dir, recordsDir))
	if err != nil || len(left) > 0 || len(node.claims) > 0 {
		t.Errorf("left: %v %v %v", left, node.claims, err)
	}
}

// TestClaimsOfContainers: the PodResources API gets the devices of each container's prepared claims.
func TestClaimsOfContainers(t *testing.T) {
	p := pod("p", "c/x", "c/z", "late")
	shared := claimed("c", "x y z", "p")
	shared.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("share"))
	node := newNode(t, shared)
	if got := node.Claims(p, &p.Spec.Containers[0]); got != nil {
		t.Errorf("before it is prepared: %v", got)
	}
	node.serve()
	if err := node.Prepare(t.Context(), pod("p", "c")); err != nil {
		t.Fatal(err)
	}
	node.restart()
	want := []Claim{{
		Namespace: "dev",
		Name:      "c",
		Devices: []Device{
			{Driver: gpus, Pool: "n", Name: "gpu-x", ShareID: new("share"), CDI: []string{gpus + "/claim=uid-c-0"}},
			{Driver: gpus, Pool: "n", Name: "gpu-z", CDI: []string{gpus + "/claim=uid-c-2"}},
		},
	}}
	if diff := cmp.Diff(want, node.Claims(p, &p.Spec.Containers[0])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := node.Claims(pod("other", "c"), &p.Spec.Containers[0]); got != nil {
		t.Errorf("a pod that does not use the claim: %v", got)
	}
}

// TestMetrics: operations, calls and claims are counted under Kubernetes' names.
func TestMetrics(t *testing.T) {
	node := newNode(t, claimed("c", "x", "p"), claimed("d", "x", "p"))
	counted := func() map[string]float64 {
		r := prometheus.NewRegistry()
		r.MustRegister(node.Manager)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := f.GetName()
				for _, l := range m.GetLabel() {
					key += " " + l.GetValue()
				}
				out[key] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return out
	}
	p := pod("p", "c", "d")
	if err := node.Prepare(t.Context(), pod("plain")); err != nil {
		t.Fatal(err)
	}
	if err := node.Prepare(t.Context(), p); err == nil {
		t.Fatal("prepared without a driver")
	}
	node.serve()
	if err := node.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"dra_operations_duration_seconds true PrepareResources":  1,
		"dra_operations_duration_seconds false PrepareResources": 1,
		"dra_grpc_operations_duration_seconds gpus.example.com OK " +
			"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": 2,
		"dra_resource_claims_in_use <any>":            2,
		"dra_resource_claims_in_use gpus.example.com": 2,
	}
	if diff := cmp.Diff(want, counted()); diff != "" {
		t.Errorf("prepared (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := node.Unprepare(t.Context(), "pod-p"); err != nil {
			t.Fatal(err)
		}
	}
	delete(want, "dra_resource_claims_in_use gpus.example.com")
	want["dra_resource_claims_in_use <any>"] = 0
	want["dra_operations_duration_seconds false UnprepareResources"] = 1
	want["dra_grpc_operations_duration_seconds gpus.example.com OK "+
		"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"] = 2
	if diff := cmp.Diff(want, counted()); diff != "" {
		t.Errorf("given back (-want +got):\n%s", diff)
	}
}

// TestOldDriver: a driver that has v1beta1 of the API only is registered, and called by that.
func TestOldDriver(t *testing.T) {
	p := pod("p", "c")
	node := newNode(t, claimed("c", "x", "p"))
	node.driver.Old = true
	node.serve()
	if err := node.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	node.expectCalls("prepare c")
	node.expectCDIDevices(p, gpus+"/claim=uid-c-0")
	if err := node.Unprepare(t.Context(), "pod-p"); err != nil {
		t.Fatal(err)
	}
	node.expectCalls("unprepare c")
}

// TestRefused: a pod that may not have the devices does not get them, and no driver is asked.
func TestRefused(t *testing.T) {
	free := claimed("free", "x", "p")
	free.Status.Allocation = nil
	for _, tt := range []struct {
		claim *resourcev1.ResourceClaim
		want  string
	}{
		{claimed("c", "x", "other"), "pod p (pod-p) is not allowed to use ResourceClaim c (uid-c)"},
		{free, "ResourceClaim free is not allocated"},
		{claimed("", "x"), `resourceclaims.resource.k8s.io "" not found`},
	} {
		node := newNode(t)
		if tt.claim.Name != "" {
			if err := node.api.Tracker().Add(tt.claim); err != nil {
				t.Fatal(err)
			}
		}
		node.serve()
		err := node.Prepare(t.Context(), pod("p", tt.claim.Name))
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.HasPrefix(err.Error(), "prepare dynamic resources: ") {
			t.Errorf("got %v, want %s", err, tt.want)
		}
		node.expectCalls()
	}
}

// TestDriverFailures: a driver that is not there or fails is asked again; a claim that it may have begun is given back.
func TestDriverFailures(t *testing.T) {
	p := pod("p", "c")
	node := newNode(t, claimed("c", "x", "p"))
	fails := true
	node.driver.Fail = func(call, name string) error {
		if fails {
			return errors.New("the gpu is hot")
		}
		return nil
	}
	if err := node.Prepare(t.Context(), p); err == nil ||
		!strings.Contains(err.Error(), "DRA driver gpus.example.com is not registered") {
		t.Errorf("without a driver: %v", err)
	}
	if err := node.Unprepare(t.Context(), "pod-p"); err != nil || len(node.Pods()) != 0 {
		t.Errorf("a pod that has nothing yet cannot go without the driver: %v", err)
	}
	if err := node.Prepare(t.Context(), p); err == nil {
		t.Error("prepared without a driver")
	}
	node.serve()
	if got := <-node.woken; got != "pod-p" {
		t.Errorf("woken: %s", got)
	}
	if err := node.Prepare(t.Context(), p); err == nil ||
		!strings.Contains(err.Error(), "NodePrepareResources failed for ResourceClaim c: the gpu is hot") {
		t.Errorf("a hot driver: %v", err)
	}
	if _, err := node.CDIDeviceIDs(t.Context(), p, &p.Spec.Containers[0]); err == nil {
		t.Error("a container got devices")
	}
	if err := node.Unprepare(t.Context(), "pod-p"); err == nil || len(node.Pods()) != 1 {
		t.Errorf("given back: %v", err)
	}
	fails = false
	node.driver.Calls()
	if err := node.Unprepare(t.Context(), "pod-p"); err != nil || len(node.Pods()) != 0 {
		t.Errorf("given back: %v", err)
	}
	node.expectCalls("unprepare c")
}

// TestAnotherOfTheName: while the old claim of a name is not given back the new one waits.
func TestAnotherOfTheName(t *testing.T) {
	node := newNode(t, claimed("c", "x", "p"))
	node.serve()
	if err := node.Prepare(t.Context(), pod("p", "c")); err != nil {
		t.Fatal(err)
	}
	other := claimed("c", "x", "q")
	other.UID = "another"
	if err := node.api.Tracker().Update(resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), other,
		"dev"); err != nil {
		t.Fatal(err)
	}
	if err := node.Prepare(t.Context(), pod("q", "c")); err == nil ||
		!strings.Contains(err.Error(), "old ResourceClaim with same name c and different UID uid-c still exists") {
		t.Errorf("got %v", err)
	}
}

// TestOtherDevices: a claim that got other devices, since its pod was deleted by force, does not open the former ones
// to its next pod.
func TestOtherDevices(t *testing.T) {
	node := newNode(t, claimed("c", "x", "p"))
	node.serve()
	if err := node.Prepare(t.Context(), pod("p", "c")); err != nil {
		t.Fatal(err)
	}
	other := claimed("c", "x", "q")
	other.Status.Allocation.Devices.Results[0].Device = "another"
	if err := node.api.Tracker().Update(resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), other,
		"dev"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := node.Prepare(t.Context(), pod("q", "c")); err == nil ||
			!strings.Contains(err.Error(), "ResourceClaim c has other devices by now") {
			t.Errorf("got %v", err)
		}
		node.restart()
		if err := node.Register(t.Context(), node.info()); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Unprepare(t.Context(), "pod-p"); err != nil {
		t.Fatal(err)
	}
	if err := node.Prepare(t.Context(), pod("q", "c")); err != nil {
		t.Error(err)
	}
	node.expectCalls("prepare c", "unprepare c", "prepare c")
}

// TestRegister: a plugin that is not a DRA driver is refused.
func TestRegister(t *testing.T) {
	node := newNode(t)
	for _, tt := range []struct {
		change func(*plugin.Info)
		want   string
	}{
		{func(i *plugin.Info) { i.Name = "../x" }, "is no name of a DRA driver"},
		{
			func(i *plugin.Info) { i.Versions = []string{"v1alpha4.DRAPlugin"} },
			"none of services supported by the plugin",
		},
		{func(i *plugin.Info) { i.Endpoint = "/etc/x.sock" }, "is not below the kubelet's directory"},
	} {
		i := node.info()
		tt.change(&i)
		if err := node.Register(t.Context(), i); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %s", i, err, tt.want)
		}
	}
}

// TestDamaged: a record that cannot be read, or leads elsewhere, is left alone.
func TestDamaged(t *testing.T) {
	node := newNode(t)
	if err := os.Mkdir(filepath.Join(node.dir, recordsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"a.json":     "{",
		"b.json":     `{"uid": "../x", "namespace": "n", "name": "m"}`,
		"c.json":     `{"uid": "c"}`,
		"d.json.new": "",
		"e.json":     `{"uid": "f", "namespace": "n", "name": "m"}`,
	} {
		if err := os.WriteFile(filepath.Join(node.dir, recordsDir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, damaged, err := load(rootdir.Dir(node.dir))
	slices.Sort(damaged)
	if err != nil || len(found) != 0 || strings.Join(damaged, " ") != "a.json b.json c.json e.json" {
		t.Errorf("found %v, damaged %v, %v", found, damaged, err)
	}
	node.restart()
}

// TestSlices: the slices of a driver that has gone, or that does not come, are deleted after a time; those of one that
// comes back are not.
func TestSlices(t *testing.T) {
	slice := func(driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec:       resourcev1.ResourceSliceSpec{Driver: driver, NodeName: new("n")},
		}
	}
	node := newNode(t, slice("never.example.com"), slice(gpus))
	node.cfg.WipingDelay = 100 * time.Millisecond
	deleted := make(chan string, 10)
	node.api.PrependReactor("delete-collection", "resourceslices", func(
		a clienttesting.Action,
	) (bool, runtime.Object, error) {
		d, ok := a.(clienttesting.DeleteCollectionActionImpl)
		if !ok {
			t.Errorf("%T", a)
		}
		deleted <- d.ListOptions.FieldSelector
		return true, nil, nil
	})
	node.serve()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		node.Run(ctx)
		close(done)
	}() // ends with ctx
	if got := <-deleted; got != "spec.driver=never.example.com,spec.nodeName=n" {
		t.Errorf("first %s", got)
	}
	node.Unregister(t.Context(), node.info())
	if got := <-deleted; got != "spec.driver=gpus.example.com,spec.nodeName=n" {
		t.Errorf("then %s", got)
	}
	cancel()
	<-done
	back := newNode(t)
	back.serve()
	back.Unregister(t.Context(), back.info())
	if len(back.unregistered) != 1 {
		t.Errorf("of a driver that has gone: %v", back.unregistered)
	}
	if err := back.Register(t.Context(), back.info()); err != nil || len(back.unregistered) != 0 {
		t.Errorf("of a driver that came back: %v %v", back.unregistered, err)
	}
}
