// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/client"
	"keelson/client/clienttest"
	"keelson/cri"
	"keelson/cri/critest"
	"keelson/event"
	"keelson/kubelet"
	"keelson/kubelet/eviction"
	"keelson/lib/waittest"
)

const nodeName = "node-1"

// harness is a kubelet on a fake runtime and a fake API.
type harness struct {
	t    *testing.T
	api  *fake.Clientset
	rt   *critest.Fake
	root string
	cfg  kubelet.Config

	mu    sync.Mutex
	marks []event.Event
}

func newHarness(t *testing.T, objs ...func(*harness)) *harness {
	t.Helper()
	h := &harness{
		t:    t,
		api:  clienttest.New(),
		rt:   critest.NewFake(),
		root: filepath.Join(t.TempDir(), "kubelet"),
	}
	h.cfg = kubelet.Config{
		NodeName:   nodeName,
		Client:     &client.Client{Interface: client.Plain(h.api)},
		Runtime:    cri.InProcess(h.rt),
		RootDir:    h.root,
		NodeObject: kubelet.NodeObject{RegisterNode: true},
		Eviction:   eviction.Config{Hard: "memory.available<0%"}, // how full this machine's disk is does not matter
		Marks: event.NewRecorder(func(m event.Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.marks = append(h.marks, m)
		}),
	}
	h.api.PrependReactor("*", "pods", versions(h.api.Tracker()))
	h.api.PrependReactor("*", "nodes", versions(h.api.Tracker()))
	for _, o := range objs {
		o(h)
	}
	t.Cleanup(func() {
		if err := kubelet.Purge(h.root); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return h
}

// versions gives objects of one resource uids and resource versions, which the fake API lacks: without versions an old
// answer passes for news. The fake API calls it for one request after another.
func versions(objects k8stesting.ObjectTracker) k8stesting.ReactionFunc {
	store := k8stesting.ObjectReaction(objects)
	n := 0
	return func(a k8stesting.Action) (bool, runtime.Object, error) {
		switch a := a.(type) {
		case k8stesting.CreateActionImpl:
			if a.GetSubresource() != "" {
				return false, nil, nil // a binding or the like
			}
			m := accessor(a.GetObject())
			n++
			m.SetResourceVersion(strconv.Itoa(n))
			if m.GetUID() == "" {
				m.SetUID(types.UID(fmt.Sprint("made-", n)))
			}
		case k8stesting.UpdateActionImpl:
			m := accessor(a.GetObject())
			o, err := objects.Get(a.GetResource(), a.GetNamespace(), m.GetName())
			if err != nil {
				return true, nil, err
			}
			if now := accessor(o).GetResourceVersion(); m.GetResourceVersion() != "" && m.GetResourceVersion() != now {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(),
					fmt.Errorf("version %s, now %s", m.GetResourceVersion(), now))
			}
			n++
			m.SetResourceVersion(strconv.Itoa(n))
		case k8stesting.PatchActionImpl:
			var body map[string]any
			if err := json.Unmarshal(a.Patch, &body); err != nil {
				return true, nil, err
			}
			m, _ := body["metadata"].(map[string]any)
			if m == nil {
				m = map[string]any{}
			}
			o, err := objects.Get(a.GetResource(), a.GetNamespace(), a.GetName())
			if err != nil {
				return true, nil, err
			}
			if asked, now := m["resourceVersion"], accessor(o).GetResourceVersion(); asked != nil && asked != now {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(),
					fmt.Errorf("version %v, now %s", asked, now))
			}
			n++
			m["resourceVersion"] = strconv.Itoa(n)
			body["metadata"] = m
			if a.Patch, err = json.Marshal(body); err != nil {
				return true, nil, err
			}
			return store(a)
		}
		return false, nil, nil // the tracker does it
	}
}

func accessor(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err) // a test wrote what is no object of the API
	}
	return m
}

