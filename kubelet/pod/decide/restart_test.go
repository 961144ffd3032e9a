// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/runtimestate"
)

// restarts gives a container the rule that its end with 88 restarts all containers of the pod.
func restarts(c *corev1.Container) {
	never := corev1.ContainerRestartPolicyNever
	c.RestartPolicy = &never
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
			Values:   []int32{88},
		},
	}}
}

// TestDecideRestartAll: a container that ends with the code of its rule makes all containers run again in order: those
// that run are killed first, what ended before does not count, and each has its back-off.
func TestDecideRestartAll(t *testing.T) {
	p := podOf(corev1.RestartPolicyNever, []corev1.Container{ctr("i"), ctr("s", sidecar)}, ctr("a", restarts), ctr("b"))
	second := func(names ...string) func(*Input) {
		return func(in *Input) {
			for i := range in.Observed.Containers {
				if c := &in.Observed.Containers[i]; slices.Contains(names, c.Name) && c.Restart == 1 {
					c.Life = 1
				}
			}
		}
	}
	first := []string{"i=exited:0", "s=exited:137", "a=exited:88", "b=exited:137"}
	tests := map[string]struct {
		w    world
		want []string
	}{
		"another code ends it alone": {
			world{pod: p, have: []string{"i=exited:0", "s=running", "a=exited:1", "b=running"}}, nil,
		},
		"what runs is killed, a start under way is given up": {
			world{
				pod:     p,
				have:    []string{"i=exited:0", "s=running", "a=exited:88"},
				flights: []Action{{Op: OpStart, Container: "b"}},
			},
			[]string{
				"stop s", "cancel start/b", "a waits RestartingAllContainers", "b waits RestartingAllContainers",
				"i waits RestartingAllContainers",
			},
		},
		"then the first starts": {
			world{pod: p, have: first},
			[]string{
				"start i #1", "a waits PodInitializing", "b waits PodInitializing", "i waits PodInitializing",
				"s waits PodInitializing",
			},
		},
		"its start is under way": {
			world{pod: p, have: first, flights: []Action{{Op: OpStart, Container: "i", Life: 1}}},
			[]string{
				"a waits PodInitializing", "b waits PodInitializing", "i waits PodInitializing",
				"s waits PodInitializing",
			},
		},
		"not too soon": {
			world{
				pod:     p,
				have:    first,
				crashes: map[string]Crash{"i": {Delay: 10 * time.Second, Updated: now.Add(-time.Minute)}},
			},
			[]string{
				"a waits PodInitializing", "b waits PodInitializing", "i waits CrashLoopBackOff",
				"s waits PodInitializing",
			},
		},
		"the main ones come last": {
			world{
				pod:    p,
				have:   append([]string{"i#1=exited:0", "s#1=running"}, first...),
				change: second("i", "s"),
			},
			[]string{"start a #1", "start b #1", "a waits PodInitializing", "b waits PodInitializing"},
		},
		"an init container that fails then ends the pod": {
			world{
				pod:    p,
				have:   append([]string{"i#1=exited:1"}, first...),
				change: second("i"),
			},
			[]string{"stopSandbox", "terminal"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := Decide(test.w.input(t))
			for _, a := range plan.Actions {
				if a.Op == OpStop && (a.Grace != 0 || a.Hook) || a.Op == OpStart && a.Life != 1 {
					t.Errorf("action %+v: want it killed at once, and started in the second life", a)
				}
			}
			if got := words(plan); !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestRestartAllFirstRule: the first rule with the code decides, and containers of an earlier life decide nothing.
func TestRestartAllFirstRule(t *testing.T) {
	p := podOf(corev1.RestartPolicyNever, nil, ctr("a", restarts), ctr("b"))
	in := Input{Pod: p, Observed: &runtimestate.Pod{Containers: []runtimestate.Container{
		{Name: "b", Life: 1, State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		{Name: "a", ExitCode: 88, State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}}}
	if got := in.currentLife(); got != 1 {
		t.Errorf("life after the restart began: got %d, want 1", got)
	}
	in.Observed.Containers[0].Life = 0
	again := p.Spec.Containers[0].RestartPolicyRules[0]
	again.Action = corev1.ContainerRestartRuleActionRestart
	p.Spec.Containers[0].RestartPolicyRules = append([]corev1.ContainerRestartRule{again},
		p.Spec.Containers[0].RestartPolicyRules...)
	if got := in.currentLife(); got != 0 {
		t.Errorf("life with a rule before that restarts the container alone: got %d, want 0", got)
	}
}
