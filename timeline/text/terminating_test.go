// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/event"
	"keelson/timeline/story"
)

// explained is what `why` prints of a pod.
func explained(w *story.Why, a *Around) string {
	Explain(w, a)
	var b bytes.Buffer
	RenderWhy(&b, w, false, 0)
	return b.String()
}

// TestKilledByProbe: a container that a probe ended did not just end, whatever its exit code.
func TestKilledByProbe(t *testing.T) {
	first, _ := clock(1)
	fifth, _ := clock(5)
	run := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason:     "Completed",
		StartedAt:  first,
		FinishedAt: fifth,
	}}
	kill := func(probe string, second int) []Warning {
		return []Warning{warningEvent(ReasonKilling, "spec.containers{app}",
			"Container app failed "+probe+" probe, will be restarted", 2, second)}
	}
	ended := func(second int) []story.ProbeKill {
		return []story.ProbeKill{{
			Container: "app",
			Probe:     "liveness",
			Result:    "http :80/ -> 500",
			At:        time.Date(2026, 5, 1, 12, 0, second, 5e8, time.Local),
		}}
	}
	failures := []Warning{
		warningEvent("Unhealthy", "spec.containers{app}", "Startup probe failed: ", 3, 4),
		warningEvent("Unhealthy", "spec.containers{app}", "Liveness probe failed: HTTP 500", 3, 4),
	}
	for name, tt := range map[string]struct {
		phase    corev1.PodPhase
		state    corev1.ContainerState
		killed   []story.ProbeKill
		kills    []Warning
		warnings []Warning
		want     string
	}{
		"recorded": {killed: ended(5), want: "; its last run was killed by its kubelet: its liveness probe http :80/ -> " +
			"500; it ended with exit code 0 (Completed)\n"},
		"an earlier run":       {killed: ended(0), want: "; its last run ended with exit code 0 (Completed)\n"},
		"by event":             {kills: kill("liveness", 3), warnings: failures, want: "kubelet: Liveness probe failed: HTTP 500 (3 times"},
		"startup":              {kills: kill("startup", 3), warnings: failures, want: "kubelet: Startup probe failed (3 times, last"},
		"without failures":     {kills: kill("startup", 3), want: "kubelet: Startup probe failed; it ended"},
		"event of another run": {kills: kill("startup", 0), want: "; its last run ended with"},
		"succeeded": {
			phase: corev1.PodSucceeded, state: run, killed: ended(5),
			want: "ended container app was killed by its kubelet: its liveness",
		},
	} {
		a := &Around{
			Pod:      &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "app"}}}},
			Warnings: tt.warnings,
			Kills:    tt.kills,
		}
		status := waiting("app", "CrashLoopBackOff", "")
		if tt.state.Terminated != nil {
			status.State = tt.state
		}
		status.LastTerminationState = run
		a.Pod.Status = corev1.PodStatus{Phase: tt.phase, ContainerStatuses: []corev1.ContainerStatus{status}}
		if got := explained(&story.Why{KilledBy: tt.killed}, a); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got\n%s\nwant %q", name, got, tt.want)
		}
	}
}

// podMark is a mark about the test's pod.
func podMark(step event.Step, second int, detail any) event.Event {
	return event.Event{
		Step:    step,
		At:      at(second * 1e6),
		Subject: pod,
		Detail:  detail,
	}
}