// run starts the kubelet and returns what stops it.
func (h *harness) run() (stop func()) {
	h.t.Helper()
	k, err := kubelet.New(h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, sync.OnceFunc(func() { close(ready) })) }() // ends with cancel
	select {
	case <-ready:
	case err := <-done:
		h.t.Fatalf("Run ended early: %v", err)
	case <-time.After(60 * time.Second):
		h.t.Fatal("not ready after 60 s")
	}
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				h.t.Errorf("Run: %v", err)
			}
		case <-time.After(60 * time.Second):
			h.t.Error("did not stop within 60 s")
		}
	})
	h.t.Cleanup(stop)
	return stop
}

func testPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	stored := func(p *corev1.Pod) {
		p.Generation = 1
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		p.Spec.DNSPolicy = corev1.DNSClusterFirst
		p.Spec.Containers = []corev1.Container{{
			Name:                     "c",
			Image:                    critest.HelloImage,
			ImagePullPolicy:          corev1.PullIfNotPresent,
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}}
	}
	as := []func(*corev1.Pod){apitest.UID("uid-" + name), apitest.On(nodeName), apitest.Labels("app", name), stored}
	return apitest.Pod(name, append(as, change...)...)
}

func (h *harness) create(p *corev1.Pod) *corev1.Pod {
	h.t.Helper()
	got, err := h.api.CoreV1().Pods(p.Namespace).Create(h.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return got
}

func (h *harness) get(name string) *corev1.Pod {
	h.t.Helper()
	p, err := h.api.CoreV1().Pods("default").Get(h.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// until waits for a pod to be as asked; what is its description. ok looks at nothing but the pod, nil when it is gone.
func (h *harness) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	h.t.Helper()
	var pod *corev1.Pod
	is := false
	defer func() {
		if !is {
			h.t.Logf("pod %s, to be %s: status %+v; runtime saw %v", name, what, statusOf(pod), h.rt.Calls())
		}
	}()
	clienttest.Until(h.t, h.api.Tracker(), corev1.SchemeGroupVersion.WithResource("pods"),
		"pod "+name+" "+what, func() bool {
			pod = h.get(name)
			is = ok(pod)
			return is
		})
	return pod
}

func statusOf(p *corev1.Pod) any {
	if p == nil {
		return "no pod"
	}
	return p.Status
}

func ready(p *corev1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func phaseIs(ph corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == ph }
}

// remove deletes a pod as an API server does: it is marked, and stays until the kubelet lets it go.
func (h *harness) remove(name string, grace int64) {
	h.t.Helper()
	now := metav1.Now()
	h.change(name, func(p *corev1.Pod) {
		p.DeletionTimestamp = &now
		p.DeletionGracePeriodSeconds = &grace
	})
}

// change updates a pod, again when someone else was faster.
func (h *harness) change(name string, f func(*corev1.Pod)) {
	h.t.Helper()
	for {
		p := h.get(name)
		f(p)
		_, err := h.api.CoreV1().Pods("default").Update(h.t.Context(), p, metav1.UpdateOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			h.t.Fatal(err)
		}
	}
}

func (h *harness) events(reason string) []string {
	h.t.Helper()
	list, err := h.api.CoreV1().Events("").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.Reason == reason {
			out = append(out, e.Message)
		}
	}
	return out
}

func (h *harness) waitEvent(reason, part string) {
	h.t.Helper()
	var all []string
	said := false
	defer func() {
		if !said {
			h.t.Logf("events %s: %q", reason, all)
		}
	}()
	clienttest.Until(h.t, h.api.Tracker(), corev1.SchemeGroupVersion.WithResource("events"),
		"an event "+reason+" with "+part, func() bool {
			all = h.events(reason)
			said = slices.ContainsFunc(all, func(m string) bool { return strings.Contains(m, part) })
			return said
		})
}

func TestNodeRegistersReady(t *testing.T) {
	h := newHarness(t)
	h.cfg.Eviction = eviction.Config{} // the defaults keep memory back
	h.run()
	node, err := h.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady
	})
	if i < 0 || node.Status.Conditions[i].Status != corev1.ConditionTrue ||
		node.Status.Conditions[i].Reason != "KubeletReady" {
		t.Errorf("Ready condition: got %+v, want True because KubeletReady", node.Status.Conditions)
	}
	if got := node.Status.NodeInfo.ContainerRuntimeVersion; got != "fake://1.0.0" {
		t.Errorf("runtime version: got %q, want fake://1.0.0", got)
	}
	if node.Status.Capacity.Pods().Value() != 110 ||
		node.Status.Allocatable.Memory().Cmp(*node.Status.Capacity.Memory()) >= 0 {
		t.Errorf("capacity %v, allocatable %v: want 110 pods, and some memory kept back", node.Status.Capacity,
			node.Status.Allocatable)
	}
}

