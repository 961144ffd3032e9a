// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/cri"
	"keelson/cri/critest"
)

const name = "node-1"

func keeper(t *testing.T, api *fake.Clientset, rt *critest.Fake) *Keeper {
	t.Helper()
	self, err := Look(name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return New(self, Config{
		Client:  &client.Client{Interface: client.Plain(api)},
		Runtime: cri.InProcess(rt),
		Events:  record.NewFakeRecorder(100),
		Log:     slog.New(slog.DiscardHandler),
		Wanted: Wanted{
			Hostname: name,
			IPs:      []string{"10.0.0.1", "fd00::1"},
			PodCIDRs: []string{"10.1.0.0/24", "fd01::/64"},
			Labels:   map[string]string{"mine": "new"},
		},
		MaxPods:  110,
		Register: true,
		Version:  "v1.37.2+keelson",
	})
}

func registered(t *testing.T, k *Keeper) *corev1.Node {
	t.Helper()
	if err := k.Register(t.Context(), 10250); err != nil {
		t.Fatal(err)
	}
	n, err := k.cfg.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRegisterTakesOver: of an object from an earlier life the kubelet changes what is its own, and leaves what others
// wrote.
func TestRegisterTakesOver(t *testing.T) {
	api := clienttest.New(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{"mine": "old", "theirs": "kept"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.9.0.0/24", PodCIDRs: []string{"10.9.0.0/24"}, Unschedulable: true},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{
				"example.com/gpu":     resource.MustParse("2"),
				"example.com/bogus/x": resource.MustParse("1"),
			},
			Conditions: []corev1.NodeCondition{
				{Type: "Theirs", Status: corev1.ConditionTrue},
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown},
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.99"}},
		},
	})
	node := registered(t, keeper(t, api, critest.NewFake()))
	if node.Labels["mine"] != "new" || node.Labels["theirs"] != "kept" || node.Labels[corev1.LabelHostname] != name {
		t.Errorf("labels: %v", node.Labels)
	}
	if node.Spec.PodCIDR != "10.9.0.0/24" || !node.Spec.Unschedulable {
		t.Errorf("spec: %+v, want the pod range and the cordon that it had", node.Spec)
	}
	want := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}, {
			Type:    corev1.NodeHostName,
			Address: name,
		},
	}
	if diff := cmp.Diff(want, node.Status.Addresses); diff != "" {
		t.Errorf("addresses: %s", diff)
	}
	if conditionOf(&node.Status, "Theirs") != corev1.ConditionTrue ||
		conditionOf(&node.Status, corev1.NodeReady) != corev1.ConditionTrue {
		t.Errorf("conditions: %+v", node.Status.Conditions)
	}
	if gpus := node.Status.Allocatable["example.com/gpu"]; gpus.Value() != 2 {
		t.Errorf("allocatable extended resources: %v, want those of the capacity", node.Status.Allocatable)
	}
}

// TestNotReady: a node whose runtime is down or not ready says so in the kubelet's words, and a status that says
// nothing new is not written.
func TestNotReady(t *testing.T) {
	rt := critest.NewFake()
	api := clienttest.New()
	k := keeper(t, api, rt)
	registered(t, k)
	ready := func() corev1.NodeCondition {
		t.Helper()
		if err := k.write(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		for _, c := range k.Node().Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c
			}
		}
		t.Fatal("no condition Ready")
		return corev1.NodeCondition{}
	}
	rt.SetNotReady("it rests")
	want := "container runtime not ready: RuntimeReady=false reason:FakeNotReady message:it rests"
	if c := ready(); c.Status != corev1.ConditionFalse || c.Reason != "KubeletNotReady" || c.Message != want {
		t.Errorf("runtime not ready: %+v", c)
	}
	rt.FailNext("Version", errors.New("no socket"))
	if c := ready(); !strings.HasPrefix(c.Message, "container runtime is down: ") ||
		!strings.Contains(c.Message, "no socket") {
		t.Errorf("runtime down: %+v", c)
	}
	rt.SetNotReady("")
	if c := ready(); c.Status != corev1.ConditionTrue || c.Reason != "KubeletReady" {
		t.Errorf("runtime well again: %+v", c)
	}
	api.ClearActions()
	if ready(); len(api.Actions()) > 0 {
		t.Errorf("a status without a change was written: %v", api.Actions())
	}
}

