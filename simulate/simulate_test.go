// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/client/clienttest"
	kubeletnode "keelson/kubelet/node"
)

func run(t *testing.T, f kubernetes.Interface, cfg Config) {
	t.Helper()
	cfg.Client = &client.Client{Interface: client.Plain(f)}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- s.Run(ctx, func() { close(ready) }) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("ended before it was ready: %v", err)
	}
}

func pod(name, node string, f ...func(*corev1.Pod)) *corev1.Pod {
	return apitest.Pod(name, append([]func(*corev1.Pod){
		apitest.UID("u"), apitest.On(node), apitest.Phase(corev1.PodPending), apitest.Containers("init:init", "c"),
		func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways },
	}, f...)...)
}

func TestNodesAndPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "fake-7", Labels: map[string]string{LabelType: TypeFake}},
			Spec:       corev1.NodeSpec{ProviderID: "fake://fake-7"},
		}
		clientset := clienttest.New(old, pod("other", "node-1"), pod("a", "fake-1"))
		run(t, clientset, Config{Nodes: 3})
		nodes, err := clientset.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(nodes.Items) != 3 || nodes.Items[0].Name != "fake-0" || !isReady(&nodes.Items[0]) ||
			len(nodes.Items[0].Spec.Taints) != 1 {
			t.Errorf("nodes: got %d, first %+v", len(nodes.Items), nodes.Items[0])
		}
		if l, err := clientset.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(t.Context(),
			metav1.ListOptions{}); err != nil || len(l.Items) != 3 {
			t.Errorf("leases: got %d, %v; want 3", len(l.Items), err)
		}
		time.Sleep(time.Second)
		p, err := clientset.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "10.128.1.1" ||
			len(p.Status.ContainerStatuses) != 1 || !p.Status.ContainerStatuses[0].Ready {
			t.Errorf("pod: got %+v, %v", p.Status, err)
		}
		if p, err = clientset.CoreV1().Pods("default").Get(t.Context(), "other", metav1.GetOptions{}); err != nil ||
			p.Status.Phase != corev1.PodPending {
			t.Errorf("another node's pod was touched: %v, %v", p.Status.Phase, err)
		}
		clientset.ClearActions()
		time.Sleep(time.Minute)
		if n := len(clientset.Actions()); n != 0 {
			t.Errorf("%d requests in an idle minute, want none", n)
		}
	})
}

// stuckStarts is a client whose writes of a pod's status wait for their context.
type stuckStarts struct{ *fake.Clientset }

func (s stuckStarts) CoreV1() corev1client.CoreV1Interface { return stuckCore{s.Clientset.CoreV1()} }

type stuckCore struct{ corev1client.CoreV1Interface }

func (s stuckCore) Pods(namespace string) corev1client.PodInterface {
	return stuckPods{s.CoreV1Interface.Pods(namespace)}
}

type stuckPods struct{ corev1client.PodInterface }

func (stuckPods) UpdateStatus(ctx context.Context, _ *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestDeletionsDoNotWaitForStarts: pods in deletion go, also while all workers are busy with pods that start.
func TestDeletionsDoNotWaitForStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []runtime.Object
		for i := range 2 * workers {
			pods = append(pods, pod(fmt.Sprintf("a-start-%d", i), "fake-0"))
		}
		clientset := clienttest.New(pods...)
		run(t, stuckStarts{clientset}, Config{Nodes: 1})
		time.Sleep(time.Second) // all workers wait
		going := pod("going", "fake-0", func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.Finalizers = []string{"x/y"}
		})
		if _, err := clientset.CoreV1().Pods("default").Create(t.Context(), going, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := clientset.CoreV1().Pods("default").Get(t.Context(), "going", metav1.GetOptions{}); !apierrors.IsNotFound(
			err) {
			t.Errorf("the deleted pod is still there: %v", err)
		}
	})
}

func TestDeletionAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once := func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Annotations = map[string]string{AnnotationRunFor: "30s", AnnotationExitCode: "3"}
		}
		going := func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.Finalizers = []string{"x/y"}
		}
		f := clienttest.New(pod("job", "fake-0", once), pod("going", "fake-0", going))
		run(t, f, Config{Nodes: 1, Untainted: true})
		time.Sleep(time.Second)
		if _, err := f.CoreV1().Pods("default").Get(t.Context(), "going", metav1.GetOptions{}); !apierrors.IsNotFound(
			err) {
			t.Errorf("a deleted pod is still there: %v", err)
		}
		phase := func() string {
			p, err := f.CoreV1().Pods("default").Get(t.Context(), "job", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			code := int32(-1)
			if s := p.Status.ContainerStatuses[0].State.Terminated; s != nil {
				code = s.ExitCode
			}
			return fmt.Sprint(p.Status.Phase, " ", code)
		}
		if got := phase(); got != "Running -1" {
			t.Errorf("at first: got %s", got)
		}
		time.Sleep(time.Minute)
		if got := phase(); got != "Failed 3" {
			t.Errorf("after its time: got %s", got)
		}
	})
}

