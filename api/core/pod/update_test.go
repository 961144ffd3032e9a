// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// storedPod is a pod as it comes out of the store.
func storedPod(t *testing.T, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Name = "web"
	pod.Namespace = "default"
	pod.Spec.Containers = []corev1.Container{{
		Name:  "web",
		Image: "nginx:1",
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			},
		},
	}}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
	for _, f := range change {
		f(pod)
	}
	kindtest.Create(Pod(gates.On{}), pod)
	if errs := Pod(gates.On{}).Validate(pod); len(errs) > 0 {
		t.Fatalf("the pod to update is invalid: %v", errs)
	}
	return pod
}

const onlyThese = "spec: Forbidden: pod updates may not change fields other than " +
	"`spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"

func TestPodUpdate(t *testing.T) {
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
		p.Spec.NodeSelector = map[string]string{"a": "b"}
	}
	mirror := func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	}
	tests := []struct {
		name  string
		setup func(*corev1.Pod)
		do    func(*corev1.Pod)
		want  []string // prefixes
	}{
		{"nothing", nil, func(*corev1.Pod) {}, nil},
		{"image", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "nginx:2" }, nil},
		{
			"no image", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" },
			[]string{"spec.containers[0].image: Required value"},
		},
		{"command", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} }, []string{onlyThese}},
		{"another container", nil, func(p *corev1.Pod) {
			c := p.Spec.Containers[0].DeepCopy()
			c.Name = "more"
			p.Spec.Containers = append(p.Spec.Containers, *c)
		}, []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"toleration added", nil, func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}, nil},
		{
			"toleration removed", nil, func(p *corev1.Pod) { p.Spec.Tolerations = nil },
			[]string{
				"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
			},
		},
		{"deadline set", nil, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }, nil},
		{
			"deadline later", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }, func(
				p *corev1.Pod,
			) {
				p.Spec.ActiveDeadlineSeconds = new(int64(6))
			},
			[]string{"spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"},
		},
		{
			"deadline gone", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }, func(p *corev1.Pod) {
				p.Spec.ActiveDeadlineSeconds = nil
			},
			[]string{
				"spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
			},
		},
		{
			"grace", nil, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1)) },
			[]string{onlyThese},
		},
		{
			"negative grace", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(-1)) },
			func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1)) }, nil,
		},
		{
			"gate added", nil, func(p *corev1.Pod) {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
			},
			[]string{
				"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate " +
					"'wait'",
			},
		},
		{"gate removed", gated, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }, nil},
		{
			"gated selector added to", gated, func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{"a": "b", "c": "d"}
			}, nil,
		},
		{
			"gated selector changed", gated, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "c"} },
			[]string{
				`spec.nodeSelector: Invalid value: {"a":"c"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)`,
			},
		},
		{"gated affinity", gated, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{
						{
							MatchExpressions: []corev1.NodeSelectorRequirement{
								{Key: "a", Operator: corev1.NodeSelectorOpExists},
							},
						},
					},
				}},
			}
		}, nil},
		{
			"selector", nil, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"c": "d"} },
			[]string{onlyThese},
		},
		{
			"mirror annotation", mirror, func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "y" },
			[]string{
				"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror pod " +
					"annotation",
			},
		},
		{"label", nil, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, nil},
	}
	k := Pod(gates.On{})
	for _, tt := range tests {
		setup := tt.setup
		if setup == nil {
			setup = func(*corev1.Pod) {}
		}
		old := storedPod(t, setup)
		p := old.DeepCopy()
		tt.do(p)
		k.PrepareUpdate(p, old)
		errs := k.ValidateUpdate(p, old)
		if len(errs) != len(tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, errs, tt.want)
			continue
		}
		for i, e := range errs {
			if !strings.HasPrefix(e.Error(), tt.want[i]) {
				t.Errorf("%s: got %q, want prefix %q", tt.name, e, tt.want[i])
			}
		}
	}
}

