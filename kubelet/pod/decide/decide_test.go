// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/holdback"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// world is a pod and what there is of it, in a few words per container: "c=running", "c=exited:1", "c=created",
// "c#1=running".
type world struct {
	pod     *corev1.Pod
	box     string // ready, stopped, none
	have    []string
	probes  map[string]probe.Result // "c/Liveness"
	flights []Action
	failed  map[string]Failed
	crashes map[string]Crash
	change  func(*Input)
}

func podOf(policy corev1.RestartPolicy, init []corev1.Container, main ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec:       corev1.PodSpec{RestartPolicy: policy, InitContainers: init, Containers: main},
	}
}

func ctr(name string, change ...func(*corev1.Container)) corev1.Container {
	c := corev1.Container{Name: name, Image: "img"}
	for _, f := range change {
		f(&c)
	}
	return c
}

func sidecar(c *corev1.Container) {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
}

func withLiveness(c *corev1.Container)  { c.LivenessProbe = &corev1.Probe{} }
func withReadiness(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }
func withStartup(c *corev1.Container)   { c.StartupProbe = &corev1.Probe{} }

func (w world) input(t *testing.T) Input {
	t.Helper()
	seen := &runtimestate.Pod{UID: "u"}
	switch w.box {
	case "ready", "":
		seen.Sandboxes = []runtimestate.Sandbox{{ID: "box", Ready: true, IPs: []string{"10.0.0.2"}}}
	case "stopped":
		seen.Sandboxes = []runtimestate.Sandbox{{ID: "box"}}
	}
	for _, h := range w.have {
		name, state, _ := strings.Cut(h, "=")
		name, attempt, _ := strings.Cut(name, "#")
		container := runtimestate.Container{
			Name:      name,
			SandboxID: "box",
			ID:        name + "-id",
			Started:   now.Add(-time.Hour),
		}
		if attempt != "" {
			if _, err := fmt.Sscan(attempt, &container.Restart); err != nil {
				t.Fatal(err)
			}
			container.ID += attempt
		}
		state, code, _ := strings.Cut(state, ":")
		switch state {
		case "running":
			container.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		case "exited":
			container.State = runtimeapi.ContainerState_CONTAINER_EXITED
			container.Finished = now.Add(-time.Second)
			if _, err := fmt.Sscan(code, &container.ExitCode); err != nil {
				t.Fatal(err)
			}
		case "created":
			container.State = runtimeapi.ContainerState_CONTAINER_CREATED
		case "lost":
			container.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
		}
		seen.Containers = append(seen.Containers, container)
	}
	in := Input{
		Pod:      w.pod,
		Observed: seen,
		Now:      now,
		Progress: Progress{VolumesDone: true},
		Flights:  map[string]Flight{},
		Failed:   w.failed,
		Crashes:  w.crashes,
		CrashMax: CrashMax,
		Result: func(k probe.Key) probe.Result {
			name, _, _ := strings.Cut(k.ContainerID, "-id")
			return w.probes[name+"/"+string(k.Kind)]
		},
	}
	for _, a := range w.flights {
		in.Flights[a.Key()] = Flight{Action: a, Began: now}
	}
	if w.change != nil {
		w.change(&in)
	}
	return in
}

func words(plan Plan) []string {
	var out []string
	for _, action := range plan.Actions {
		s := string(action.Op)
		if action.Container != "" {
			s += " " + action.Container
		}
		if action.Restart > 0 {
			s += fmt.Sprintf(" #%d", action.Restart)
		}
		if action.Attempt > 0 {
			s += fmt.Sprintf(" attempt %d", action.Attempt)
		}
		if action.Replace != "" {
			s += " instead of " + action.Replace
		}
		out = append(out, s)
	}
	for _, c := range plan.Cancel {
		out = append(out, "cancel "+c)
	}
	for _, n := range slices.Sorted(maps.Keys(plan.Waiting)) {
		out = append(out, n+" waits "+plan.Waiting[n].Reason)
	}
	for _, t := range plan.Probes {
		out = append(out, fmt.Sprintf("probe %s %s", t.Container.Name, t.Kind))
	}
	if plan.Terminal {
		out = append(out, "terminal")
	}
	return out
}

