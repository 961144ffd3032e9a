// SPDX-License-Identifier: Apache-2.0

package podsapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"keelson/api/apitest"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// node has the pods that a test sets.
type node struct {
	mu      sync.Mutex
	ready   bool
	pods    []*corev1.Pod
	changed chan struct{}
}

func (n *node) Ready() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

func (n *node) All() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *node) set(pods ...*corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = true
	n.pods = pods
	close(n.changed)
	n.changed = make(chan struct{})
}

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return apitest.Pod("ns/"+name, apitest.UID("uid-"+name), apitest.Phase(phase))
}

// serve runs a server until the test ends.
func serve(t *testing.T, n *node) (podsv1alpha1.PodsClient, *Server) {
	t.Helper()
	dir := t.TempDir()
	server := New(rootdir.Dir(dir), n)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }() // ends with ctx
	conn, err := plugin.Dial(dir, socketDir+"/"+socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return podsv1alpha1.NewPodsClient(conn), server
}

func decode(t *testing.T, b []byte) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := p.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAnswers: the pods are listed, and each is found by its UID; nothing is answered before the pods are known.
func TestAnswers(t *testing.T) {
	node := &node{changed: make(chan struct{})}
	client, server := serve(t, node)
	_, err := client.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}, grpc.WaitForReady(true))
	if grpcstatus.Code(err) != codes.FailedPrecondition {
		t.Errorf("before the pods are known: %v", err)
	}
	node.set(pod("one", corev1.PodRunning), pod("two", corev1.PodPending))
	list, err := client.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	if err != nil || len(list.GetPods()) != 2 || decode(t, list.GetPods()[0]).Status.Phase != corev1.PodRunning {
		t.Errorf("list: %v, %v", list, err)
	}
	got, err := client.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "uid-two"})
	if err != nil || decode(t, got.GetPod()).Name != "two" {
		t.Errorf("get: %v, %v", got, err)
	}
	for _, uid := range []string{"", "uid-three"} {
		_, err := client.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: uid})
		if grpcstatus.Code(err) != codes.NotFound {
			t.Errorf("get %q: %v, want NotFound", uid, err)
		}
	}
	want := map[string]float64{
		"total FailedPrecondition":      1,
		"total OK":                      2,
		"total NotFound":                2,
		"list_total FailedPrecondition": 1,
		"list_total OK":                 1,
		"get_total OK":                  1,
		"get_total NotFound":            2,
	}
	if diff := cmp.Diff(want, counted(t, server)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// counted are the metrics, as "name code".
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
			name := strings.TrimPrefix(f.GetName(), "kubelet_pod_requests_")
			out[name+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}

// TestWatch: a watcher gets the pods, the mark behind them, and each change.
func TestWatch(t *testing.T) {
	node := &node{changed: make(chan struct{})}
	one := pod("one", corev1.PodPending)
	node.set(one)
	client, _ := serve(t, node)
	stream, err := client.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetPod() == nil {
			return e.GetType().String()
		}
		p := decode(t, e.GetPod())
		return fmt.Sprintf("%s %s %s", e.GetType(), p.Name, p.Status.Phase)
	}
	want := func(events ...string) {
		t.Helper()
		for _, w := range events {
			if got := next(); got != w {
				t.Errorf("got %q, want %q", got, w)
			}
		}
	}
	want("ADDED one Pending", "INITIAL_SYNC_COMPLETE")
	node.set(one.DeepCopy()) // nothing has changed
	node.set(pod("one", corev1.PodRunning))
	want("MODIFIED one Running")
	node.set(pod("two", corev1.PodPending))
	want("ADDED two Pending", "DELETED one ")
}

// TestRate: requests above the rate are rejected.
func TestRate(t *testing.T) {
	node := &node{changed: make(chan struct{})}
	node.set()
	server := New(rootdir.Dir(t.TempDir()), node)
	server.limiter.SetLimit(0)
	server.limiter.SetBurst(1)
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if _, err := server.ListPods(t.Context(), nil); grpcstatus.Code(err) != want {
			t.Errorf("request %d: %v, want %v", i, err, want)
		}
	}
}