// TestKilledByMarks: the probe of a container's last run counts, and none after a run that ended otherwise.
func TestKilledByMarks(t *testing.T) {
	exit := func(second int) event.Event {
		return podMark(event.StepContainerExited, second, &event.Container{Name: "c"})
	}
	start := func(second int) event.Event {
		return podMark(event.StepContainerStarted, second, &event.Container{Name: "c"})
	}
	failed := func(second int, kind string, ok bool) event.Event {
		return podMark(event.StepProbe, second, &event.Probe{
			Container: "c",
			Kind:      kind,
			Action:    "exec x",
			Success:   ok,
		})
	}
	for name, tt := range map[string]struct {
		marks []event.Event
		want  string
	}{
		"liveness":         {[]event.Event{start(1), failed(2, "liveness", false), exit(3)}, "liveness"},
		"startup":          {[]event.Event{start(1), failed(2, "startup", false), exit(3), start(4)}, "startup"},
		"readiness":        {[]event.Event{start(1), failed(2, "readiness", false), exit(3)}, ""},
		"recovered":        {[]event.Event{start(1), failed(2, "liveness", false), failed(3, "liveness", true), exit(4)}, ""},
		"of an earlier":    {[]event.Event{failed(1, "liveness", false), start(2), exit(3)}, ""},
		"then by itself":   {[]event.Event{failed(1, "liveness", false), exit(2), start(3), exit(4)}, ""},
		"and yet to exit":  {[]event.Event{start(1), failed(2, "liveness", false)}, ""},
		"the last matters": {[]event.Event{start(1), exit(2), start(3), failed(4, "startup", false), exit(5)}, "startup"},
	} {
		w, err := listening(append(journey(), tt.marks...)).Why("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, k := range w.KilledBy {
			got += k.Probe
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// TestTerminating: a pod that is being deleted has not ended, and `why` says what it waits for.
func TestTerminating(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.Local)
	left := metav1.NewTime(now.Add(20 * time.Second))
	past := metav1.NewTime(now.Add(-4 * time.Second))
	grace := int64(30)
	hook := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "9"}}}}
	silent := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: past},
	}}}
	running := []corev1.ContainerStatus{runs("app", true, true)}
	for name, tt := range map[string]struct {
		change func(*Around)
		want   []string
	}{
		"grace": {func(*Around) {}, []string{
			"terminating since 11:59:50, with a grace period of 30 s: deleted by ann\n",
			"container app runs, and may for 20 s more, until 12:00:20\n", "`kubectl delete pod web -n a --now`",
		}},
		"hook": {func(a *Around) { a.Pod.Spec.Containers[0].Lifecycle = hook }, []string{
			"may for 20 s more, until 12:00:20: its preStop hook (exec sleep 9) comes first",
		}},
		"over time": {func(a *Around) { a.Pod.DeletionTimestamp = &past }, []string{
			"container app runs, though its grace period ended 4 s ago",
		}},
		"silent node": {func(a *Around) { a.Node = silent }, []string{
			"its node n is silent since 11:59:56", "kubectl delete pod web -n a --grace-period=0 --force",
		}},
		"no node": {func(a *Around) { a.NodeGone = true }, []string{"there is no node n, so no kubelet ends it"}},
		"finalizer": {
			func(a *Around) {
				a.Pod.Finalizers = []string{"x/hold"}
				a.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{over("app", 0, "Completed", "")}
				a.Pod.Status.Phase = corev1.PodSucceeded
			},
			[]string{
				"its containers have ended\n", "the finalizer x/hold holds it",
				`kubectl patch pod web -n a --type=merge -p '{"metadata":{"finalizers":null}}'`,
			},
		},
		"finalizer of a pod without a node": {
			func(a *Around) {
				a.Pod.Finalizers = []string{"x/hold"}
				a.Pod.Spec.NodeName = ""
				a.Pod.Status = corev1.PodStatus{}
			},
			[]string{"the finalizer x/hold holds it", "kubectl patch pod web"},
		},
		"almost gone": {func(a *Around) { a.Pod.Status.ContainerStatuses = nil }, []string{
			"its containers have ended; its kubelet removes its network and volumes",
		}},
	} {
		a := &Around{Now: now, Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:                  "a",
				Name:                       "web",
				DeletionTimestamp:          &left,
				DeletionGracePeriodSeconds: &grace,
			},
			Spec:   corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "app"}}},
			Status: corev1.PodStatus{ContainerStatuses: running},
		}}
		tt.change(a)
		w := &story.Why{Ended: "deleted by ann", Eviction: &event.Eviction{Deadline: now.Add(time.Hour)}}
		got := explained(w, a)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got\n%s\nwant %q", name, got, want)
			}
		}
		if strings.Contains(got, "ended deleted") || strings.Contains(got, "evicted") {
			t.Errorf("%s: it has not ended, and no taint evicts it:\n%s", name, got)
		}
		if waits := Waits(w, a); !strings.Contains(waits, "deleted by ann") {
			t.Errorf("%s: its story waits for %q", name, waits)
		}
	}
}

