// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/apitest"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func input(p *corev1.Pod, cs ...runtimestate.Container) Input {
	for i := range cs {
		cs[i].SandboxID = "box"
	}
	return Input{
		Pod:         p,
		Now:         now,
		RuntimeName: "rt",
		HostIPs:     []string{"192.0.2.1"},
		Observed: &runtimestate.Pod{
			Sandboxes:  []runtimestate.Sandbox{{ID: "box", Ready: true, IPs: []string{"10.0.0.2", "fd00::2"}}},
			Containers: cs,
		},
		ProbeResult: func(probe.Key) probe.Result { return probe.Unknown },
		Started:     func(_ *corev1.Container, c *runtimestate.Container) bool { return c.Running() },
		Waiting:     map[string]Reason{},
	}
}

func running(name string) runtimestate.Container {
	return runtimestate.Container{
		ID:      name + "-id",
		Name:    name,
		State:   runtimeapi.ContainerState_CONTAINER_RUNNING,
		Started: now,
	}
}

func exited(name string, code int32) runtimestate.Container {
	return runtimestate.Container{
		ID:       name + "-id",
		Name:     name,
		State:    runtimeapi.ContainerState_CONTAINER_EXITED,
		ExitCode: code,
		Finished: now,
	}
}

func pod(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	return apitest.Pod("ns/p", apitest.UID("u"), apitest.Containers(names...), func(p *corev1.Pod) {
		p.Generation = 3
		p.Spec.RestartPolicy = policy
	})
}

func condition(s *corev1.PodStatus, t corev1.PodConditionType) string {
	for _, c := range s.Conditions {
		if c.Type == t {
			return strings.TrimSpace(string(c.Status) + " " + c.Reason + " " + c.Message)
		}
	}
	return "none"
}

func TestPhaseAndConditions(t *testing.T) {
	always := corev1.RestartPolicyAlways
	never := corev1.RestartPolicyNever
	onFailure := corev1.RestartPolicyOnFailure
	tests := map[string]struct {
		in    Input
		phase corev1.PodPhase
		ready string
		init  string
	}{
		"nothing yet": {input(pod(always, "a", "b")), corev1.PodPending, "False ContainersNotReady containers with " +
			"unready status: [a b]", "True"},
		"one of two": {input(pod(always, "a", "b"), running("a")), corev1.PodPending, "False ContainersNotReady " +
			"containers with unready status: [b]", "True"},
		"both": {input(pod(always, "a", "b"), running("a"), running("b")), corev1.PodRunning, "True", "True"},
		"initializing": {
			input(pod(always, "init:i", "a"), running("i")), corev1.PodPending,
			"False ContainersNotReady containers with unready status: [a]",
			"False ContainersNotInitialized containers with incomplete status: [i]",
		},
		"initialized": {
			input(pod(always, "init:i", "a"), exited("i", 0), running("a")), corev1.PodRunning, "True", "True",
		},
		"init failed": {
			input(pod(never, "init:i", "a"), exited("i", 2)), corev1.PodFailed, "False PodFailed",
			"False ContainersNotInitialized containers with incomplete status: [i]",
		},
		"init retried": {
			input(pod(onFailure, "init:i", "a"), exited("i", 2)), corev1.PodPending,
			"False ContainersNotReady containers with unready status: [a]",
			"False ContainersNotInitialized containers with incomplete status: [i]",
		},
		"restarting": {input(pod(always, "a"), exited("a", 1)), corev1.PodRunning, "False ContainersNotReady " +
			"containers with unready status: [a]", "True"},
		"succeeded": {
			func() Input {
				in := input(pod(never, "a", "b"), exited("a", 0), exited("b", 0))
				in.Terminal = true
				return in
			}(),
			corev1.PodSucceeded, "False PodCompleted", "True",
		},
		"failed": {
			func() Input {
				in := input(pod(never, "a", "b"), exited("a", 0), exited("b", 1))
				in.Terminal = true
				return in
			}(),
			corev1.PodFailed, "False PodFailed", "True",
		},
		"evicted": {
			func() Input {
				in := input(pod(always, "a"), exited("a", 0))
				in.End.Phase = corev1.PodFailed
				in.End.Reason = "Evicted"
				in.Terminal = true
				return in
			}(),
			corev1.PodFailed, "False PodFailed", "True",
		},
		"evicted, and still running": {
			func() Input {
				in := input(pod(always, "a"), running("a"))
				in.End.Phase = corev1.PodFailed
				in.End.Reason = "Evicted"
				return in
			}(),
			corev1.PodRunning, "True", "True",
		},
		"a terminal phase stays": {
			func() Input {
				p := pod(never, "a")
				p.Status.Phase = corev1.PodSucceeded
				return input(p)
			}(), corev1.PodSucceeded, "False PodCompleted", "True",
		},
		"a readiness gate": {
			func() Input {
				p := pod(always, "a")
				p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
				return input(p, running("a"))
			}(),
			corev1.PodRunning,
			`False ReadinessGatesNotReady corresponding condition of pod readiness gate "x/y" does not exist.`, "True",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status := Build(tt.in)
			if status.Phase != tt.phase {
				t.Errorf("phase: got %s, want %s", status.Phase, tt.phase)
			}
			if got := condition(&status, corev1.PodReady); got != tt.ready {
				t.Errorf("Ready: got %q, want %q", got, tt.ready)
			}
			if got := condition(&status, corev1.PodInitialized); got != tt.init {
				t.Errorf("Initialized: got %q, want %q", got, tt.init)
			}
			in := tt.in
			in.Pod = in.Pod.DeepCopy()
			in.Pod.Status = status
			in.Now = now.Add(time.Hour)
			if again := Build(in); !cmp.Equal(status, again) {
				t.Errorf("built again an hour later it differs:\n%s", cmp.Diff(status, again))
			}
		})
	}
}