// TestLease: the lease is renewed at its interval, tried again after a second when that fails, made again when a client
// deletes it, and belongs to the Node object.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := clienttest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}})
		var fails atomic.Bool
		api.PrependReactor("update", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return fails.Load(), nil, apierrors.NewTimeoutError("busy", 1)
		})
		k := keeper(t, api, critest.NewFake())
		registered(t, k)
		leases := api.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			k.leases(ctx)
		}()
		age := func() time.Duration {
			t.Helper()
			l, err := leases.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if *l.Spec.HolderIdentity != name || *l.Spec.LeaseDurationSeconds != leaseSeconds ||
				len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != "u" {
				t.Fatalf("lease: %+v", l)
			}
			return time.Since(l.Spec.RenewTime.Time)
		}
		after := func(d, want time.Duration, what string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := age(); got.Round(time.Millisecond) != want {
				t.Errorf("%s: the lease is %v old, want %v", what, got, want)
			}
		}
		after(0, 0, "at the start")
		after(9*time.Second, 9*time.Second, "before the interval is over")
		after(time.Second, 0, "after the interval")
		fails.Store(true)
		after(10500*time.Millisecond, 10500*time.Millisecond, "the API server is busy")
		fails.Store(false)
		after(500*time.Millisecond, 0, "the API server answers again")
		if err := leases.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(11*time.Second, 0, "a client deleted the lease")
		k.removed.Store(true)
		after(time.Minute, time.Minute, "the node was removed from the cluster")
		stop()
		<-ended
	})
}

// TestComesBack: others' Ready=Unknown is repaired in the first write, whatever the kubelet remembers of the node: the
// watch has not delivered it, and the write is due to something else. What others own stays.
func TestComesBack(t *testing.T) {
	rt := critest.NewFake()
	api := strict(clienttest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}))
	k := keeper(t, api, rt)
	node := registered(t, k)
	node.Status.Conditions = slices.Clone(node.Status.Conditions)
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].Status = corev1.ConditionUnknown
	}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: "Theirs", Status: "True"})
	node.ResourceVersion = "7"
	if err := api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
		t.Fatal(err)
	}
	k.cfg.Wanted.Hostname = "another"
	if err := k.write(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	got, err := api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady:          corev1.ConditionTrue,
		corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure:   corev1.ConditionFalse,
		corev1.NodePIDPressure:    corev1.ConditionFalse,
		"Theirs":                  corev1.ConditionTrue,
	} {
		if is := conditionOf(&got.Status, kind); is != want {
			t.Errorf("%s: got %s, want %s", kind, is, want)
		}
		if is := conditionOf(&k.Node().Status, kind); is != want {
			t.Errorf("%s as the kubelet remembers it: got %s, want %s", kind, is, want)
		}
	}
}

// TestBackAfterSilence: when the API server was away, the first renewal of the lease looks at the node, and the status
// is written although nothing of it has changed here.
func TestBackAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := clienttest.New()
		var away atomic.Bool
		api.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("connection refused")
		})
		k := keeper(t, api, critest.NewFake())
		back := 0
		k.cfg.Back = func(context.Context) { back++ }
		node := registered(t, k)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.leases(ctx) })
		running.Go(func() { k.statuses(ctx) })
		synctest.Wait()
		away.Store(true)
		time.Sleep(2 * time.Minute)
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
		if err := api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
			t.Fatal(err)
		}
		away.Store(false)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		got, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if is := conditionOf(&got.Status, corev1.NodeReady); is != corev1.ConditionTrue {
			t.Errorf("Ready %s a second after the server is back, want True", is)
		}
		time.Sleep(time.Minute)
		stop()
		running.Wait()
		if back != 1 {
			t.Errorf("Back was called %d times, want once", back)
		}
	})
}

// strict lets api refuse patches for another version, as an API server does.
func strict(api *fake.Clientset) *fake.Clientset {
	api.PrependReactor("patch", "nodes", func(action k8stesting.Action) (bool, runtime.Object, error) {
		var body corev1.Node
		patch := action.(k8stesting.PatchAction)
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
			return true, nil, err
		}
		there, err := api.Tracker().Get(patch.GetResource(), "", patch.GetName())
		if err != nil {
			return true, nil, err
		}
		if is := there.(*corev1.Node).ResourceVersion; body.ResourceVersion != "" && body.ResourceVersion != is {
			return true, nil, apierrors.NewConflict(patch.GetResource().GroupResource(), name, errors.New("changed"))
		}
		return false, nil, nil
	})
	return api
}

