// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// TestResizeRefused: a pod that asks for more than the node has keeps what it has, and says why; asking for less
// repairs it.
func TestResizeRefused(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	set := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
	}
	harness.create(testPod("web", set("100m")))
	harness.until("web", "ready", ready)
	harness.change("web", set("10000"))
	pod := harness.until("web", "refused", func(p *corev1.Pod) bool {
		return condition(p, corev1.PodResizePending) != nil
	})
	c := condition(pod, corev1.PodResizePending)
	cs := pod.Status.ContainerStatuses[0]
	if c.Status != corev1.ConditionTrue || c.Reason != "Infeasible" ||
		!strings.HasPrefix(c.Message, "Node didn't have enough capacity: cpu, requested: 10000000, capacity: ") {
		t.Errorf("condition: got %+v", c)
	}
	if cs.AllocatedResources.Cpu().MilliValue() != 100 || !ready(pod) ||
		slices.Contains(harness.rt.Calls(), "UpdateContainerResources") {
		t.Errorf("allocated %v, ready %v, calls %v: want 100m, ready, nothing updated", cs.AllocatedResources,
			ready(pod), harness.rt.Calls())
	}
	harness.change("web", set("150m"))
	pod = harness.until("web", "resized", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == 150 &&
			condition(p, corev1.PodResizePending) == nil && condition(p, corev1.PodResizeInProgress) == nil
	})
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 ||
		!slices.Contains(harness.rt.Calls(), "UpdateContainerResources") {
		t.Errorf("restarts %d, calls %v: want none, updated", n, harness.rt.Calls())
	}
}

// TestResizeDeferred: a resize waits while other pods use the resources.
func TestResizeDeferred(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := n.Status.Allocatable.Cpu().MilliValue()
	ask := func(milli int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
			}
		}
	}
	harness.create(testPod("other", ask(most/2)))
	harness.create(testPod("web", ask(10)))
	harness.until("other", "ready", ready)
	harness.until("web", "ready", ready)
	harness.change("web", ask(most))
	p := harness.until("web", "deferred", func(p *corev1.Pod) bool {
		return condition(p, corev1.PodResizePending) != nil
	})
	if c := condition(p, corev1.PodResizePending); c.Reason != "Deferred" ||
		!strings.HasPrefix(c.Message, "Node didn't have enough resource: cpu, requested: ") {
		t.Errorf("condition: got %+v", c)
	}
	harness.remove("other", 1)
	harness.until("other", "gone", func(p *corev1.Pod) bool { return p == nil })
	harness.until("web", "resized", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == most &&
			condition(p, corev1.PodResizePending) == nil
	})
}

// TestResizeWithRestart: what the policy says cannot change in place restarts the container, what else changes does
// not.
func TestResizeWithRestart(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	set := func(cpu, memory string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			container := &p.Spec.Containers[0]
			container.ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, {
					ResourceName:  corev1.ResourceMemory,
					RestartPolicy: corev1.RestartContainer,
				},
			}
			container.Resources.Limits = corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse(cpu),
				corev1.ResourceMemory: resource.MustParse(memory),
			}
			container.Resources.Requests = container.Resources.Limits.DeepCopy()
		}
	}
	harness.create(testPod("web", set("100m", "50Mi")))
	harness.until("web", "ready", ready)
	limits := func(cpu, memory string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			r := p.Status.ContainerStatuses[0].Resources
			return ready(p) && r != nil && r.Limits.Cpu().String() == cpu && r.Limits.Memory().String() == memory
		}
	}
	harness.change("web", set("200m", "50Mi"))
	if p := harness.until("web", "given more cpu",
		limits("200m", "50Mi")); p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("cpu alone: %d restarts, want none", p.Status.ContainerStatuses[0].RestartCount)
	}
	harness.change("web", set("200m", "60Mi"))
	harness.until("web", "given more memory", func(p *corev1.Pod) bool {
		return limits("200m", "60Mi")(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	harness.waitEvent("Killing", "Container c resize requires restart")
}

// TestResizeWholePod: the limits of a pod as a whole change in place; a container without limits of its own gets them,
// one with limits keeps its own, and the status shows what is allocated and what the pod has.
func TestResizeWholePod(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	set := func(request, limit string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			p.Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)},
			}
		}
	}
	limited := hello("limited")
	limited.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}
	harness.create(testPod("web", set("100m", "500m"), func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, limited)
	}))
	has := func(request, limit int64) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			r := p.Status.Resources
			return ready(p) && r != nil && p.Status.AllocatedResources.Cpu().MilliValue() == request &&
				r.Requests.Cpu().MilliValue() == request && r.Limits.Cpu().MilliValue() == limit &&
				condition(p, corev1.PodResizeInProgress) == nil && condition(p, corev1.PodResizePending) == nil
		}
	}
	harness.until("web", "ready with the pod's resources", has(100, 500))
	harness.change("web", set("200m", "800m"))
	harness.until("web", "resized", has(200, 800))
	quota := func(name string) int64 {
		id := harness.rt.Containers(name)[0]
		st, err := harness.cfg.Runtime.Runtime.ContainerStatus(t.Context(),
			&runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		return st.GetStatus().GetResources().GetLinux().GetCpuQuota()
	}
	if whole, own := quota("c"), quota("limited"); whole != 80_000 || own != 5_000 {
		t.Errorf("quotas of the containers: got %d and %d, want the pod's 80000 and its own 5000", whole, own)
	}
	calls := harness.rt.Calls()
	pod, container := slices.Index(calls, "UpdatePodSandboxResources"), slices.Index(calls, "UpdateContainerResources")
	if container < 0 || pod < container {
		t.Errorf("calls %v: want the container updated, then its pod", calls)
	}
	harness.change("web", set("10000", "10000"))
	p := harness.until("web", "refused", func(p *corev1.Pod) bool {
		return condition(p, corev1.PodResizePending) != nil
	})
	if !p.Status.Resources.Limits.Cpu().Equal(resource.MustParse("800m")) {
		t.Errorf("limits after a refused resize: got %v, want those before", p.Status.Resources)
	}
}

