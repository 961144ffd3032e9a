// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/apiserver/servertest"
)

// TestPodDecisions: what is remembered of pods that exist, and of no others, can be read by kubectl's means, and by no
// one changed.
func TestPodDecisions(t *testing.T) {
	known := map[types.UID]*decisions.PodDecision{}
	running := servertest.Start(t, func(c *servertest.Setup) {
		c.Decision = func(uid types.UID) *decisions.PodDecision {
			if d := known[uid]; d != nil {
				c := *d
				return &c
			}
			return nil
		}
	})
	for _, name := range []string{"known", "unknown"} {
		pod, err := running.Clients(t).CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name == "known" {
			known[pod.UID] = &decisions.PodDecision{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now().Add(-90 * time.Second))},
				Status: decisions.PodDecisionStatus{
					Result: decisions.Unschedulable,
					Nodes:  3,
					Reason: "3 Insufficient cpu",
					Took:   metav1.Duration{Duration: 81 * time.Microsecond},
				},
			}
		}
	}
	known["gone"] = &decisions.PodDecision{}
	const path = "/apis/decisions.keelson.io/v1alpha1/namespaces/default/poddecisions"
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, name := range []string{"Pod", "Result", "Node", "Feasible", "Reason", "Took", "Age"} {
		running.Call(t, "GET", path, "", "Accept", table).Wants(t, "columns", 200, `"name":"`+name+`"`)
	}
	running.Call(t, "GET", path, "", "Accept", table).Wants(t, "row", 200,
		`["known","Unschedulable","\u003cnone\u003e","0/3","3 Insufficient cpu","81µs","90s"]`)
	running.Call(t, "GET", path, "").Wants(t, "list", 200, `"kind":"PodDecisionList"`)
	running.Call(t, "GET", path+"?labelSelector=app%3Dunknown", "").Wants(t, "selected", 200, `"items":[]`)
	running.Call(t, "GET", path+"?fieldSelector=metadata.name%3Dknown", "").Wants(t, "selected by name", 200,
		`"name":"known"`)
	running.Call(t, "GET", path+"/known", "", "Accept", "application/vnd.kubernetes.protobuf, application/json").Wants(t,
		"one", 200, `"kind":"PodDecision"`)
	running.Call(t, "GET", path+"/unknown", "").Wants(t, "nothing remembered", 404, "remembers no scheduling attempt")
	running.Call(t, "GET", path+"/none", "").Wants(t, "no such pod", 404,
		`poddecisions.decisions.keelson.io "none" not found`)
	running.Call(t, "DELETE", path+"/known", "").Wants(t, "delete", 405, "")
	running.Call(t, "POST", path, `{"metadata":{"name":"forged"}}`, "Content-Type", "application/json").Wants(t,
		"create",
		405, "")
	running.Call(t, "GET", "/openapi/v3/apis/decisions.keelson.io/v1alpha1", "").Wants(t, "schema", 200, `"refusedBy"`)
}