// TestGone: a Node object that was deleted is made again, unless the node was removed for good.
func TestGone(t *testing.T) {
	api := clienttest.New()
	k := keeper(t, api, critest.NewFake())
	node := registered(t, k)
	k.gone(node)
	if k.Node() != nil || k.removed.Load() {
		t.Errorf("deleted: still known %v, removed %v", k.Node() != nil, k.removed.Load())
	}
	leaving := node.DeepCopy()
	leaving.Annotations = map[string]string{AnnotationRemoved: "true"}
	k.gone(leaving)
	if !k.removed.Load() {
		t.Error("removed for good: it would be made again")
	}
	k.observe(node)
	if k.removed.Load() || k.Node() == nil {
		t.Error("an administrator made the Node object again: the kubelet does not take it")
	}
	k.gone(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	if k.Node() == nil {
		t.Error("another node's end was taken for its own")
	}
}

// TestOlderAnswers: what the watch delivered is not replaced by an older answer to a write.
func TestOlderAnswers(t *testing.T) {
	version := func(v string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: v}}
	}
	k := keeper(t, clienttest.New(), critest.NewFake())
	k.observe(version("9"))
	k.written(version("10"))
	k.observe(version("9"))
	k.written(version("8"))
	if got := k.Node().ResourceVersion; got != "10" {
		t.Errorf("known version: %s, want 10", got)
	}
	k.gone(version("10"))
	if k.written(version("11")); k.Node() != nil {
		t.Error("the answer to a write brought back a Node object that is gone")
	}
}

func TestAllocatable(t *testing.T) {
	machine := Machine{
		CPUs:      2,
		Memory:    8 << 30,
		Storage:   100 << 30,
		HugePages: map[string]int64{"2Mi": 1 << 30},
	}
	list := func(cpu, memory, disk string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse(cpu),
			corev1.ResourceMemory:           resource.MustParse(memory),
			corev1.ResourceEphemeralStorage: resource.MustParse(disk),
		}
	}
	got := machine.Allocatable(110, list("500m", "1Gi", "200Gi"), corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("100Mi"),
	})
	want := list("1500m", "6044Mi", "0") // huge pages are not memory for others
	want[corev1.ResourcePods] = resource.MustParse("110")
	want["hugepages-2Mi"] = resource.MustParse("1Gi")
	if len(got) != len(want) {
		t.Errorf("resources: got %v", got)
	}
	for name, q := range want {
		if g := got[name]; g.Cmp(q) != 0 {
			t.Errorf("%s: got %v, want %v", name, &g, &q)
		}
	}
	if all := machine.Capacity(110); all.StorageEphemeral().String() != "107374182400" {
		t.Errorf("storage is written as %v, want bytes", all.StorageEphemeral())
	}
}

// TestHandlersAreSorted: the order in which a runtime lists its handlers does not change the node's status.
func TestHandlersAreSorted(t *testing.T) {
	var got []string
	for _, h := range handlers(&runtimeapi.StatusResponse{
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runsc"}, {Name: ""}, {Name: "kata"}},
	}) {
		got = append(got, h.Name)
	}
	if want := []string{"", "kata", "runsc"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReplaceAddresses(t *testing.T) {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"}}
	for in, want := range map[string]string{
		`{"status":{"phase":"x"}}`:                             `{"status":{"phase":"x"}}`,
		`{"status":{"addresses":[{"type":"Hostname"}],"b":1}}`: `{"status":{"addresses":[{"$patch":"replace"},{"address":"a","type":"Hostname"}],"b":1}}`,
		`{"status":{"$setElementOrder/addresses":[{}]}}`:       `{"status":{"addresses":[{"$patch":"replace"},{"address":"a","type":"Hostname"}]}}`,
	} {
		got, err := replaceAddresses([]byte(in), addresses)
		var g, w any
		if err = errors.Join(err, json.Unmarshal(got, &g), json.Unmarshal([]byte(want), &w)); err != nil ||
			!cmp.Equal(g, w) {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	if _, err := replaceAddresses([]byte("["), addresses); err == nil {
		t.Error("a patch that is no JSON passes")
	}
}