// TestWhoDeletes: the garbage collector and the controllers delete on behalf of a user.
func TestWhoDeletes(t *testing.T) {
	deploy := event.Subject{
		Resource:  "deployments",
		Namespace: "default",
		Name:      "web",
		UID:       "d-1",
	}
	request := func(verb, user string, second int, s event.Subject, ownerUID string) event.Event {
		return event.Event{
			Step:    event.StepRequest,
			At:      at(second * 1e6),
			Subject: s,
			Detail: &event.Request{
				Verb:     verb,
				Resource: s.Resource,
				User:     user,
				OwnerUID: ownerUID,
				Code:     200,
			},
		}
	}
	made := []event.Event{
		request("POST", "ann", 1, deploy, ""),
		request("POST", story.ControllerUser+"deployment-controller", 2, set, deploy.UID),
		request("POST", story.ControllerUser+"replicaset-controller", 3, pod, set.UID),
	}
	collected := request("DELETE", story.CollectorUser, 60, pod, "")
	scaled := event.Event{
		Step:    event.StepReconcile,
		At:      at(59_900_000),
		Took:    time.Second,
		Subject: set,
		Detail:  &event.Reconcile{Wants: 1, Has: 2, Deletes: []string{podName}},
	}
	byController := request("DELETE", story.ControllerUser+"replicaset-controller", 60, pod, "")
	namespace := event.Subject{Resource: "namespaces", Name: "default"}
	ends := request("DELETE", story.ControllerUser+"namespace-controller", 60, pod, "")
	ownerEnds := request("DELETE", story.ControllerUser+"namespace-controller", 59, set, "")
	other := event.Subject{Resource: "namespaces", Name: "other"}
	for name, tt := range map[string]struct {
		marks []event.Event
		want  string
	}{
		"by hand": {[]event.Event{request("DELETE", "bob", 60, pod, "")}, "deleted by bob"},
		"owner": {
			[]event.Event{request("DELETE", "bob", 59, set, ""), collected},
			"deleted with its ReplicaSet my-replicaset, which bob has deleted",
		},
		"owner's owner": {
			[]event.Event{
				request("DELETE", "bob", 58, deploy, ""), request("DELETE", story.CollectorUser, 59, set, ""), collected,
			},
			"deleted with its Deployment web, which bob has deleted",
		},
		"not remembered": {
			[]event.Event{collected}, "deleted by the garbage collector, because its owner is gone",
		},
		"namespace": {
			[]event.Event{
				request("DELETE", "ann", 0, namespace, ""), request("DELETE", "bob", 57, namespace, ""),
				request("DELETE", "carl", 58, namespace, ""), ends, request("DELETE", "dora", 61, namespace, ""),
			},
			"deleted with its namespace, which bob has deleted",
		},
		"namespace of its owner": {
			[]event.Event{request("DELETE", "bob", 57, namespace, ""), ownerEnds, collected},
			"deleted with its namespace, which bob has deleted",
		},
		"namespace, not remembered": {
			[]event.Event{request("DELETE", "bob", 57, other, ""), ends},
			"deleted with its namespace; who deleted that is not remembered",
		},
		"scaled": {
			[]event.Event{request("PATCH", "bob", 59, set, ""), scaled, byController},
			"deleted by system:serviceaccount:kube-system:replicaset-controller, because ReplicaSet my-replicaset wanted " +
				"1 and had 2 after PATCH replicasets my-replicaset by bob",
		},
	} {
		w, err := listening(slices.Concat(made, tt.marks)).Why("default", podName)
		if err != nil || w.Ended != tt.want {
			t.Errorf("%s: got %q, %v, want %q", name, w.Ended, err, tt.want)
		}
	}
}

