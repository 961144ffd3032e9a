// SPDX-License-Identifier: Apache-2.0

package text

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/timeline/story"
)

// clock is a time of day as the texts have it.
func clock(seconds int) (metav1.Time, string) {
	t := time.Date(2026, 5, 1, 12, 0, seconds, 0, time.Local)
	return metav1.NewTime(t), t.Format(time.TimeOnly)
}

func waiting(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason:  reason,
			Message: message,
		}},
	}
}

func runs(name string, started, ready bool) corev1.ContainerStatus {
	at, _ := clock(1)
	return corev1.ContainerStatus{
		Name:    name,
		Ready:   ready,
		Started: &started,
		State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
	}
}

func over(name string, code int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name:  name,
		Ready: code == 0,
		State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message},
		},
	}
}

// afterFailure is a container that waits after a run that failed.
func afterFailure(s, last corev1.ContainerStatus) corev1.ContainerStatus {
	s.LastTerminationState = last.State
	return s
}

func warningEvent(reason, field, message string, count int32, second int) Warning {
	at, _ := clock(second)
	return WarningOf(&corev1.Event{
		Reason:         reason,
		Message:        message,
		Count:          count,
		LastTimestamp:  at,
		InvolvedObject: corev1.ObjectReference{FieldPath: field},
	})
}