// TestResizeInit: an init container that runs is given its new resources, as the node declares that it can.
func TestResizeInit(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
	if got := n.Status.DeclaredFeatures; !slices.Equal(got, want) {
		t.Errorf("declared features: got %v, want %v", got, want)
	}
	set := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu),
			}
		}
	}
	harness.create(testPod("web", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{hello("i")} },
		set("100m")))
	first := func(p *corev1.Pod) *corev1.ContainerStatus {
		if len(p.Status.InitContainerStatuses) == 0 {
			return &corev1.ContainerStatus{}
		}
		return &p.Status.InitContainerStatuses[0]
	}
	harness.until("web", "initializing", func(p *corev1.Pod) bool { return first(p).State.Running != nil })
	harness.change("web", set("150m"))
	p := harness.until("web", "resized", func(p *corev1.Pod) bool {
		return first(p).AllocatedResources.Cpu().MilliValue() == 150 && condition(p, corev1.PodResizeInProgress) == nil
	})
	if first(p).State.Running == nil || first(p).RestartCount != 0 ||
		!slices.Contains(harness.rt.Calls(), "UpdateContainerResources") {
		t.Errorf("status %+v, calls %v: want it running as before, and updated", first(p), harness.rt.Calls())
	}
	harness.rt.Exit(harness.rt.Containers("i")[0], 0)
	harness.until("web", "ready", ready)
}

// setCPU makes a change of a pod's requested processor time.
func setCPU(milli int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Generation++
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
		}
	}
}

// TestResizeEvents: an event says that a resize is refused, that it has begun and that it is done, with the resources.
func TestResizeEvents(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("web", setCPU(100)))
	harness.until("web", "ready", ready)
	harness.change("web", setCPU(10_000_000))
	harness.waitEvent("ResizeInfeasible", `Pod resize Infeasible: {"containers":[{"name":"c","resources":`+
		`{"requests":{"cpu":"10k"}}}],"generation":3,"error":"Node didn't have enough capacity: cpu, `)
	harness.change("web", setCPU(150))
	resources := `{"containers":[{"name":"c","resources":{"requests":{"cpu":"150m"}}}],"generation":4}`
	harness.waitEvent("ResizeStarted", "Pod resize started: "+resources)
	harness.waitEvent("ResizeCompleted", "Pod resize completed: "+resources)
}

// TestResizeBelowUsage: a container keeps its memory limit while it uses more than the new one, and the pod says so.
func TestResizeBelowUsage(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	set := func(memory string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation++
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse(memory),
			}
		}
	}
	harness.create(testPod("web", set("50Mi")))
	harness.until("web", "ready", ready)
	harness.change("web", set("1Mi"))
	pod := harness.until("web", "kept", func(p *corev1.Pod) bool {
		c := condition(p, corev1.PodResizeInProgress)
		return c != nil && c.Reason == "Error"
	})
	if c := condition(pod, corev1.PodResizeInProgress); !strings.HasPrefix(c.Message,
		`attempting to set container "c" memory limit (1048576) below current usage (`) ||
		slices.Contains(harness.rt.Calls(), "UpdateContainerResources") {
		t.Errorf("condition %+v, calls %v: want the reason, nothing updated", c, harness.rt.Calls())
	}
	harness.waitEvent("ResizeError", "Pod resize error: {")
	harness.change("web", set("40Mi"))
	harness.until("web", "resized", func(p *corev1.Pod) bool {
		r := p.Status.ContainerStatuses[0].Resources
		return condition(p, corev1.PodResizeInProgress) == nil && r != nil && r.Limits.Memory().String() == "40Mi"
	})
}

// TestResizesWaitInOrder: of resizes that wait for the same resources, the one of the highest priority gets them, in
// any order of requests, and at once.
func TestResizesWaitInOrder(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := n.Status.Allocatable.Cpu().MilliValue()
	important := func(p *corev1.Pod) { p.Spec.Priority = new(int32(100)) }
	harness.create(testPod("other", setCPU(most*3/4)))
	harness.create(testPod("low", setCPU(10)))
	harness.create(testPod("high", setCPU(10), important))
	deferred := func(p *corev1.Pod) bool { return condition(p, corev1.PodResizePending) != nil }
	for _, name := range []string{"other", "low", "high"} {
		harness.until(name, "ready", ready)
	}
	for _, name := range []string{"low", "high"} {
		harness.change(name, setCPU(most*3/4))
		harness.until(name, "deferred", deferred)
	}
	harness.remove("other", 1)
	harness.until("high", "resized", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == most*3/4 && !deferred(p)
	})
	if p := harness.until("low", "there", ready); !deferred(p) {
		t.Errorf("low: conditions %v, want its resize deferred", p.Status.Conditions)
	}
}
