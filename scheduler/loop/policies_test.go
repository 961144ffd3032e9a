// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"keelson/client/clienttest"
	"keelson/event"
	"keelson/scheduler/loop"
	"keelson/scheduler/policy"
	"keelson/scheduler/schedtest"
)

// policyObject is a SchedulingPolicy about pods with the label app: web.
func policyObject(name string, generation int64, expression, message string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.keelson.dev/v1",
		"kind":       "SchedulingPolicy",
		"metadata":   map[string]any{"name": name, "uid": name, "generation": generation},
		"spec": map[string]any{
			"podSelector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"filters":     []any{map[string]any{"expression": expression, "message": message}},
		},
	}}
}

func policyServer(objs ...runtime.Object) dynamic.Interface {
	definitions := schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	}
	defined := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": policy.CRD},
		"status":     map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}},
	}}
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(), map[schema.GroupVersionResource]string{
			definitions:     "CustomResourceDefinitionList",
			policy.Resource: "SchedulingPolicyList",
		}, append(objs, defined)...)
	clienttest.Complete(&c.Fake, c.Tracker())
	return c
}

// attempts counts the decisions about a pod.
func (c *cluster) attempts(pod string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks {
		if m.Step == event.StepDecision && m.Subject.Name == pod {
			n++
		}
	}
	return n
}

// TestPolicyChangesWakePods: policies are in effect before the first pod is tried; a change of one wakes the pods that
// it is about, and no others.
func TestPolicyChangesWakePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dyn := policyServer(policyObject("ssd", 1, "node.labels['disk'] == 'ssd'", "needs an SSD"),
			policyObject("other", 1, "true", ""))
		cluster := startWith(t, func(cfg *loop.Config) { cfg.Client.Dynamic = dyn },
			schedtest.Node("node-1", schedtest.Labels("disk", "hdd")),
			schedtest.Pod("web", schedtest.Labelled("app", "web")), schedtest.Pod("free"), schedtest.Pod("big",
				schedtest.Requests("1", "64Gi")),
			schedtest.Pod("big-web", schedtest.Requests("1", "64Gi"), schedtest.Labelled("app", "web")))
		synctest.Wait()
		cluster.eventually("free", bound)
		const want = "0/1 nodes are available: 1 node(s) refused by policy ssd: needs an SSD."
		if cond := scheduledCondition(cluster.eventually("web", func(p *corev1.Pod) bool {
			return scheduledCondition(p) != nil
		})); !strings.HasPrefix(cond.Message, want) {
			t.Errorf("message %q, want %q", cond.Message, want)
		}
		time.Sleep(20 * time.Second) // the backoff is over
		before := map[string]int{}
		for _, p := range []string{"web", "big", "big-web"} {
			before[p] = cluster.attempts(p)
		}
		put := func(u *unstructured.Unstructured) {
			t.Helper()
			if _, err := dyn.Resource(policy.Resource).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		began := time.Now()
		put(policyObject("ssd", 2, "node.label['disk'] == 'ssd'", "")) // wrong: nothing changes
		if n := cluster.attempts("web"); n != before["web"] {
			t.Errorf("%d attempts after a policy that is wrong", n-before["web"])
		}
		put(policyObject("ssd", 3, "node.labels['disk'] == 'hdd'", ""))
		cluster.eventually("web", bound)
		if took := time.Since(began); took > 0 {
			t.Errorf("the pod waited for %v", took)
		}
		for _, p := range []string{"big", "big-web"} { // refused by the memory that there is
			if n := cluster.attempts(p); n != before[p] {
				t.Errorf("%s: %d attempts for nothing", p, n-before[p])
			}
		}
	})
}

// TestPoliciesSeeNodeChanges: a change of what a filter reads of a node wakes the pods that it refused; a heartbeat
// does not.
func TestPoliciesSeeNodeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dyn := policyServer(policyObject("rack", 1,
			"node.annotations['rack'] == 'r1' && node.status.conditions.exists(c, c.type == 'Quiet')", ""))
		node := schedtest.Node("node-1")
		cluster := startWith(t, func(cfg *loop.Config) { cfg.Client.Dynamic = dyn }, node,
			schedtest.Pod("web", schedtest.Labelled("app", "web")))
		synctest.Wait()
		change := func(f func(*corev1.Node)) int {
			t.Helper()
			time.Sleep(20 * time.Second) // no backoff
			had := cluster.attempts("web")
			node = node.DeepCopy()
			f(node)
			if _, err := cluster.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return cluster.attempts("web") - had
		}
		got := fmt.Sprint(
			change(func(n *corev1.Node) { n.Annotations = map[string]string{"rack": "r1"} }),
			change(func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", LastHeartbeatTime: metav1.Now()}}
			}),
			change(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }),
			change(func(n *corev1.Node) { n.Status.Conditions[0].Type = "Quiet" }),
		)
		if got != "1 1 0 1" {
			t.Errorf("attempts after an annotation, a condition, a heartbeat and the condition that is wanted: %s", got)
		}
		cluster.eventually("web", bound)
	})
}