// TestStatusOfAnOlderVersion: a status that the kubelet works out before it knows that another has ended the pod does
// not bring the pod back.
func TestStatusOfAnOlderVersion(t *testing.T) {
	h := newHarness(t)
	var once sync.Once
	h.api.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		once.Do(func() {
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			o, err := h.api.Tracker().Get(pods, "default", "p")
			if err != nil {
				t.Error(err)
				return
			}
			ended := o.(*corev1.Pod).DeepCopy()
			ended.ResourceVersion = "7000"
			ended.Status.Phase = corev1.PodFailed
			ended.Status.Reason = "NodeLost"
			if err := h.api.Tracker().Update(pods, ended, "default"); err != nil {
				t.Error(err)
			}
		})
		return false, nil, nil
	})
	h.run()
	h.create(testPod("p"))
	h.until("p", "ended", func(p *corev1.Pod) bool { return p.Status.Reason == "NodeLost" })
	waittest.Until(t, "the pod ends in the runtime, or its end is written over", func() bool {
		if phase := h.get("p").Status.Phase; phase != corev1.PodFailed {
			t.Errorf("phase %s: another has ended the pod", phase)
			return true
		}
		return slices.Contains(h.rt.Calls(), "StopPodSandbox")
	})
}

// TestNodeStatusIsRepaired: the kubelet overwrites changes of other clients in its part of the node's status.
func TestNodeStatusIsRepaired(t *testing.T) {
	h := newHarness(t)
	watches := countWatches(h, "nodes")
	h.run()
	// this API does not deliver a change between its list and its watch
	waittest.Until(t, "the kubelet watches its node", func() bool { return watches.Load() > 0 })
	nodes := h.api.CoreV1().Nodes()
	var good *corev1.Node
	waittest.Until(t, "the node is Ready", func() bool {
		n, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil || len(n.Status.Addresses) == 0 {
			return false
		}
		good = n
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	for what, spoil := range map[string]func(*corev1.NodeStatus){
		"address": func(s *corev1.NodeStatus) {
			s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.66"}}
		},
		"second address": func(s *corev1.NodeStatus) {
			s.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.66"}},
				s.Addresses...)
		},
		"port":      func(s *corev1.NodeStatus) { s.DaemonEndpoints.KubeletEndpoint.Port = 6443 },
		"capacity":  func(s *corev1.NodeStatus) { s.Capacity[corev1.ResourceCPU] = resource.MustParse("1000") },
		"node info": func(s *corev1.NodeStatus) { s.NodeInfo.KubeletVersion = "v9.9.9" },
		"condition": func(s *corev1.NodeStatus) {
			for i := range s.Conditions {
				if s.Conditions[i].Type == corev1.NodeReady {
					s.Conditions[i].Status = corev1.ConditionFalse
				}
			}
		},
	} {
		n := good.DeepCopy()
		n.ResourceVersion = "" // over whatever is there
		spoil(&n.Status)
		if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "the "+what+" is repaired", func() bool {
			n, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{})
			return err == nil && slices.Equal(n.Status.Addresses, good.Status.Addresses) &&
				n.Status.DaemonEndpoints == good.Status.DaemonEndpoints &&
				n.Status.NodeInfo.KubeletVersion == good.Status.NodeInfo.KubeletVersion &&
				n.Status.Capacity.Cpu().Equal(*good.Status.Capacity.Cpu()) &&
				slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
				})
		})
	}
}

