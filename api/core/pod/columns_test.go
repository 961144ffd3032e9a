// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type statuses = []corev1.ContainerStatus

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func exited(reason string, code, signal int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason:   reason,
		ExitCode: code,
		Signal:   signal,
	}}
}

var running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}

func TestPodRows(t *testing.T) {
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			{Name: "proxy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
			{Name: "setup"},
		}
	}
	tests := []struct {
		name string
		do   func(*corev1.Pod)
		want []any // ready, status, restarts
	}{
		{"new", func(*corev1.Pod) {}, []any{"0/1", "Pending", "0"}},
		{
			"creating", func(p *corev1.Pod) {
				p.Status.ContainerStatuses = statuses{{State: waiting("ContainerCreating")}}
			}, []any{"0/1", "ContainerCreating", "0"},
		},
		{"running", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = statuses{{State: running, Ready: true, RestartCount: 2}}
		}, []any{"1/1", "Running", "2"}},
		{"crash loop", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = statuses{{
				State:        waiting("CrashLoopBackOff"),
				RestartCount: 3,
				LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{
						FinishedAt: metav1.NewTime(time.Now().Add(-5 * time.Minute)),
					},
				},
			}}
		}, []any{"0/1", "CrashLoopBackOff", "3 (5m ago)"}},
		{"completed", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.Status.ContainerStatuses = statuses{{State: exited("Completed", 0, 0)}}
		}, []any{"0/1", "Completed", "0"}},
		{"one of two completed", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b"})
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			p.Status.ContainerStatuses = statuses{{State: exited("Completed", 0, 0)}, {State: running, Ready: true}}
		}, []any{"1/2", "Running", "0"}},
		{
			"error", func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses{{State: exited("Error", 1, 0)}} },
			[]any{"0/1", "Error", "0"},
		},
		{
			"exit code", func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses{{State: exited("", 3, 0)}} },
			[]any{"0/1", "ExitCode:3", "0"},
		},
		{
			"signal", func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses{{State: exited("", 3, 9)}} },
			[]any{"0/1", "Signal:9", "0"},
		},
		{"gated", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Reason: corev1.PodReasonSchedulingGated},
			}
		}, []any{"0/1", "SchedulingGated", "0"}},
		{"evicted", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Reason = "Evicted"
		}, []any{"0/1", "Evicted", "0"}},
		{"terminating", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.DeletionTimestamp = new(metav1.Now())
			p.Status.ContainerStatuses = statuses{{State: running, Ready: true}}
		}, []any{"1/1", "Terminating", "0"}},
		{"finished and deleted", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.DeletionTimestamp = new(metav1.Now())
			p.Status.ContainerStatuses = statuses{{State: exited("Completed", 0, 0)}}
		}, []any{"0/1", "Completed", "0"}},
		{"node lost", func(p *corev1.Pod) {
			p.DeletionTimestamp = new(metav1.Now())
			p.Status.Reason = "NodeLost"
		}, []any{"0/1", "Unknown", "0"}},
		{"first init container", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "b"}}
			p.Status.InitContainerStatuses = statuses{
				{Name: "a", State: running},
				{Name: "b", State: waiting("PodInitializing")},
			}
			p.Status.ContainerStatuses = statuses{{State: waiting("PodInitializing")}}
		}, []any{"0/1", "Init:0/2", "0"}},
		{"second init container fails", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "b"}}
			p.Status.InitContainerStatuses = statuses{
				{Name: "a", State: exited("Completed", 0, 0)},
				{Name: "b", State: waiting("CrashLoopBackOff"), RestartCount: 4},
			}
		}, []any{"0/1", "Init:CrashLoopBackOff", "4"}},
		{"init exit code", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}}
			p.Status.InitContainerStatuses = statuses{{Name: "a", State: exited("", 2, 0)}}
		}, []any{"0/1", "Init:ExitCode:2", "0"}},
		{"initialized", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}}
			p.Status.InitContainerStatuses = statuses{{Name: "a", State: exited("Completed", 0, 0), RestartCount: 1}}
			p.Status.ContainerStatuses = statuses{{State: waiting("PodInitializing")}}
		}, []any{"0/1", "PodInitializing", "0"}},
		{"sidecar runs, init waits", func(p *corev1.Pod) {
			sidecar(p)
			p.Status.InitContainerStatuses = statuses{{
				Name:    "proxy",
				State:   running,
				Ready:   true,
				Started: new(true),
			}, {Name: "setup", State: running}}
		}, []any{"1/2", "Init:1/2", "0"}},
		{"sidecar and container run", func(p *corev1.Pod) {
			sidecar(p)
			p.Status.Phase = corev1.PodRunning
			p.Status.InitContainerStatuses = statuses{{
				Name:         "proxy",
				State:        running,
				Ready:        true,
				Started:      new(true),
				RestartCount: 1,
			}, {Name: "setup", State: exited("Completed", 0, 0), RestartCount: 5}}
			p.Status.ContainerStatuses = statuses{{State: running, Ready: true}}
		}, []any{"2/2", "Running", "1"}},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			p := &corev1.Pod{
				Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending},
			}
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(-90 * time.Second))
			tt.do(p)
			row := row(p)
			if d := cmp.Diff(append(tt.want, "90s"), row[1:5]); d != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, d)
			}
		})
	}
}

func TestReadinessGatesAndAddresses(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		NodeName:       "n",
		ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "a"}, {ConditionType: "b"}},
	}}
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: "b", Status: corev1.ConditionTrue}}
	if d := cmp.Diff([]any{"10.0.0.1", "n", "<none>", "1/2"}, row(p)[5:]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