func TestPodUpdateGenerationAndStatus(t *testing.T) {
	k := Pod(gates.On{})
	old := storedPod(t)
	p := old.DeepCopy()
	p.Generation = 99
	p.Status.Phase = corev1.PodRunning
	p.Labels = map[string]string{"a": "b"}
	if k.PrepareUpdate(p, old); p.Generation != 1 || p.Status.Phase != corev1.PodPending {
		t.Errorf("label: generation %d, phase %s; want 1, Pending", p.Generation, p.Status.Phase)
	}
	p.Spec.Containers[0].Image = "nginx:2"
	if k.PrepareUpdate(p, old); p.Generation != 2 {
		t.Errorf("image: generation %d, want 2", p.Generation)
	}
}

func TestPodStatusUpdate(t *testing.T) {
	sub := Pod(gates.On{}).Subs["status"]
	old := storedPod(t, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	old.Status.ObservedGeneration = 4
	old.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, ObservedGeneration: 3}}
	old.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "web", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
	}
	old.OwnerReferences = []metav1.OwnerReference{{Name: "rs"}}
	pod := old.DeepCopy()
	pod.Spec.NodeName = "elsewhere"
	pod.OwnerReferences = nil
	pod.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		PodIP:      "10.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		},
	}
	sub.PrepareUpdate(pod, old)
	if pod.Spec.NodeName != "" || len(pod.OwnerReferences) != 1 || pod.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("a status update changed node %q, owners %v or class %q", pod.Spec.NodeName, pod.OwnerReferences,
			pod.Status.QOSClass)
	}
	if pod.Status.ObservedGeneration != 4 || pod.Status.Conditions[0].ObservedGeneration != 3 {
		t.Errorf("observed generations %d and %d, want 4 and 3", pod.Status.ObservedGeneration,
			pod.Status.Conditions[0].ObservedGeneration)
	}
	if len(pod.Status.PodIPs) != 1 || pod.Status.PodIPs[0].IP != "10.0.0.1" {
		t.Errorf("podIPs %v, want 10.0.0.1", pod.Status.PodIPs)
	}
	kindtest.Same(t, "restart of a container that stays down", sub.ValidateUpdate(pod, old), []string{
		"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
	})
	pod.Status.ContainerStatuses = nil
	pod.Status.QOSClass = corev1.PodQOSGuaranteed
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}
	pod.Status.HostIPs = []corev1.HostIP{{IP: "x"}}
	pod.Status.NominatedNodeName = "A"
	kindtest.Same(t, "bad status", sub.ValidateUpdate(pod, old), []string{
		`status.nominatedNodeName: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		`status.qosClass: Invalid value: "Guaranteed": field is immutable`,
		`status.podIPs: Invalid value: [{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]: may specify no more than one IP for each IP family`,
		"status.hostIPs[0].ip: Invalid value: \"x\": must be equal to `hostIP`",
		`status.hostIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
	})
}

// TestClaimsStay: a client that does not know the claims of a pod's status does not remove them.
func TestClaimsStay(t *testing.T) {
	old := storedPod(t)
	old.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: new("x")}}
	old.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "e"}
	p := old.DeepCopy()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	Pod(gates.On{}).Subs["status"].PrepareUpdate(p, old)
	if len(p.Status.ResourceClaimStatuses) != 1 || p.Status.ExtendedResourceClaimStatus == nil ||
		p.Status.Phase != corev1.PodRunning {
		t.Errorf("got %+v, want the previous claims", p.Status)
	}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}}
	Pod(gates.On{}).Subs["status"].PrepareUpdate(p, old)
	if p.Status.ResourceClaimStatuses[0].ResourceClaimName != nil {
		t.Errorf("got %+v, want the claims that were sent", p.Status.ResourceClaimStatuses)
	}
}