// TestExtendedResources: what a client writes into the node's capacity stays there, and pods can have it.
func TestExtendedResources(t *testing.T) {
	h := newHarness(t)
	h.run()
	nodes := h.api.CoreV1().Nodes()
	write := func(patch string) {
		t.Helper()
		if _, err := nodes.Patch(t.Context(), nodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
			"status"); err != nil {
			t.Fatal(err)
		}
	}
	have := func(want int64) func() bool {
		return func() bool {
			n, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{})
			a := n.Status.Allocatable["example.com/dongle"]
			c := n.Status.Capacity["example.com/dongle"]
			return err == nil && a.Value() == want && c.Value() == want && !n.Status.Allocatable.Cpu().IsZero()
		}
	}
	write(`{"status":{"capacity":{"example.com/dongle":"4"}}}`)
	waittest.Until(t, "pods can have the dongles", have(4))
	write(`{"status":{"capacity":{"example.com/dongle":null,"cpu":"1000"},"allocatable":{"example.com/dongle":"9"}}}`)
	waittest.Until(t, "the dongles are gone, and so is what is not true", have(0))
}

func TestPodLife(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("web"))
	p := harness.until("web", "ready", ready)
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "127.0.0.1" ||
		p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status: got %+v, want Running with addresses and BestEffort", p.Status)
	}
	cs := p.Status.ContainerStatuses[0]
	if !strings.HasPrefix(cs.ContainerID, "fake://") || cs.State.Running == nil || cs.Started == nil || !*cs.Started ||
		cs.RestartCount != 0 {
		t.Errorf("container status: got %+v, want running, started, id fake://...", cs)
	}
	harness.waitEvent("Pulled",
		`Container image "keelson.local/hello:latest" already present on machine and can be accessed by the pod`)
	if all := harness.events("Pulled"); slices.ContainsFunc(all, func(m string) bool {
		return strings.Contains(m, "Always")
	}) {
		t.Errorf("events of the pull policy IfNotPresent: %q", all)
	}
	harness.waitEvent("Started", "Container started")
	harness.remove("web", 5)
	harness.until("web", "gone", func(p *corev1.Pod) bool { return p == nil })
	harness.waitEvent("Killing", "Stopping container c")
	want := []string{"StopContainer", "StopPodSandbox", "RemovePodSandbox"}
	waittest.Until(t, "the sandbox is removed", func() bool {
		return slices.Contains(harness.rt.Calls(), "RemovePodSandbox")
	})
	calls := harness.rt.Calls()
	at := -1
	for _, c := range want {
		i := slices.Index(calls, c)
		if i <= at {
			t.Errorf("calls %v: want %v in this order", calls, want)
		}
		at = i
	}
	waittest.Until(t, "the pod's directory is gone", func() bool {
		left, err := filepath.Glob(filepath.Join(harness.root, "pods", "*"))
		return err == nil && len(left) == 0
	})
}

// TestPullAlwaysOfALocalImage: the event of an image that no registry has does not say that it was pulled, and why it
// was not.
func TestPullAlwaysOfALocalImage(t *testing.T) {
	h := newHarness(t)
	h.run()
	h.create(testPod("web", func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways }))
	h.until("web", "ready", ready)
	h.waitEvent("Pulled",
		`already present on machine and can be accessed by the pod; imagePullPolicy Always does not pull images of keelson.local, which no registry has`)
	if slices.Contains(h.rt.Calls(), "PullImage") || len(h.events("Pulling")) > 0 {
		t.Errorf("it was pulled: calls %v, events %q", h.rt.Calls(), h.events("Pulling"))
	}
}

// patient lets a status wait for as long as its pod takes: how many are written does not depend on the machine's speed.
func patient(h *harness) { h.cfg.StatusBatchPeriod = time.Hour }

func TestOneStatusWriteTakesAPodToReady(t *testing.T) {
	harness := newHarness(t, patient)
	harness.run()
	harness.create(testPod("web"))
	harness.until("web", "ready", ready)
	n := 0
	for _, a := range harness.api.Actions() {
		if a.GetVerb() == "patch" && a.GetResource().Resource == "pods" && a.GetSubresource() == "status" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("status writes until Ready: got %d, want 1", n)
	}
	steps := func() []string {
		harness.mu.Lock()
		defer harness.mu.Unlock()
		var out []string
		for _, m := range harness.marks {
			out = append(out, string(m.Step))
		}
		return out
	}
	want := []string{"seen", "volumes", "sandbox", "image", "containerCreated", "containerStarted", "status", "ready"}
	waittest.Until(t, "the last mark", func() bool { return len(steps()) >= len(want) })
	if got := steps(); !slices.Equal(got, want) {
		t.Errorf("marks: got %v, want %v", got, want)
	}
}