// TestNotReady: for a pod that has a node and is not Ready, `why` prints first what its kubelet reports.
func TestNotReady(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	spec := corev1.PodSpec{
		NodeName: "n",
		Containers: []corev1.Container{
			{Name: "app", ReadinessProbe: &corev1.Probe{}, StartupProbe: &corev1.Probe{}}, {Name: "log"},
		},
	}
	init := spec
	init.InitContainers = []corev1.Container{
		{Name: "one"},
		{Name: "side", RestartPolicy: &always, StartupProbe: &corev1.Probe{}},
		{Name: "two"},
	}
	_, second := clock(1)
	_, ninth := clock(9)
	statuses := func(list ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: list}
	}
	initStatuses := func(list ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{
			InitContainerStatuses: list,
			ContainerStatuses: []corev1.ContainerStatus{
				waiting("app", "PodInitializing", ""), waiting("log", "PodInitializing", ""),
			},
		}
	}
	condition := func(s corev1.PodStatus, c corev1.PodCondition) corev1.PodStatus {
		c.Type = corev1.PodReady
		s.Conditions = []corev1.PodCondition{c}
		return s
	}
	creating := statuses(waiting("app", "ContainerCreating", ""), waiting("log", "ContainerCreating", ""))
	scheduling := warningEvent("FailedScheduling", "", "0/1 nodes are available", 1, 10)
	for name, tt := range map[string]struct {
		spec     corev1.PodSpec
		status   corev1.PodStatus
		warnings []Warning
		node     *corev1.Node
		want     []string
	}{
		"ready": {spec, condition(statuses(runs("app", true, true)), corev1.PodCondition{
			Status: corev1.ConditionTrue,
		}), nil, nil, nil},
		"no node":   {corev1.PodSpec{Containers: spec.Containers}, corev1.PodStatus{}, nil, nil, nil},
		"succeeded": {spec, corev1.PodStatus{Phase: corev1.PodSucceeded}, nil, nil, nil},
		"evicted":   {spec, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, nil, nil, nil},
		"failed": {
			spec,
			corev1.PodStatus{
				Phase: corev1.PodFailed,
				ContainerStatuses: []corev1.ContainerStatus{
					over("app", 2, "Error", "no disk\n"), over("log", 0, "Completed", ""),
				},
			},
			nil, nil,
			[]string{"container app ended with exit code 2 (Error): no disk"},
		},
		"image": {
			spec, statuses(waiting("app", "ImagePullBackOff", `Back-off pulling image "x"`),
				runs("log", true, true)), nil, nil,
			[]string{`container app waits: ImagePullBackOff: Back-off pulling image "x"`},
		},
		"crash loop": {
			spec, statuses(afterFailure(waiting("app", "CrashLoopBackOff", "back-off 10s"),
				over("", 137, "OOMKilled", "")), waiting("log", "ErrImagePull", "no such image")), nil, nil,
			[]string{
				"container app waits: CrashLoopBackOff: back-off 10s; its last run ended with exit code 137 " +
					"(OOMKilled)", "container log waits: ErrImagePull: no such image",
			},
		},
		"readiness": {spec, statuses(runs("app", true, false), runs("log", true, true)), []Warning{
			warningEvent("Unhealthy", "spec.containers{app}",
				"Readiness probe failed: HTTP probe failed with statuscode: 404", 1, 3),
			warningEvent("Unhealthy", "spec.containers{app}",
				"Readiness probe failed: HTTP probe failed with statuscode: 500", 12, 9),
			warningEvent("Unhealthy", "spec.containers{app}", "Liveness probe failed: no", 1, 20),
			warningEvent("Unhealthy", "spec.containers{log}", "Readiness probe failed: no", 1, 20),
		}, nil, []string{"container app runs, but is not ready: Readiness probe failed: HTTP probe failed with " +
			"statuscode: 500 (12 times, last at " + ninth + ")"}},
		"startup": {
			spec, statuses(runs("app", false, false), runs("log", true, true)),
			[]Warning{
				warningEvent("Unhealthy", "spec.containers{app}", "Startup probe failed: a\x1b[31mb\n", 1, 9),
			},
			nil,
			[]string{"container app runs, but is not ready: Startup probe failed: a [31mb (last at " + ninth + ")"},
		},
		"first probe to come": {
			spec, statuses(runs("app", true, false), runs("log", true, true)), nil, nil,
			[]string{"container app runs, and its readiness probe has not succeeded yet"},
		},
		"volume": {
			spec, creating,
			[]Warning{
				scheduling, warningEvent("FailedMount", "",
					"MountVolume.SetUp failed for volume \"v\" : configmap \"c\" not found.", 3, 9),
			},
			nil,
			[]string{
				`containers app, log are not created yet: FailedMount: MountVolume.SetUp failed for volume "v" : configmap "c" not found (3 times, last at ` +
					ninth + ")",
			},
		},
		"being created": {
			spec, creating, []Warning{scheduling}, nil, []string{"containers app, log are being created"},
		},
		"nothing is reported": {
			spec,
			corev1.PodStatus{},
			[]Warning{scheduling},
			nil,
			[]string{"the kubelet of its node n has not reported anything about it yet"},
		},
		"silent node": {
			spec,
			corev1.PodStatus{},
			nil, &corev1.Node{
				Status: corev1.NodeStatus{
					Conditions: []corev1.NodeCondition{
						{
							Type:    corev1.NodeReady,
							Status:  corev1.ConditionUnknown,
							Message: "Kubelet stopped posting node status.",
						},
					},
				},
			},
			[]string{
				"its node n is not Ready, so this may be old: Kubelet stopped posting node status.",
				"the kubelet of its node n has not reported anything about it yet",
			},
		},
		"init runs": {
			init, initStatuses(over("one", 0, "Completed", ""), runs("side", true, true),
				afterFailure(runs("two", false, false), over("", 1, "Error", ""))), nil, nil,
			[]string{
				"init container two (3 of 3) runs since " + second + "; the containers start after it; its last run " +
					"ended with exit code 1 (Error)",
			},
		},
		"init fails": {
			init,
			initStatuses(afterFailure(waiting("one", "CrashLoopBackOff", "back-off 20s"), over("", 1, "Error", "")),
				waiting("side", "PodInitializing", ""), waiting("two", "PodInitializing", "")), nil, nil,
			[]string{
				"init container one (1 of 3) waits: CrashLoopBackOff: back-off 20s; its last run ended with exit " +
					"code 1 (Error)",
			},
		},
		"init is not created": {
			init, initStatuses(waiting("one", "PodInitializing", "")),
			[]Warning{warningEvent("FailedCreatePodSandBox", "", "no network", 1, 9)},
			nil,
			[]string{
				"init container one (1 of 3) is not created yet: FailedCreatePodSandBox: no network (last at " +
					ninth + ")",
			},
		},
		"sidecar does not start": {
			init, initStatuses(over("one", 0, "Completed", ""), runs("side", false, false)), nil, nil,
			[]string{"init container side (2 of 3) runs, and its startup probe has not succeeded yet"},
		},
		"readiness gate": {
			spec, condition(statuses(runs("app", true, true), runs("log", true, true)), corev1.PodCondition{
				Status:  corev1.ConditionFalse,
				Reason:  "ReadinessGatesNotReady",
				Message: `corresponding condition of pod readiness gate "x/y" does not exist.`,
			}), nil, nil,
			[]string{
				`its containers are ready, but corresponding condition of pod readiness gate "x/y" does not exist.`,
			},
		},
	} {
		why := story.Why{
			Namespace: "default",
			Name:      "p",
			Node:      "n",
			BoundBy:   story.SchedulerUser,
			Decision: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Node:     "n",
					Nodes:    1,
					Feasible: 1,
					Scores: []decisions.NodeScore{
						{Node: "n", Plugins: []decisions.PluginScore{{Plugin: "ImageLocality", Weight: 1}}},
					},
				},
			},
		}
		Explain(&why, &Around{Pod: &corev1.Pod{Spec: tt.spec, Status: tt.status}, Node: tt.node, Warnings: tt.warnings})
		if diff := cmp.Diff(tt.want, why.NotReady); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		var b strings.Builder
		RenderWhy(&b, &why, false, 0)
		lines := strings.Split(b.String(), "\n")
		scores := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "   plugin") })
		if got := strings.HasPrefix(lines[1], "   not ready "); got != (len(tt.want) > 0) || scores <= len(tt.want) {
			t.Errorf("%s: the reasons do not come first:\n%s", name, b.String())
		}
	}
}

// TestManyReasons: a pod of many containers, with long messages, does not fill the screen.
func TestManyReasons(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	for range 20 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c"})
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		waiting("c", "CreateContainerError", strings.Repeat("é", 4000)),
	}
	got := (&Around{Pod: p}).notReady()
	if len(got) != mostReasons+1 || got[mostReasons] != "and 12 more" || len(got[0]) > mostMessage+100 ||
		!strings.HasSuffix(got[0], "é...") {
		t.Errorf("got %d reasons, the first of %d bytes, the last %q", len(got), len(got[0]), got[len(got)-1])
	}
}