func TestEphemeralContainers(t *testing.T) {
	k := Pod(gates.On{})
	sub := k.Subs["ephemeralcontainers"]
	old := storedPod(t)
	add := func(ec corev1.EphemeralContainer) (kind.Object, *corev1.Pod) {
		p := old.DeepCopy()
		p.Spec.Containers[0].Image = "changed"
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, ec)
		k.Default(p)
		sub.PrepareUpdate(p, old)
		return p, p
	}
	debug := corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name:  "debug",
			Image: "busybox",
		},
		TargetContainerName: "web",
	}
	obj, pod := add(debug)
	kindtest.Same(t, "debug container", sub.ValidateUpdate(obj, old), nil)
	if pod.Spec.Containers[0].Image != "nginx:1" || pod.Generation != 2 {
		t.Errorf("image %q and generation %d, want nginx:1 and 2", pod.Spec.Containers[0].Image, pod.Generation)
	}
	bad := *debug.DeepCopy()
	bad.Name = "web"
	bad.TargetContainerName = "gone"
	bad.Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	obj, _ = add(bad)
	kindtest.Same(t, "bad container", sub.ValidateUpdate(obj, old), []string{
		`spec.ephemeralContainers[0].name: Duplicate value: "web"`,
		`spec.ephemeralContainers[0].targetContainerName: Not found: "gone"`,
		"spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
	})
	gone := pod.DeepCopy()
	gone.Spec.EphemeralContainers = nil
	kindtest.Same(t, "removed", sub.ValidateUpdate(gone, pod), []string{
		`spec.ephemeralContainers: Forbidden: existing ephemeral containers "debug" may not be removed` + "\n",
	})
}

func TestResize(t *testing.T) {
	k := Pod(gates.On{})
	sub := k.Subs["resize"]
	cpu := func(p *corev1.Pod, q string) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(q)
	}
	tests := []struct {
		name string
		do   func(*corev1.Pod)
		want []string
	}{
		{"cpu", func(p *corev1.Pod) { cpu(p, "200m") }, nil},
		{"image is ignored", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "x" }, nil},
		{
			"removed", func(p *corev1.Pod) { delete(p.Spec.Containers[0].Resources.Requests, corev1.ResourceCPU) },
			[]string{"spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"},
		},
		{"class", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests.DeepCopy()
		}, []string{`spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing`}},
		{"storage", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse("1Gi")
		}, []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"policy", func(p *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
			}
		}, []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"init container", func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("2"),
				corev1.ResourceMemory: resource.MustParse("1Gi"),
			}
		}, nil},
		{
			"init container's storage", func(p *corev1.Pod) {
				p.Spec.InitContainers[0].Resources.Limits = corev1.ResourceList{
					corev1.ResourceCPU:              resource.MustParse("2"),
					corev1.ResourceMemory:           resource.MustParse("1Gi"),
					corev1.ResourceEphemeralStorage: resource.MustParse("2"),
				}
			},
			[]string{
				"spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable",
			},
		},
		{
			"containers and names", func(p *corev1.Pod) {
				p.Spec.Containers[0].Name = "other"
				p.Spec.InitContainers = nil
			},
			[]string{
				"spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
				"spec.initContainers: Forbidden: initContainers may not be added or removed on resize",
			},
		},
		{"whole pod", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("2"),
					corev1.ResourceMemory: resource.MustParse("1Gi"),
				},
			}
		}, nil},
	}
	for _, tt := range tests {
		old := storedPod(t, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{
				Name:  "i",
				Image: "i",
				Resources: corev1.ResourceRequirements{
					Requests: p.Spec.Containers[0].Resources.Requests,
					Limits:   p.Spec.Containers[0].Resources.Requests,
				},
			}}
		})
		p := old.DeepCopy()
		tt.do(p)
		sub.PrepareUpdate(p, old)
		kindtest.Same(t, tt.name, sub.ValidateUpdate(p, old), tt.want)
		if old.Spec.Containers[0].Resources.Requests.Cpu().String() != "100m" {
			t.Fatalf("%s: the old pod was changed", tt.name)
		}
	}
}