// TestNoEvictionOfTheGone: a taint evicts no pod that is gone or was deleted before.
func TestNoEvictionOfTheGone(t *testing.T) {
	eviction := podMark(event.StepEviction, 5, &event.Eviction{Node: "n", Deadline: time.Now().Add(time.Hour)})
	deleted := podMark(event.StepRequest, 6, &event.Request{
		Verb:     "DELETE",
		Resource: "pods",
		User:     "ann",
		Code:     200,
	})
	for name, tt := range map[string]struct {
		marks []event.Event
		gone  bool
		want  bool
	}{
		"there":   {[]event.Event{eviction}, false, true},
		"deleted": {[]event.Event{eviction, deleted}, false, false},
		"gone":    {[]event.Event{eviction}, true, false},
	} {
		w, err := listening(append(journey(), tt.marks...)).Why("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		if tt.gone {
			w.Vanished(time.Now())
		}
		var b bytes.Buffer
		RenderWhy(&b, &w, false, 0)
		if got := strings.Contains(b.String(), "evicted in"); got != tt.want || w.Gone != tt.gone {
			t.Errorf("%s: eviction %v, want %v:\n%s", name, got, tt.want, b.String())
		}
	}
}

// TestHelp: the command that helps is named, with the pod's namespace and its workload.
func TestHelp(t *testing.T) {
	bare := metav1.ObjectMeta{Namespace: "a", Name: "web"}
	yes := true
	owned := bare
	owned.Labels = map[string]string{"pod-template-hash": "5cb8"}
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "shop-5cb8", Controller: &yes}}
	crashed := afterFailure(waiting("app", "CrashLoopBackOff", ""), over("", 1, "Error", ""))
	unbound := corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type:    corev1.PodScheduled,
		Status:  corev1.ConditionFalse,
		Message: "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
	}}}
	volumes := []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	one := func(s corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{s}}
	}
	for want, tt := range map[string]struct {
		meta     metav1.ObjectMeta
		spec     corev1.PodSpec
		status   corev1.PodStatus
		warnings []Warning
	}{
		"`kubectl logs web -n a -c app --previous`": {bare, corev1.PodSpec{NodeName: "n"}, one(crashed), nil},
		"`kubectl logs web -n a -c app` shows what": {
			bare, corev1.PodSpec{NodeName: "n"}, one(runs("app", true, false)), nil,
		},
		"`kubectl set image pod/web app=IMAGE -n a`": {
			bare, corev1.PodSpec{NodeName: "n"}, one(waiting("app", "ErrImagePull", "")), nil,
		},
		"`kubectl set image deployment/shop app=IMAGE -n a`": {
			owned, corev1.PodSpec{NodeName: "n"}, one(waiting("app", "ImagePullBackOff", "")), nil,
		},
		"`kubectl create configmap conf -n a ": {
			bare, corev1.PodSpec{NodeName: "n"}, one(waiting("app", "CreateContainerConfigError", `configmap "conf" not found`)), nil,
		},
		"`kubectl create secret generic key -n a ": {
			bare,
			corev1.PodSpec{NodeName: "n"},
			one(waiting("app", "ContainerCreating", "")),
			[]Warning{warningEvent("FailedMount", "", `MountVolume.SetUp failed for volume "v" : secret "key" not found`, 1, 9)},
		},
		"`keelson why pvc/data -n a`":                   {bare, corev1.PodSpec{Volumes: volumes}, unbound, nil},
		`{"spec":{"schedulingGates":null}}' lets the s`: {bare, corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "x"}}}, corev1.PodStatus{}, nil},
	} {
		a := &Around{Pod: &corev1.Pod{ObjectMeta: tt.meta, Spec: tt.spec, Status: tt.status}, Warnings: tt.warnings}
		got := explained(&story.Why{}, a)
		if !strings.Contains(got, "next: "+want) && !strings.Contains(strings.ReplaceAll(got, "`", ""), want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
}

// TestAttachments: a volume that is not attached yet is named, with what its attacher says.
func TestAttachments(t *testing.T) {
	a := &Around{
		Pod: &corev1.Pod{
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "app"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
				waiting("app", "ContainerCreating", ""),
			}},
		},
		Attachments: []Attachment{{
			Name:     "csi-1",
			Attacher: "x.csi",
			Volume:   "v",
			Claim:    "data",
			Error:    "no such disk",
		}},
	}
	want := "volume v (claim data) is not attached to node n: VolumeAttachment csi-1 waits for the attacher x.csi: no " +
		"such disk"
	if got := explained(&story.Why{}, a); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %q", got, want)
	}
}