// TestReadyToStartContainers: the condition follows the sandbox and its addresses, not the containers.
func TestReadyToStartContainers(t *testing.T) {
	always := corev1.RestartPolicyAlways
	for _, c := range []struct {
		what string
		edit func(in *Input)
		why  string // empty: the condition is True
	}{
		{"no sandbox", func(in *Input) { in.Observed.Sandboxes = nil }, "pod sandbox is not ready"},
		{"a sandbox that ended", func(in *Input) { in.Observed.Sandboxes[0].Ready = false }, "pod sandbox is not ready"},
		{
			"a sandbox without an address", func(in *Input) { in.Observed.Sandboxes[0].IPs = nil },
			"pod sandbox has no IP address",
		},
		{"a sandbox of the host's network", func(in *Input) {
			in.Observed.Sandboxes[0].IPs = nil
			in.Pod.Spec.HostNetwork = true
		}, ""},
		{"a sandbox, no container", func(*Input) {}, ""},
	} {
		in := input(pod(always, "a"))
		c.edit(&in)
		status := Build(in)
		i := slices.IndexFunc(status.Conditions, func(o corev1.PodCondition) bool {
			return o.Type == corev1.PodReadyToStartContainers
		})
		if i < 0 {
			t.Errorf("%s: no condition", c.what)
			continue
		}
		got := status.Conditions[i]
		if (got.Status == corev1.ConditionTrue) != (c.why == "") || got.Message != c.why ||
			(got.Reason == "PodSandboxNotReady") != (c.why != "") {
			t.Errorf("%s: got %+v, want message %q", c.what, got, c.why)
		}
	}
}

// TestConditionsObserveTheGeneration: also the condition PodScheduled, which the binding has written without a
// generation.
func TestConditionsObserveTheGeneration(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "c")
	bound := metav1.NewTime(now.Add(-time.Hour))
	p.Generation = 3
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: bound},
	}
	s := Build(input(p))
	if len(s.Conditions) != 5 {
		t.Errorf("got %d conditions", len(s.Conditions))
	}
	for _, c := range s.Conditions {
		if c.ObservedGeneration != 3 {
			t.Errorf("%s observes generation %d", c.Type, c.ObservedGeneration)
		}
		if c.Type == corev1.PodScheduled && !c.LastTransitionTime.Equal(&bound) {
			t.Errorf("%s has changed at %s", c.Type, c.LastTransitionTime)
		}
	}
}