// TestResizeOfWholePod: resources of the pod as a whole may change, and not go.
func TestResizeOfWholePod(t *testing.T) {
	sub := Pod(gates.On{}).Subs["resize"]
	requests := func(list map[corev1.ResourceName]string) *corev1.ResourceRequirements {
		out := &corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
		for name, q := range list {
			out.Requests[name] = resource.MustParse(q)
		}
		return out
	}
	old := storedPod(t, func(p *corev1.Pod) {
		p.Spec.Resources = requests(map[corev1.ResourceName]string{"cpu": "2", "memory": "1Gi"})
	})
	for _, tt := range []struct {
		name string
		now  *corev1.ResourceRequirements
		want []string
	}{
		{"more", requests(map[corev1.ResourceName]string{"cpu": "3", "memory": "1Gi"}), nil},
		{"none", nil, []string{"spec.resources: Forbidden: pod-level resources cannot be removed"}},
		{
			"less", requests(map[corev1.ResourceName]string{"memory": "1Gi", "hugepages-2Mi": "2Mi"}),
			[]string{
				"spec.resources.limits: Required value: Limit must be set for non overcommitable resources",
				`spec.resources.requests[cpu]: Invalid value: "0": must be greater than or equal to aggregate container ` +
					"requests of 100m",
				"spec.resources.requests: Forbidden: pod-level resource requests cannot be removed",
				"spec: Forbidden: only cpu and memory resources are mutable at pod-level",
			},
		},
	} {
		p := old.DeepCopy()
		p.Spec.Resources = tt.now
		sub.PrepareUpdate(p, old)
		kindtest.Same(t, tt.name, sub.ValidateUpdate(p, old), tt.want)
	}
}

func TestBind(t *testing.T) {
	kindtest.Same(t, "binding", ValidateBinding(&corev1.Binding{Target: corev1.ObjectReference{Kind: "Pod"}}), []string{
		`target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"`, "target.name: Required value",
	})
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	binding.Annotations = map[string]string{"a": "b"}
	pod := storedPod(t)
	pod.Status.NominatedNodeName = "n2"
	if err := Bind(pod, binding); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.NodeName != "n1" || pod.Annotations["a"] != "b" || !IsTrue(pod, corev1.PodScheduled) ||
		pod.Status.NominatedNodeName != "" {
		t.Errorf("bound pod: node %q, annotations %v, conditions %v", pod.Spec.NodeName, pod.Annotations,
			pod.Status.Conditions)
	}
	want := `pod web is already assigned to node "n1"`
	if err := Bind(pod, binding); err == nil || err.Error() != want {
		t.Errorf("second bind: got %v, want %s", err, want)
	}
	gated := storedPod(t, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} })
	want = "pod web has non-empty .spec.schedulingGates"
	if err := Bind(gated, binding); err == nil || err.Error() != want {
		t.Errorf("gated: got %v, want %s", err, want)
	}
}

func TestGrace(t *testing.T) {
	tests := []struct {
		name  string
		node  string
		phase corev1.PodPhase
		spec  int64
		asked *int64
		want  int64
	}{
		{"as the pod says", "n", corev1.PodRunning, 30, nil, 30},
		{"as asked", "n", corev1.PodRunning, 30, new(int64(5)), 5},
		{"not scheduled", "", corev1.PodPending, 30, new(int64(5)), 0},
		{"finished", "n", corev1.PodSucceeded, 30, nil, 0},
		{"failed", "n", corev1.PodFailed, 30, nil, 0},
		{"negative", "n", corev1.PodRunning, -7, nil, 1},
		{"force", "n", corev1.PodRunning, 30, new(int64(0)), 0},
	}
	for _, tt := range tests {
		p := &corev1.Pod{
			Spec: corev1.PodSpec{
				NodeName:                      tt.node,
				TerminationGracePeriodSeconds: &tt.spec,
			},
			Status: corev1.PodStatus{Phase: tt.phase},
		}
		opts := &metav1.DeleteOptions{GracePeriodSeconds: tt.asked}
		if got := Pod(gates.On{}).Grace(p, opts); got != tt.want || *opts.GracePeriodSeconds != tt.want {
			t.Errorf("%s: %d seconds and %d in the options, want %d", tt.name, got, *opts.GracePeriodSeconds, tt.want)
		}
	}
}