func TestAddresses(t *testing.T) {
	addresses := newAddresses()
	addresses.keep(300, "10.129.44.1")
	seen := map[string]bool{"10.129.44.1": true}
	for range podsPerNode - 1 {
		ip := addresses.take(300)
		if seen[ip] {
			t.Fatalf("%s given twice", ip)
		}
		seen[ip] = true
	}
	addresses.release(300, "10.129.44.77")
	if ip := addresses.take(300); ip != "10.129.44.77" {
		t.Errorf("got %s, want the released one", ip)
	}
	for _, i := range []int{0, 255, 256, maxNodes - 1} {
		if got := nodeIP(i) + " " + podCIDR(i); len(got) < 10 {
			t.Errorf("node %d: %s", i, got)
		}
	}
	if got := podCIDR(maxNodes - 1); got != "10.255.255.0/24" {
		t.Errorf("last range: got %s", got)
	}
}

// TestNodesOfAnEarlierRunGo: fake nodes that no one simulates any more go with their pods, and no other node does.
func TestNodesOfAnEarlierRunGo(t *testing.T) {
	for name, left := range map[string]int{"none left": 0, "fewer": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientset := clienttest.New()
				ours := func(name string, change ...func(*corev1.Node)) {
					t.Helper()
					n := apitest.Node(name, apitest.NodeLabels(LabelType, TypeFake))
					n.Spec.ProviderID = "fake://" + name
					for _, c := range change {
						c(n)
					}
					if _, err := clientset.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					p := pod("on-"+name, name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
					if _, err := clientset.CoreV1().Pods("default").Create(t.Context(), p,
						metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				by := func(who string) func(*corev1.Node) {
					return func(n *corev1.Node) { n.Annotations = map[string]string{AnnotationBy: who} }
				}
				ours("fake-7")
				ours("named", by("keelson"))
				ours("of-another", by("bench"))
				ours("older-elsewhere")
				ours("fake-real", func(n *corev1.Node) { n.Spec.ProviderID = "" }, by("keelson"))
				ours("fake-cloud", func(n *corev1.Node) { n.Spec.ProviderID = "aws://i-1" }, by("keelson"))
				run(t, clientset, Config{Nodes: left})
				want := map[string]bool{
					"of-another":      true,
					"older-elsewhere": true,
					"fake-real":       true,
					"fake-cloud":      true,
				}
				if left > 0 {
					want["fake-0"] = true
				}
				time.Sleep(30 * time.Second)
				nodes, err := clientset.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				pods, err := clientset.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]bool{}
				for _, n := range nodes.Items {
					got[n.Name] = true
				}
				if !maps.Equal(got, want) || len(pods.Items) != 4 {
					t.Errorf("nodes %v with %d pods, want %v with 4", got, len(pods.Items), want)
				}
			})
		})
	}
}

// TestGivenUp: a node that lives says so when somebody has said that it is not known whether it does, as after an
// outage of the server. What others say of the node stays, also when they say it at the same time.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := clienttest.New()
		run(t, f, Config{Nodes: 1, Renew: 10 * time.Second})
		time.Sleep(time.Second)
		nodes := f.CoreV1().Nodes()
		n, err := nodes.Get(t.Context(), "fake-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown},
			{Type: "KernelDeadlock", Status: corev1.ConditionFalse},
		}
		const device = "example.com/device"
		n.Status.Capacity[device] = resource.MustParse("2")
		writes := 0
		f.PrependReactor("update", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			writes++
			if writes == 2 { // the simulator's first
				return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "fake-0", nil)
			}
			return false, nil, nil
		})
		if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n, err = nodes.Get(t.Context(), "fake-0", metav1.GetOptions{}); err != nil || !isReady(n) {
			t.Errorf("the node says %+v, %v; want it ready", n.Status.Conditions, err)
		}
		devices := n.Status.Capacity[device]
		if devices.Value() != 2 || len(n.Status.Conditions) != 5 {
			t.Errorf("what others said has gone: %v, %+v", n.Status.Capacity, n.Status.Conditions)
		}
	})
}