func deleted(p *corev1.Pod) *corev1.Pod {
	t := metav1.NewTime(now)
	g := int64(7)
	p.DeletionTimestamp = &t
	p.DeletionGracePeriodSeconds = &g
	return p
}

var heldBack = &holdback.Hold{Until: now.Add(time.Minute), Message: "Keelson ended twice."}

func held(in *Input) { in.Held = heldBack }

// ranBefore gives a pod the status of one whose containers have run, and were restarted twice.
func ranBefore(p *corev1.Pod) *corev1.Pod {
	p.Status.Phase = corev1.PodRunning
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:         c.Name,
			ContainerID:  "rt://" + c.Name,
			RestartCount: 2,
			State:        corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		})
	}
	return p
}

func TestDecideStarting(t *testing.T) {
	always := corev1.RestartPolicyAlways
	never := corev1.RestartPolicyNever
	onFailure := corev1.RestartPolicyOnFailure
	tests := map[string]struct {
		w    world
		want []string
	}{
		"nothing there: volumes first": {
			world{pod: podOf(always, nil, ctr("c")), box: "none", change: func(in *Input) { in.VolumesDone = false }},
			[]string{"volumes", "c waits ContainerCreating"},
		},
		"forgotten by the runtime": {
			world{pod: ranBefore(podOf(always, nil, ctr("c"))), box: "ready"},
			[]string{"start c #3", "c waits ContainerCreating"},
		},
		"forgotten by the runtime, and not to run twice": {
			world{pod: ranBefore(podOf(never, nil, ctr("c"))), box: "none"}, []string{"tearDown", "terminal"},
		},
		"forgotten by the runtime, its start under way": {
			world{pod: ranBefore(podOf(never, nil, ctr("c"))), flights: []Action{{Op: OpStart, Container: "c"}}},
			[]string{"c waits ContainerCreating"},
		},
		"volumes failed lately": {
			world{
				pod:    podOf(always, nil, ctr("c")),
				box:    "none",
				failed: map[string]Failed{"volumes": {Retry: now.Add(time.Second)}},
				change: func(in *Input) { in.VolumesDone = false },
			},
			[]string{"c waits ContainerCreating"},
		},
		"then the sandbox": {
			world{pod: podOf(always, nil, ctr("c")), box: "none"},
			[]string{"sandbox", "c waits ContainerCreating"},
		},
		"then all containers together": {
			world{pod: podOf(always, nil, ctr("a"), ctr("b"))},
			[]string{"start a", "start b", "a waits ContainerCreating", "b waits ContainerCreating"},
		},
		"init containers one by one": {
			world{pod: podOf(always, []corev1.Container{ctr("i"), ctr("j")}, ctr("c"))},
			[]string{"start i", "c waits PodInitializing", "i waits PodInitializing", "j waits PodInitializing"},
		},
		"the second after the first": {
			world{pod: podOf(always, []corev1.Container{ctr("i"), ctr("j")}, ctr("c")), have: []string{"i=exited:0"}},
			[]string{"start j", "c waits PodInitializing", "j waits PodInitializing"},
		},
		"not while the first runs": {
			world{pod: podOf(always, []corev1.Container{ctr("i")}, ctr("c")), have: []string{"i=running"}},
			[]string{"c waits PodInitializing"},
		},
		"main after all init": {
			world{pod: podOf(always, []corev1.Container{ctr("i")}, ctr("c")), have: []string{"i=exited:0"}},
			[]string{"start c", "c waits PodInitializing"},
		},
		"init fails: again under Always": {
			world{pod: podOf(always, []corev1.Container{ctr("i")}, ctr("c")), have: []string{"i=exited:1"}},
			[]string{"start i #1", "c waits PodInitializing"},
		},
		"init fails: over under Never": {
			world{pod: podOf(never, []corev1.Container{ctr("i")}, ctr("c")), have: []string{"i=exited:1"}},
			[]string{"stopSandbox", "terminal"},
		},
		"a sidecar starts, the rest wait": {
			world{pod: podOf(always, []corev1.Container{ctr("s", sidecar)}, ctr("c"))},
			[]string{"start s", "c waits PodInitializing", "s waits PodInitializing"},
		},
		"main after the sidecar started": {
			world{pod: podOf(always, []corev1.Container{ctr("s", sidecar)}, ctr("c")), have: []string{"s=running"}},
			[]string{"start c", "c waits PodInitializing"},
		},
		"not before its startup probe": {
			world{
				pod: podOf(always, []corev1.Container{ctr("s", sidecar, withStartup)}, ctr("c")),
				have: []string{
					"s=running",
				},
			},
			[]string{"c waits PodInitializing", "probe s Startup"},
		},
		"after its startup probe": {
			world{
				pod: podOf(always, []corev1.Container{ctr("s", sidecar, withStartup)}, ctr("c")),
				have: []string{
					"s=running",
				},
				probes: map[string]probe.Result{"s/Startup": probe.Success},
			},
			[]string{"start c", "c waits PodInitializing"},
		},
		"init is not run again next to a main container": {
			world{
				pod: podOf(always, []corev1.Container{ctr("i"), ctr("s", sidecar)}, ctr("c")),
				have: []string{
					"s=exited:1", "c=running",
				},
			},
			[]string{"start s #1"},
		},
		"an exited main starts again": {
			world{pod: podOf(always, nil, ctr("c")), have: []string{"c=exited:0"}},
			[]string{"start c #1"},
		},
		"not under OnFailure with 0": {
			world{pod: podOf(onFailure, nil, ctr("c")), have: []string{"c=exited:0"}},
			[]string{"stopSandbox", "terminal"},
		},
		"under OnFailure with 1": {
			world{pod: podOf(onFailure, nil, ctr("c")), have: []string{"c=exited:1"}},
			[]string{"start c #1"},
		},
		"back-off": {
			world{
				pod:  podOf(always, nil, ctr("c")),
				have: []string{"c#2=exited:1"},
				crashes: map[string]Crash{
					"c": {Delay: 20 * time.Second, Updated: now.Add(-time.Minute)},
				},
			},
			[]string{"c waits CrashLoopBackOff"},
		},
		"back-off is over": {
			world{
				pod:  podOf(always, nil, ctr("c")),
				have: []string{"c#2=exited:1"},
				crashes: map[string]Crash{
					"c": {Delay: time.Second, Updated: now.Add(-time.Minute)},
				},
			},
			[]string{"start c #3"},
		},
		"held back: no volumes": {
			world{
				pod: podOf(always, nil, ctr("c")),
				box: "none",
				change: func(in *Input) {
					in.VolumesDone = false
					in.Held = heldBack
				},
			}, []string{"c waits StartHeldBack"},
		},
		"held back: no sandbox": {
			world{pod: podOf(always, nil, ctr("c")), box: "none", change: held},
			[]string{"c waits StartHeldBack"},
		},
		"held back: what runs is probed, and its volumes are looked after": {
			world{
				pod:  podOf(always, nil, ctr("a", withLiveness), ctr("b")),
				have: []string{"a=running", "b=exited:1"},
				change: func(in *Input) {
					in.VolumesDirty = true
					in.Held = heldBack
				},
			},
			[]string{"volumes", "b waits StartHeldBack", "probe a Liveness"},
		},
		"held back, and deleted": {
			world{pod: deleted(podOf(always, nil, ctr("c"))), have: []string{"c=running"}, change: held},
			[]string{"stop c"},
		},
		"created and never started": {
			world{pod: podOf(always, nil, ctr("c")), have: []string{"c=created"}},
			[]string{"start c instead of c-id"},
		},
		"lost by the runtime": {
			world{pod: podOf(always, nil, ctr("c")), have: []string{"c=lost"}},
			[]string{"stop c"},
		},
		"an image that cannot be pulled": {
			world{
				pod: podOf(always, nil, ctr("c")),
				failed: map[string]Failed{
					"start/c": {Waiting: Waiting{Reason: "ErrImagePull"}, Retry: now.Add(time.Minute)},
				},
			},
			[]string{"c waits ErrImagePull"},
		},
		"shown as back-off later": {
			world{
				pod: podOf(always, nil, ctr("c")),
				failed: map[string]Failed{"start/c": {
					Waiting: Waiting{Reason: "ErrImagePull"},
					Retry:   now.Add(time.Minute),
					ThenAt:  now,
					Then:    Waiting{Reason: "ImagePullBackOff"},
				}},
			},
			[]string{"c waits ImagePullBackOff"},
		},
		"a start under way": {
			world{pod: podOf(always, nil, ctr("c")), flights: []Action{{Op: OpStart, Container: "c"}}},
			[]string{"c waits ContainerCreating"},
		},
		"the sandbox is gone: what runs in it ends": {
			world{pod: podOf(always, nil, ctr("c")), box: "stopped", have: []string{"c=running"}}, []string{"stop c"},
		},
		"and a new one is made": {
			world{pod: podOf(always, nil, ctr("c")), box: "stopped", have: []string{"c=exited:137"}},
			[]string{"sandbox attempt 1"},
		},
		"old runs are forgotten, the one before is kept": {
			world{pod: podOf(always, nil, ctr("c")), have: []string{"c#2=running", "c#1=exited:1", "c=exited:1"}},
			[]string{"removeContainer c"},
		},
		"an ephemeral container joins": {
			world{
				pod: func() *corev1.Pod {
					p := podOf(always, nil, ctr("c"))
					p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
						{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}},
					}
					return p
				}(),
				have: []string{"c=running"},
			}, []string{"start debug", "debug waits ContainerCreating"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := words(Decide(tt.w.input(t)))
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			again := words(Decide(tt.w.input(t)))
			if !slices.Equal(got, again) {
				t.Errorf("the same input gave %q and then %q", got, again)
			}
		})
	}
}