func TestFewStatusWritesEndAPod(t *testing.T) {
	h := newHarness(t, patient)
	h.run()
	h.create(testPod("web"))
	h.until("web", "ready", ready)
	h.api.ClearActions()
	h.remove("web", 5)
	h.until("web", "gone", func(p *corev1.Pod) bool { return p == nil })
	n := 0
	for _, a := range h.api.Actions() {
		if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("status writes while the pod ended: got %d, want 1", n)
	}
}

func TestCompletedAndFailedPods(t *testing.T) {
	h := newHarness(t)
	h.run()
	for code, want := range map[int]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
		name := fmt.Sprintf("job-%d", code)
		h.create(testPod(name, func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers[0].Command = []string{"/hello", "exit", fmt.Sprint(code)}
		}))
		p := h.until(name, string(want), phaseIs(want))
		st := p.Status.ContainerStatuses[0].State.Terminated
		if st == nil || int(st.ExitCode) != code || st.Reason != map[int]string{0: "Completed", 3: "Error"}[code] {
			t.Errorf("%s: state %+v, want terminated with code %d", name, p.Status.ContainerStatuses[0].State, code)
		}
	}
}

// TestFailedAtOnceHasAddress: a pod whose first status is its last one has the address that it had.
func TestFailedAtOnceHasAddress(t *testing.T) {
	h := newHarness(t, patient)
	h.run()
	h.create(testPod("job", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command = []string{"/hello", "exit", "3"}
	}))
	if p := h.until("job", "Failed", phaseIs(corev1.PodFailed)); p.Status.PodIP == "" || len(p.Status.PodIPs) == 0 {
		t.Errorf("addresses: %q, %v; want those of its sandbox", p.Status.PodIP, p.Status.PodIPs)
	}
}

func TestRestartAndCrashLoop(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("crash", func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"/hello", "exit", "1"}
	}))
	p := harness.until("crash", "in CrashLoopBackOff", func(p *corev1.Pod) bool {
		cs := p.Status.ContainerStatuses
		return len(cs) == 1 && cs[0].State.Waiting != nil && cs[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	cs := p.Status.ContainerStatuses[0]
	if want := "back-off 10s restarting failed container=c pod=crash_default(uid-crash)"; cs.State.Waiting.Message != want {
		t.Errorf("message: got %q, want %q", cs.State.Waiting.Message, want)
	}
	if cs.RestartCount != 1 || cs.LastTerminationState.Terminated == nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("got restarts %d, last %+v, phase %s; want 1, terminated, Running", cs.RestartCount,
			cs.LastTerminationState, p.Status.Phase)
	}
	harness.waitEvent("BackOff", "Back-off restarting failed container c in pod crash_default(uid-crash)")
}

func TestKubeletRestartKeepsContainers(t *testing.T) {
	h := newHarness(t)
	stop := h.run()
	h.create(testPod("web"))
	before := h.until("web", "ready", ready).Status.ContainerStatuses[0].ContainerID
	stop()
	h.create(testPod("late"))
	h.run()
	h.until("late", "ready", ready)
	if got := h.get("web").Status.ContainerStatuses[0]; got.ContainerID != before || got.RestartCount != 0 {
		t.Errorf("after a restart: container %s with %d restarts, want %s with 0", got.ContainerID, got.RestartCount,
			before)
	}
}

func TestPodDeletedWhileAway(t *testing.T) {
	h := newHarness(t)
	stop := h.run()
	h.create(testPod("web"))
	h.until("web", "ready", ready)
	stop()
	if err := h.api.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run()
	waittest.Until(t, "the orphan is removed", func() bool { return slices.Contains(h.rt.Calls(), "RemovePodSandbox") })
}