// TestRejected: the status of a pod that was refused says nothing of containers, also after a restart; its conditions
// stay as others wrote them.
func TestRejected(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "init:i", "a")
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	in := input(p)
	in.End.Phase = corev1.PodFailed
	in.End.Reason = "OutOfcpu"
	in.End.Message = "Pod was rejected: it is too big"
	in.Terminal = true
	in.Rejected = true
	s := Build(in)
	if s.Phase != corev1.PodFailed || s.Reason != "OutOfcpu" || s.StartTime == nil ||
		len(s.ContainerStatuses)+len(s.InitContainerStatuses) > 0 || len(s.Conditions) != 1 {
		t.Errorf("got %+v", s)
	}
	p.Status = s
	if again := Build(input(p)); !equality.Semantic.DeepEqual(again, s) {
		t.Errorf("after a restart of the kubelet: %+v", again)
	}
}

func TestContainerStates(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "c")
	in := input(p, exited("c", 3))
	in.Waiting["c"] = Reason{"CrashLoopBackOff", "back-off"}
	in.TerminationMessage = func(*corev1.Container, *runtimestate.Container) string { return "last words" }
	cs := Build(in).ContainerStatuses[0]
	if cs.State.Waiting == nil || cs.State.Waiting.Reason != "CrashLoopBackOff" ||
		cs.LastTerminationState.Terminated == nil {
		t.Fatalf("back-off: got %+v", cs)
	}
	if last := cs.LastTerminationState.Terminated; last.ExitCode != 3 || last.Reason != "Error" ||
		last.Message != "last words" || last.ContainerID != "rt://c-id" {
		t.Errorf("last state: got %+v", last)
	}
	p.Status = Build(in)
	gone := input(p)
	gone.Terminal = true
	if st := Build(gone).ContainerStatuses[0].State.Terminated; st == nil || st.Reason != "ContainerStatusUnknown" {
		t.Errorf("a container the runtime forgot: got %+v, want ContainerStatusUnknown", st)
	}
}

