// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// slowBinder has PreBind of pods with a label take until the channel has an answer.
type slowBinder struct{ answer chan error }

// plugin has no events, so that a refused pod stays as it is.
func (b slowBinder) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:             "SlowBinder",
		PreBind:          b.PreBind,
		PreBindPreFlight: b.PreBindPreFlight,
		Events:           []framework.ClusterEventWithHint{},
	}
}

func (slowBinder) PreBindPreFlight(_ *framework.CycleState, p *state.PodInfo, _ string) bool {
	return p.Pod.Labels["slow"] != ""
}

func (b slowBinder) PreBind(ctx context.Context, _ *framework.CycleState, p *state.PodInfo, _ string) error {
	if p.Pod.Labels["slow"] == "" {
		return nil
	}
	select {
	case err := <-b.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestExpectedNode: the status of a pod whose binding takes long names its node, until the pod is bound, refused, or
// the binding fails. That of others never does.
func TestExpectedNode(t *testing.T) {
	for _, tt := range []struct {
		what   string
		answer error
		reason string // of the condition PodScheduled afterwards; empty: the pod is bound
	}{
		{what: "bound"},
		{"fails", errors.New("no such disk"), corev1.PodReasonSchedulerError},
		{
			"refused", framework.NewStatus("SlowBinder", framework.Unschedulable, "no room"),
			corev1.PodReasonUnschedulable,
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := slowBinder{make(chan error)}
				c := startWith(t,
					with(framework.Registry{"SlowBinder": made(b.plugin())}),
					schedtest.Node("a"), schedtest.Pod("slow", schedtest.Labelled("slow", "yes")), schedtest.Pod(
						"quick"))
				synctest.Wait()
				get := func(name string) *corev1.Pod {
					p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return p
				}
				if p := get("slow"); p.Status.NominatedNodeName != "a" || bound(p) {
					t.Errorf("while it is bound: nominated to %q, on %q", p.Status.NominatedNodeName, p.Spec.NodeName)
				}
				if p := get("quick"); p.Status.NominatedNodeName != "" || !bound(p) {
					t.Errorf("the quick one: nominated to %q, on %q", p.Status.NominatedNodeName, p.Spec.NodeName)
				}
				b.answer <- tt.answer
				synctest.Wait()
				p := get("slow")
				if tt.reason == "" {
					if !bound(p) {
						t.Error("it is not bound")
					}
					return
				}
				cond := scheduledCondition(p)
				if cond == nil || cond.Reason != tt.reason || p.Status.NominatedNodeName != "" || bound(p) {
					t.Errorf("afterwards: condition %+v, nominated to %q, on %q", cond, p.Status.NominatedNodeName,
						p.Spec.NodeName)
				}
			})
		})
	}
}

// TestNominatedByOthers: a pod goes to the node that another program has nominated it to, unless it does not fit there.
func TestNominatedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := schedtest.Pod("x", schedtest.On("a"), schedtest.Requests("1", ""))
		c := start(t, schedtest.Node("a"), schedtest.Node("b"), busy)
		for _, tt := range []struct{ cpu, want string }{{"100m", "a"}, {"4", "b"}} {
			p := schedtest.Pod("asks-"+tt.cpu, schedtest.Requests(tt.cpu, ""))
			p.Status.NominatedNodeName = "a"
			c.bring(p)
			got, err := c.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{})
			if err != nil || got.Spec.NodeName != tt.want {
				t.Errorf("%s is on %q, want %q (%v)", p.Name, got.Spec.NodeName, tt.want, err)
			}
		}
	})
}