func TestDecideProbes(t *testing.T) {
	pod := podOf(corev1.RestartPolicyAlways, nil, ctr("c", withLiveness, withReadiness, withStartup))
	tests := map[string]struct {
		results map[string]probe.Result
		want    []string
	}{
		"startup alone at first": {nil, []string{"probe c Startup"}},
		"the others after it": {
			map[string]probe.Result{"c/Startup": probe.Success},
			[]string{"probe c Liveness", "probe c Readiness"},
		},
		"a failed startup ends it": {map[string]probe.Result{"c/Startup": probe.Failure}, []string{"stop c"}},
		"failed liveness ends it": {
			map[string]probe.Result{"c/Startup": probe.Success, "c/Liveness": probe.Failure},
			[]string{"stop c", "probe c Readiness"},
		},
		"failed readiness does not": {
			map[string]probe.Result{"c/Startup": probe.Success, "c/Readiness": probe.Failure},
			[]string{"probe c Liveness", "probe c Readiness"},
		},
		"liveness before startup: not": {
			map[string]probe.Result{"c/Liveness": probe.Failure},
			[]string{"probe c Startup"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := words(Decide(world{pod: pod, have: []string{"c=running"}, probes: tt.results}.input(t)))
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	plan := Decide(world{
		pod:  pod,
		have: []string{"c=running"},
		probes: map[string]probe.Result{
			"c/Startup":  probe.Success,
			"c/Liveness": probe.Failure,
		},
	}.input(t))
	if want := "Container c failed liveness probe, will be restarted"; plan.Actions[0].Event != want {
		t.Errorf("event: got %q, want %q", plan.Actions[0].Event, want)
	}
}

func TestDecideStopping(t *testing.T) {
	always := corev1.RestartPolicyAlways
	side := []corev1.Container{ctr("s1", sidecar), ctr("s2", sidecar)}
	tests := map[string]struct {
		w    world
		want []string
	}{
		"containers first": {world{
			pod: deleted(podOf(always, nil, ctr("a"), ctr("b"))),
			have: []string{
				"a=running", "b=running",
			},
		}, []string{"stop a", "stop b"}},
		"a start is cancelled": {world{
			pod: deleted(podOf(always, nil, ctr("a"))),
			flights: []Action{
				{Op: OpStart, Container: "a"},
			},
		}, []string{"cancel start/a"}},
		"sidecars last, reverse": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=running", "s1=running", "s2=running",
			},
		}, []string{"stop a", "preStop s1", "preStop s2"}},
		"the end of sidecars begins once": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=running", "s1=running", "s2=running",
			},
			flights: []Action{
				{Op: OpPreStop, Container: "s1", ID: "s1-id", Grace: 7},
			},
			change: func(in *Input) { in.Ending = map[string]int64{"s2-id": 7} },
		}, []string{"stop a"}},
		"or again, to be quicker": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=running", "s1=running", "s2=running",
			},
			flights: []Action{
				{Op: OpPreStop, Container: "s1", ID: "s1-id", Grace: 40},
			},
			change: func(in *Input) { in.Ending = map[string]int64{"s2-id": 40} },
		}, []string{"stop a", "preStop s2", "cancel preStop/s1-id"}},
		"a sidecar's hook ends before its signal": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=exited:0", "s1=running", "s2=running",
			},
			flights: []Action{
				{Op: OpPreStop, Container: "s2", ID: "s2-id", Grace: 7},
			},
			change: func(in *Input) { in.Ending = map[string]int64{"s1-id": 7, "s2-id": 7} },
		}, nil},
		"then the last sidecar": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=exited:0", "s1=running", "s2=running",
			},
		}, []string{"preStop s1", "stop s2"}},
		"then the first": {world{
			pod: deleted(podOf(always, side, ctr("a"))),
			have: []string{
				"a=exited:0", "s1=running", "s2=exited:0",
			},
		}, []string{"stop s1"}},
		"then the sandbox": {
			world{pod: deleted(podOf(always, nil, ctr("a"))), have: []string{"a=exited:0"}},
			[]string{"stopSandbox", "terminal"},
		},
		"then volumes": {world{
			pod: deleted(podOf(always, nil, ctr("a"))),
			box: "stopped",
			have: []string{
				"a=exited:0",
			},
		}, []string{"tearDown", "terminal"}},
		"not before the status is written": {
			world{
				pod: deleted(podOf(always, nil, ctr("a"))),
				box: "stopped",
				change: func(in *Input) {
					in.TornDown = true
				},
			}, []string{"terminal"},
		},
		"then the API": {
			world{
				pod: deleted(podOf(always, nil, ctr("a"))),
				box: "stopped",
				change: func(in *Input) {
					in.TornDown = true
					in.StatusDone = true
				},
			},
			[]string{"delete", "terminal"},
		},
		"then the rest": {
			world{
				pod: deleted(podOf(always, nil, ctr("a"))),
				box: "stopped",
				change: func(in *Input) {
					in.TornDown = true
					in.StatusDone = true
					in.Deleted = true
				},
			},
			[]string{"forget", "terminal"},
		},
		"gone from the API: no status, no delete": {
			world{
				pod: podOf(always, nil, ctr("a")),
				box: "stopped",
				change: func(in *Input) {
					in.Gone = true
					in.TornDown = true
				},
			}, []string{"forget", "terminal"},
		},
		"a verdict stops it": {
			world{
				pod:  podOf(always, nil, ctr("a")),
				have: []string{"a=running"},
				change: func(in *Input) {
					in.End = &End{Phase: corev1.PodFailed}
				},
			}, []string{"stop a"},
		},
		"and keeps it": {
			world{
				pod:  podOf(always, nil, ctr("a")),
				box:  "stopped",
				have: []string{"a=exited:1"},
				change: func(in *Input) {
					in.End = &End{Phase: corev1.PodFailed}
					in.TornDown = true
				},
			},
			[]string{"terminal"},
		},
		"finished: sidecars end": {
			world{
				pod:  podOf(corev1.RestartPolicyNever, side, ctr("a")),
				have: []string{"a=exited:0", "s1=running", "s2=running"},
			}, []string{"preStop s1", "stop s2"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := words(Decide(tt.w.input(t))); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestASecondDeletionIsQuicker(t *testing.T) {
	p := deleted(podOf(corev1.RestartPolicyAlways, nil, ctr("a")))
	w := world{
		pod:  p,
		have: []string{"a=running"},
		flights: []Action{{
			Op:        OpStop,
			Container: "a",
			ID:        "a-id",
			Grace:     30,
		}},
	}
	if got, want := words(Decide(w.input(t))), []string{"cancel stop/a-id"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDeadline(t *testing.T) {
	p := podOf(corev1.RestartPolicyAlways, nil, ctr("a"))
	seconds := int64(60)
	p.Spec.ActiveDeadlineSeconds = &seconds
	start := metav1.NewTime(now.Add(-30 * time.Second))
	p.Status.StartTime = &start
	plan := Decide(world{pod: p, have: []string{"a=running"}}.input(t))
	if want := now.Add(30 * time.Second); plan.End != nil || !plan.Wake.Equal(want) {
		t.Errorf("before: got end %v, wake %s; want none, %s", plan.End, plan.Wake, want)
	}
	start = metav1.NewTime(now.Add(-60 * time.Second))
	plan = Decide(world{pod: p, have: []string{"a=running"}}.input(t))
	if plan.End == nil || plan.End.Reason != "DeadlineExceeded" || !slices.Equal(words(plan), []string{"stop a"}) {
		t.Errorf("after: got %v %q, want DeadlineExceeded and stop a", plan.End, words(plan))
	}
}

func TestCrashBackOff(t *testing.T) {
	var crash Crash
	at := now
	var got []time.Duration
	for range 8 {
		if over, until := crash.Over(at, at, CrashMax); !over {
			at = until
		}
		crash = crash.Next(at, at, CrashMax)
		got = append(got, crash.Delay)
	}
	want := []time.Duration{10, 20, 40, 80, 160, 300, 300, 300}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Errorf("delays: got %v, want %v", got, want)
	}
	if crash = crash.Next(at.Add(11*time.Minute), at.Add(11*time.Minute), CrashMax); crash.Delay != crashMin {
		t.Errorf("after ten quiet minutes: got %s, want %s", crash.Delay, crashMin)
	}
}

// TestShorterBackOff: the longest back-off may be less than the first one usually is, also for delays of earlier runs.
func TestShorterBackOff(t *testing.T) {
	const most = 3 * time.Second
	crash := Crash{}.Next(now, now, most).Next(now, now, most)
	if crash.Delay != most {
		t.Errorf("second delay: got %s, want %s", crash.Delay, most)
	}
	crash.Delay = time.Minute
	if _, until := crash.Over(now, now, most); !until.Equal(now.Add(most)) {
		t.Errorf("a delay of an earlier run ends at %s, want %s", until, now.Add(most))
	}
	pod := podOf(corev1.RestartPolicyAlways, nil, ctr("a"))
	plan := Decide(world{
		pod:     pod,
		have:    []string{"a=exited:1"},
		crashes: map[string]Crash{"a": {Delay: time.Minute, Updated: now.Add(-2 * time.Second)}},
		change:  func(in *Input) { in.CrashMax = most },
	}.input(t))
	if want := "back-off 3s restarting failed container=a pod=p_ns(u)"; plan.Waiting["a"].Message != want {
		t.Errorf("waiting: got %q, want %q", plan.Waiting["a"].Message, want)
	}
}

func TestRestartAfter(t *testing.T) {
	rule := func(c *corev1.Container) {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
				Values:   []int32{42},
			},
		}}
	}
	never := func(c *corev1.Container) {
		p := corev1.ContainerRestartPolicyNever
		c.RestartPolicy = &p
	}
	tests := []struct {
		pod  corev1.RestartPolicy
		c    corev1.Container
		kind podinfo.Kind
		code int32
		want bool
	}{
		{corev1.RestartPolicyNever, ctr("c"), podinfo.Main, 1, false},
		{corev1.RestartPolicyNever, ctr("c", rule), podinfo.Main, 42, true},
		{corev1.RestartPolicyNever, ctr("c", rule), podinfo.Main, 1, false},
		{corev1.RestartPolicyAlways, ctr("c", never), podinfo.Main, 0, false},
		{corev1.RestartPolicyNever, ctr("s", sidecar), podinfo.SideCar, 0, true},
		{corev1.RestartPolicyAlways, ctr("i"), podinfo.Init, 0, false},
		{corev1.RestartPolicyAlways, ctr("i"), podinfo.Init, 1, true},
		{corev1.RestartPolicyAlways, ctr("e"), podinfo.Ephemeral, 1, false},
	}
	for _, tt := range tests {
		if got := podinfo.RestartAfter(podOf(tt.pod, nil), &tt.c, tt.kind, tt.code); got != tt.want {
			t.Errorf("%s container %s under %s after %d: got %t, want %t", tt.kind.Field(), tt.c.Name, tt.pod, tt.code,
				got, tt.want)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	in := world{
		pod: podOf(corev1.RestartPolicyAlways, []corev1.Container{ctr("i")}, ctr("a", withReadiness),
			ctr("b")),
		have: []string{"i=exited:0", "a=running", "b=running"},
	}.input(&testing.T{})
	for b.Loop() {
		Decide(in)
	}
}

// TestDevicesFirst: a pod with claims has not ended before its devices are given back.
func TestDevicesFirst(t *testing.T) {
	pod := podOf(corev1.RestartPolicyNever, nil, ctr("c"))
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	extended := podOf(corev1.RestartPolicyNever, nil, ctr("c"))
	extended.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
	for _, tt := range []struct {
		name     string
		change   func(*Input)
		terminal bool
		acts     bool
	}{
		{"its work is over", func(*Input) {}, false, true},
		{"and its devices are back", func(in *Input) { in.TornDown = true }, true, false},
		{"it is deleted", func(in *Input) { in.Gone = true }, false, true},
		{"its claim is for extended resources", func(in *Input) { in.Pod = extended }, false, true},
		{"it was refused", func(in *Input) { in.End = &End{Phase: corev1.PodFailed, Rejected: true} }, false, true},
	} {
		in := world{pod: pod, box: "stopped", have: []string{"c=exited:0"}}.input(t)
		in.Pod = pod
		in.VolumesDone = true
		tt.change(&in)
		plan := Decide(in)
		tears := slices.ContainsFunc(plan.Actions, func(a Action) bool { return a.Op == OpTearDown })
		if plan.Terminal != tt.terminal || tears != tt.acts {
			t.Errorf("%s: terminal %v, actions %v", tt.name, plan.Terminal, plan.Actions)
		}
	}
}

// TestEphemeralContainersRunOnce: an ephemeral container that the runtime has lost is not started again.
func TestEphemeralContainersRunOnce(t *testing.T) {
	p := podOf(corev1.RestartPolicyAlways, nil, ctr("c"))
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}},
	}
	p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", ContainerID: "x://debug-id"}}
	in := world{pod: p}.input(t)
	in.Observed.Sandboxes = []runtimestate.Sandbox{{ID: "box", Ready: true}}
	for _, a := range Decide(in).Actions {
		if a.Container == "debug" {
			t.Errorf("action %+v", a)
		}
	}
}