// TestEndedBeforeItsTurn: of a deleted pod only those containers are lost whose turn had come; the others never
// started.
func TestEndedBeforeItsTurn(t *testing.T) {
	state := func(cs corev1.ContainerStatus) string {
		switch {
		case cs.State.Terminated != nil:
			return cs.State.Terminated.Reason
		case cs.State.Waiting != nil:
			return cs.State.Waiting.Reason
		}
		return "running"
	}
	tests := map[string]struct {
		in   Input
		want []string
	}{
		"init container failed": {input(pod(corev1.RestartPolicyAlways, "init:i", "init:j", "a"),
			exited("i", 1)), []string{"Error", "PodInitializing", "PodInitializing"}},
		"none began": {
			input(pod(corev1.RestartPolicyAlways, "init:i", "a")), []string{"PodInitializing", "PodInitializing"},
		},
		"the first is lost": {
			input(pod(corev1.RestartPolicyAlways, "init:i", "init:j", "a"), exited("j", 0)),
			[]string{"ContainerStatusUnknown", "Completed", "PodInitializing"},
		},
		"initialized": {
			input(pod(corev1.RestartPolicyAlways, "init:i", "a"), exited("i", 0)),
			[]string{"Completed", "ContainerStatusUnknown"},
		},
		"no init containers": {
			input(pod(corev1.RestartPolicyAlways, "a", "b"), exited("b", 0)),
			[]string{"ContainerStatusUnknown", "Completed"},
		},
	}
	for name, tt := range tests {
		tt.in.Terminal = true
		tt.in.Pod.DeletionTimestamp = &metav1.Time{Time: now}
		s := Build(tt.in)
		var got []string
		for _, cs := range append(s.InitContainerStatuses, s.ContainerStatuses...) {
			got = append(got, state(cs))
			if cs.Started != nil && *cs.Started {
				t.Errorf("%s: %s counts as started", name, cs.Name)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// TestStartFailed: a container whose start failed began when it ended, not in the year 1.
func TestStartFailed(t *testing.T) {
	c := exited("a", 128)
	c.Reason = "StartError"
	s := Build(input(pod(corev1.RestartPolicyNever, "a"), c))
	if st := s.ContainerStatuses[0].State.Terminated; st == nil || !st.StartedAt.Time.Equal(now) {
		t.Errorf("got %+v, want started at %v", st, now)
	}
}

// TestForgottenRun: what a container was before the runtime lost it is its last state when it runs again, whether or
// not that was written in between.
func TestForgottenRun(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "c")
	p.Status = Build(input(p, running("c")))
	next := running("c")
	next.ID = "c-next"
	next.Restart = 1
	check := func(when string, s corev1.PodStatus) {
		t.Helper()
		cs := s.ContainerStatuses[0]
		last := cs.LastTerminationState.Terminated
		if last == nil || last.ExitCode != 137 || last.Reason != "ContainerStatusUnknown" ||
			last.ContainerID != "rt://c-id" {
			t.Errorf("%s: last state %+v, want the lost run", when, last)
		}
	}
	again := input(p.DeepCopy(), next)
	s := Build(again)
	check("at once", s)
	if cs := s.ContainerStatuses[0]; cs.RestartCount != 1 || cs.State.Running == nil {
		t.Errorf("got %+v, want running, restarted once", cs)
	}
	between := input(p.DeepCopy())
	between.Waiting["c"] = Reason{Reason: "ContainerCreating"}
	p.Status = Build(between)
	check("waiting", p.Status)
	p.Status = Build(input(p.DeepCopy(), next))
	check("afterwards", p.Status)
	check("later", Build(input(p, next)))
}

// TestLeastLimit: limits too small for the kernel are reported as they were requested, others as they are.
func TestLeastLimit(t *testing.T) {
	for _, c := range []struct {
		asked string
		quota int64
		want  string
	}{
		{"5m", 1000, "5m"}, {"10m", 1000, "10m"}, {"5m", 2000, "20m"}, {"20m", 1000, "10m"}, {"20m", 2000, "20m"},
	} {
		p := pod(corev1.RestartPolicyAlways, "c")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(c.asked)}
		r := running("c")
		r.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: c.quota}
		if got := Build(input(p, r)).ContainerStatuses[0].Resources.Limits.Cpu().String(); got != c.want {
			t.Errorf("asked for %s, quota %d: got %s, want %s", c.asked, c.quota, got, c.want)
		}
	}
}

func TestReadinessSurvivesARestartOfTheKubelet(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "c")
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}
	if Build(input(p, running("c"))).ContainerStatuses[0].Ready {
		t.Error("ready before the first answer of its probe")
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true, ContainerID: "rt://c-id"}}
	if !Build(input(p, running("c"))).ContainerStatuses[0].Ready {
		t.Error("a container that was ready is not, before its probe has answered again")
	}
	p.Status.ContainerStatuses[0].ContainerID = "rt://another"
	if Build(input(p, running("c"))).ContainerStatuses[0].Ready {
		t.Error("a new run is ready because the one before was")
	}
}