// TestSilence: a silent node renews nothing and leaves its pods as they are; when it is back both go on.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := clienttest.New(pod("a", "fake-0"))
		run(t, clientset, Config{Nodes: 2, Renew: 10 * time.Second})
		time.Sleep(time.Second)
		annotate := func(change func(map[string]string)) {
			n, err := clientset.CoreV1().Nodes().Get(t.Context(), "fake-0", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			change(n.Annotations)
			if _, err := clientset.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		renewed := func(node string) time.Time {
			l, err := clientset.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), node,
				metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return l.Spec.RenewTime.Time
		}
		annotate(func(a map[string]string) { a[AnnotationSilent] = "" })
		last := renewed("fake-0")
		p, err := clientset.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Conditions = withCondition(p.Status.Conditions, corev1.PodCondition{
			Type:   corev1.PodReady,
			Status: corev1.ConditionFalse,
		})
		if _, err := clientset.CoreV1().Pods("default").UpdateStatus(t.Context(), p,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := renewed("fake-0"); !got.Equal(last) {
			t.Errorf("silent, but renewed at %v after %v", got, last)
		}
		if got := renewed("fake-1"); time.Since(got) > 11*time.Second {
			t.Errorf("the other node last renewed at %v", got)
		}
		ready := func() corev1.ConditionStatus {
			p, err := clientset.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return podkind.Condition(p, corev1.PodReady).Status
		}
		if ready() != corev1.ConditionFalse {
			t.Error("the pod of a silent node became ready")
		}
		annotate(func(a map[string]string) { delete(a, AnnotationSilent) })
		if ready() != corev1.ConditionTrue || !renewed("fake-0").After(last) {
			t.Errorf("back: ready %s, renewed %v", ready(), renewed("fake-0"))
		}
	})
}

// TestFakeNodesTell: a node reports what becomes of it, once, and nothing when it begins.
func TestFakeNodesTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := clienttest.New()
		run(t, clientset, Config{Nodes: 2})
		time.Sleep(time.Second)
		events := func() (out []string) {
			l, err := clientset.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range l.Items {
				out = append(out, e.InvolvedObject.Kind+" "+e.Source.Component+" "+e.Reason+": "+e.Message)
			}
			return out
		}
		if got := events(); len(got) > 0 {
			t.Errorf("events of nodes that begin: %q", got)
		}
		var want []string
		for _, c := range []struct {
			what   string
			change func(*corev1.Node)
			reason string
		}{
			{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, "NodeNotSchedulable"},
			{"labelled", func(n *corev1.Node) { n.Labels["a"] = "b" }, ""},
			{"uncordoned", func(n *corev1.Node) { n.Spec.Unschedulable = false }, "NodeSchedulable"},
			{"given up", func(n *corev1.Node) { n.Status.Conditions[3].Status = corev1.ConditionUnknown }, "NodeReady"},
		} {
			n, err := clientset.CoreV1().Nodes().Get(t.Context(), "fake-0", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.change(n)
			if _, err := clientset.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if c.reason != "" {
				want = append(want, fmt.Sprintf("Node kubelet %s: Node fake-0 status is now: %[1]s", c.reason))
			}
			if got := events(); !slices.Equal(got, want) {
				t.Errorf("%s: events %q, want %q", c.what, got, want)
			}
		}
	})
}

// TestDeletedLease: the lease of a node comes back after somebody deleted it, with the node as its owner.
func TestDeletedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := clienttest.New()
		run(t, clientset, Config{Nodes: 1, Renew: 10 * time.Second})
		leases := clientset.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		if err := leases.Delete(t.Context(), "fake-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(21 * time.Second)
		l, err := leases.Get(t.Context(), "fake-0", metav1.GetOptions{})
		if err != nil || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].Name != "fake-0" {
			t.Errorf("got %+v, %v", l, err)
		}
	})
}

// TestDeletedNodeRegistersAgain: a fake node that is deleted comes back with its lease, unless it was removed for good.
func TestDeletedNodeRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := clienttest.New()
		run(t, f, Config{Nodes: 2})
		nodes := f.CoreV1().Nodes()
		gone, err := nodes.Get(t.Context(), "fake-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		gone.Annotations[kubeletnode.AnnotationRemoved] = "true"
		if _, err := nodes.Update(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, name := range []string{"fake-0", "fake-1"} {
			if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // the test's clock
		back, err := nodes.Get(t.Context(), "fake-0", metav1.GetOptions{})
		if err != nil || !isReady(back) {
			t.Errorf("the deleted node: %v", err)
		}
		if _, err := nodes.Get(t.Context(), "fake-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the removed node is back: %v", err)
		}
	})
}