// TestHealthOfDevices: the health of a main container's devices is reported, and stays when they are given back.
func TestHealthOfDevices(t *testing.T) {
	p := pod(corev1.RestartPolicyNever, "init:i", "c", "plain")
	in := input(p, exited("i", 0), running("c"), running("plain"))
	health := []corev1.ResourceStatus{
		{
			Name:      "example.com/card",
			Resources: []corev1.ResourceHealth{{ResourceID: "card-0", Health: corev1.ResourceHealthStatusUnhealthy}},
		},
	}
	in.Health = func(c *corev1.Container) []corev1.ResourceStatus {
		if c.Name == "plain" {
			return nil
		}
		return health
	}
	s := Build(in)
	if diff := cmp.Diff(health, s.ContainerStatuses[0].AllocatedResourcesStatus); diff != "" ||
		s.ContainerStatuses[1].AllocatedResourcesStatus != nil ||
		s.InitContainerStatuses[0].AllocatedResourcesStatus != nil {
		t.Errorf("(-want +got):\n%s\n%v", diff, s)
	}
	p.Status = s
	in = input(p, exited("i", 0), exited("c", 1), exited("plain", 0))
	in.Terminal = true
	if diff := cmp.Diff(health, Build(in).ContainerStatuses[0].AllocatedResourcesStatus); diff != "" {
		t.Errorf("when it has ended (-want +got):\n%s", diff)
	}
}

// TestHealthOfManyDevices: a driver that reports much about many devices of many containers does not make a status that
// is too large to be written. The devices that are not well are reported, and the status does not change by itself.
func TestHealthOfManyDevices(t *testing.T) {
	names := strings.Fields(strings.Repeat("c ", 20))
	var seen []runtimestate.Container
	health := map[string][]corev1.ResourceStatus{}
	for i := range names {
		names[i] += fmt.Sprint(i)
		seen = append(seen, running(names[i]))
		var devices []podinfo.DeviceHealth
		for j := range 256 {
			d := podinfo.DeviceHealth{
				IDs:     []string{fmt.Sprintf("gpus.example.com/device=%03d", j)},
				Health:  corev1.ResourceHealthStatusHealthy,
				Message: strings.Repeat("<", 1024),
			}
			if j == 255 {
				d.Health = corev1.ResourceHealthStatusUnhealthy
			}
			devices = append(devices, d)
		}
		health[names[i]] = []corev1.ResourceStatus{podinfo.Health("claim:c", devices)}
	}
	p := pod(corev1.RestartPolicyAlways, names...)
	in := input(p, seen...)
	in.Health = func(c *corev1.Container) []corev1.ResourceStatus { return health[c.Name] }
	status := Build(in)
	b, err := Patch(p, &status)
	if err != nil || len(b) > 512<<10 {
		t.Errorf("the status takes %d bytes, %v", len(b), err)
	}
	for i := range status.ContainerStatuses {
		cs := &status.ContainerStatuses[i]
		if !slices.ContainsFunc(cs.AllocatedResourcesStatus, func(r corev1.ResourceStatus) bool {
			return slices.ContainsFunc(r.Resources, func(h corev1.ResourceHealth) bool {
				return h.Health == corev1.ResourceHealthStatusUnhealthy && len(*h.Message) > 8
			})
		}) {
			t.Errorf("container %s does not report its device that is not well", cs.Name)
		}
		if whole := health[cs.Name][0].Resources; len(whole) != 256 || len(*whole[0].Message) != 1024 {
			t.Errorf("what is known of container %s was changed: %d devices, %d bytes of a message", cs.Name,
				len(whole), len(*whole[0].Message))
		}
	}
	p.Status = status
	if next := Build(in); !equality.Semantic.DeepEqual(status, next) {
		t.Errorf("written again, the status differs: %s", cmp.Diff(status, next))
	}
}

func TestPatchLeavesOthersAlone(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "c")
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue}}
	next := Build(input(p, running("c")))
	if condition(&next, "x/y") != "True" {
		t.Error("another's condition was lost")
	}
	b, err := Patch(p, &next)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Metadata struct{ UID string }
		Status   struct{ Conditions []struct{ Type string } }
	}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if m.Metadata.UID != "u" {
		t.Errorf("uid in patch: got %q, want u", m.Metadata.UID)
	}
	for _, c := range m.Status.Conditions {
		if c.Type == "x/y" {
			t.Errorf("the patch touches another's condition: %s", b)
		}
	}
	p.Status = next
	if b, err := Patch(p, &next); err != nil || b != nil {
		t.Errorf("no change: got %s, %v; want no patch", b, err)
	}
	if !slices.ContainsFunc(next.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == "fd00::2" }) ||
		next.HostIP != "192.0.2.1" {
		t.Errorf("addresses: got %v on %s", next.PodIPs, next.HostIP)
	}
}

func BenchmarkBuildAndPatch(b *testing.B) {
	p := pod(corev1.RestartPolicyAlways, "a", "b")
	in := input(p, running("a"), running("b"))
	for b.Loop() {
		s := Build(in)
		if _, err := Patch(p, &s); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRecursiveReadOnlyIsWhatWasDone: the status says what the runtime mounted, not what the pod asked for.
func TestRecursiveReadOnlyIsWhatWasDone(t *testing.T) {
	possible := corev1.RecursiveReadOnlyIfPossible
	c := &corev1.Container{
		Name: "c",
		VolumeMounts: []corev1.VolumeMount{
			{Name: "v", MountPath: "/done", ReadOnly: true, RecursiveReadOnly: &possible},
			{Name: "v", MountPath: "relative/", ReadOnly: true, RecursiveReadOnly: &possible},
			{Name: "v", MountPath: "/not", ReadOnly: true, RecursiveReadOnly: &possible},
			{Name: "v", MountPath: "/missing", ReadOnly: true, RecursiveReadOnly: &possible},
			{Name: "v", MountPath: "/written"},
		},
	}
	got := volumeMounts(c, &runtimestate.Container{Mounts: []*runtimeapi.Mount{
		{ContainerPath: "/done", RecursiveReadOnly: true},
		{ContainerPath: "/relative/", RecursiveReadOnly: true},
		{
			ContainerPath: "/not",
			Readonly:      true,
		},
		{ContainerPath: "/written"},
	}})
	for i, want := range []string{"Enabled", "Enabled", "Disabled", "Disabled", "none"} {
		mode := "none"
		if m := got[i].RecursiveReadOnly; m != nil {
			mode = string(*m)
		}
		if mode != want {
			t.Errorf("%s: got %s, want %s", got[i].MountPath, mode, want)
		}
	}
}

// TestReclaimedRun: when the newest run of a finished container is removed before the earlier one, the status stays
// that of the newest run.
func TestReclaimedRun(t *testing.T) {
	first := exited("a", 1)
	first.ID = "first"
	second := exited("a", 0)
	second.ID = "second"
	second.Restart = 1
	finished := pod(corev1.RestartPolicyOnFailure, "a")
	in := input(finished, second, first)
	in.Terminal = true
	in.Observed.Sandboxes = nil
	want := Build(in)
	if got := want.ContainerStatuses[0]; want.Phase != corev1.PodSucceeded || got.State.Terminated.ExitCode != 0 ||
		got.LastTerminationState.Terminated.ExitCode != 1 {
		t.Fatalf("before: got phase %s, %+v", want.Phase, got)
	}
	for name, left := range map[string][]runtimestate.Container{
		"the earlier run is left": {first},
		"the newest run is left":  {second},
		"none is left":            nil,
	} {
		finished.Status = want
		in.Observed.Containers = left
		if diff := cmp.Diff(want, Build(in)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", name, diff)
		}
	}
}

// TestEndedBeforeItsStart: a pod that was evicted before its containers ran does not seem to be created still.
func TestEndedBeforeItsStart(t *testing.T) {
	in := input(pod(corev1.RestartPolicyAlways, "a"))
	in.End.Phase = corev1.PodFailed
	in.End.Reason = "Evicted"
	in.Terminal = true
	got := Build(in).ContainerStatuses[0].State.Terminated
	if got == nil || got.Reason != "ContainerStatusUnknown" || got.ExitCode != 137 {
		t.Errorf("got %+v, want terminated, ContainerStatusUnknown", got)
	}
	waits := input(pod(corev1.RestartPolicyAlways, "init:i", "a"))
	waits.End.Phase = corev1.PodFailed
	waits.Terminal = true
	if got := Build(waits).ContainerStatuses[0].State; got.Waiting == nil {
		t.Errorf("its init container has not run: got %+v, want waiting", got)
	}
}
