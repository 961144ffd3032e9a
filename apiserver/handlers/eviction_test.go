// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
)

// TestEvictions: the status of a pod's budget, as the controller has written it, decides whether the pod may be evicted
// (policy/v1).
func TestEvictions(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	clientset := running.Clients(t)
	budgets := clientset.PolicyV1().PodDisruptionBudgets("default")
	for i, tt := range []struct {
		what    string
		ready   corev1.ConditionStatus
		budgets []policyv1.PodDisruptionBudgetStatus
		body    string
		code    int
		text    string
		left    int32 // of the first budget
	}{
		{"no budget", "True", nil, `{}`, 201, `"status":"Success"`, 0},
		{
			"the older version", "True", nil, `{"apiVersion":"policy/v1beta1","kind":"Eviction"}`, 201,
			`"status":"Success"`, 0,
		},
		{
			"another name", "True", nil, `{"metadata":{"name":"other"}}`, 400,
			"name in URL does not match name in Eviction object", 0,
		},
		{
			"an unknown policy", "True", nil, `{"deleteOptions":{"propagationPolicy":"x"}}`, 422,
			`propagationPolicy: Unsupported value: \"x\"`, 0,
		},
		{
			"two kinds of dry run", "True", nil, `{"deleteOptions":{"dryRun":["x"]}}`, 422,
			`dryRun: Unsupported value: [\"x\"]`, 0,
		},
		{
			"another uid", "True", nil, `{"deleteOptions":{"preconditions":{"uid":"x"}}}`, 409,
			"the UID in the precondition (x) does not match the UID in record", 0,
		},
		{
			"a budget to spare", "True", []policyv1.PodDisruptionBudgetStatus{
				{ObservedGeneration: 1, DisruptionsAllowed: 2},
			}, `{}`, 201, `"status":"Success"`, 1,
		},
		{
			"a dry run", "True",
			[]policyv1.PodDisruptionBudgetStatus{{ObservedGeneration: 1, DisruptionsAllowed: 2}},
			`{"deleteOptions":{"dryRun":["All"]}}`, 201, `"status":"Success"`, 2,
		},
		{
			"an empty budget", "True", []policyv1.PodDisruptionBudgetStatus{
				{ObservedGeneration: 1, DesiredHealthy: 2, CurrentHealthy: 2},
			}, `{}`, 429, "The disruption budget b0 needs 2 healthy pods and has 2 currently", 0,
		},
		{
			"a budget without a status", "True",
			[]policyv1.PodDisruptionBudgetStatus{{}},
			`{}`, 429,
			"The disruption budget b0 is still being processed by the server.", 0,
		},
		{
			"an unhealthy pod and enough healthy ones", "False", []policyv1.PodDisruptionBudgetStatus{
				{ObservedGeneration: 1, DesiredHealthy: 1, CurrentHealthy: 1},
			}, `{}`, 201, `"status":"Success"`, 0,
		},
		{
			"an unhealthy pod of too few", "False", []policyv1.PodDisruptionBudgetStatus{
				{ObservedGeneration: 1, DesiredHealthy: 2, CurrentHealthy: 1},
			}, `{}`, 429, "needs 2 healthy pods and has 1 currently", 0,
		},
		{
			"two budgets", "True", []policyv1.PodDisruptionBudgetStatus{
				{ObservedGeneration: 1, DisruptionsAllowed: 1},
				{ObservedGeneration: 1, DisruptionsAllowed: 1},
			}, `{}`, 500, "This pod has more than one PodDisruptionBudget", 1,
		},
	} {
		name := fmt.Sprintf("p%d", i)
		p := servertest.Pod(name)
		p.Labels = map[string]string{"app": name}
		made, err := clientset.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status.Phase = corev1.PodRunning
		made.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: tt.ready}}
		if _, err := clientset.CoreV1().Pods("default").UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for j, s := range tt.budgets {
			b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b%d", j)}}
			b.Spec.Selector = &metav1.LabelSelector{MatchLabels: p.Labels}
			b, err := budgets.Create(ctx, b, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b.Status = s
			if _, err := budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		body := tt.body
		if i != 2 {
			body = fmt.Sprintf(`{"metadata":{"name":%q},%s`, name, body[1:])
			if tt.body == "{}" {
				body = fmt.Sprintf(`{"metadata":{"name":%q}}`, name)
			}
		}
		got := running.Call(t, "POST", "/api/v1/namespaces/default/pods/"+name+"/eviction", body)
		if got.Code != tt.code || !strings.Contains(string(got.Body), tt.text) {
			t.Errorf("%s: got %d %s, want %d and %s in it", tt.what, got.Code, got.Body, tt.code, tt.text)
		}
		for j := range tt.budgets {
			b, err := budgets.Get(ctx, fmt.Sprintf("b%d", j), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if j == 0 && b.Status.DisruptionsAllowed != tt.left {
				t.Errorf("%s: the budget has %d left, want %d", tt.what, b.Status.DisruptionsAllowed, tt.left)
			}
			if err := budgets.Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestMutations: what Kubernetes v1.37 answers to updates with something wrong.
func TestMutations(t *testing.T) {
	running := servertest.Start(t, nil)
	const core, rbac, dep = "/api/v1/namespaces/default",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", "/apis/apps/v1/namespaces/default/deployments"
	if _, err := running.Clients(t).AppsV1().Deployments("default").Create(t.Context(), deployment("web"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const scale = `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":%q},"spec":{"replicas":1}}`
	for _, c := range []struct {
		what, method, path, body, media string
		code                            int
		text                            string
	}{
		{"an empty list", "POST", rbac, `{"metadata":{"name":"r"},"rules":[]}`, "", 201, `"rules":null`},
		{
			"an empty list in a dry run", "PUT", rbac + "/r?dryRun=All", `{"metadata":{"name":"r"},"rules":[]}`, "",
			200, `"rules":null`,
		},
		{
			"a link of its own", "PUT", rbac + "/r?dryRun=All", `{"metadata":{"name":"r","selfLink":"x"}}`, "", 200,
			`"selfLink":"x"`,
		},
		{
			"a time to go", "PUT", rbac + "/r", `{"metadata":{"name":"r","deletionGracePeriodSeconds":5}}`, "", 422,
			"metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable",
		},
		{
			"another uid in a dry run", "PUT", rbac + "/r?dryRun=All", `{"metadata":{"name":"r","uid":"x"}}`, "", 409,
			"Key: /roles/default/r, ResourceVersion: 0",
		},
		{
			"a finalizer", "PATCH", dep + "/web", `{"metadata":{"finalizers":["x"]}}`, servertest.MergePatch, 422,
			`metadata.finalizers[0]: Invalid value: "x": name is neither a standard finalizer name nor is it fully qualified`,
		},
		{
			"a prefix that no name is made of any more", "PATCH", dep + "/web?dryRun=All",
			`{"metadata":{"generateName":"A_"}}`, servertest.MergePatch, 200, `"generateName":"A_"`,
		},
		{
			"a prefix for no path", "PATCH", dep + "/web", `{"metadata":{"generateName":"a/"}}`, servertest.MergePatch, 422,
			"may not contain '/'",
		},
		{
			"pods that end", "PATCH", dep + "/web/status", `{"status":{"terminatingReplicas":-1}}`, servertest.MergePatch, 422,
			"status.terminatingReplicas: Invalid value: -1: must be greater than or equal to 0",
		},
		{
			"another name through scale", "PATCH", dep + "/web/scale", `{"metadata":{"name":"x"}}`, servertest.MergePatch, 400,
			"the name of the object (x) does not match the name on the URL (web)",
		},
		{
			"another uid through scale", "PATCH", dep + "/web/scale", `{"metadata":{"uid":"x"}}`, servertest.MergePatch, 409,
			`on deployments/scale.apps "web": Precondition failed: UID in precondition: x`,
		},
		{
			"another namespace through scale", "PUT", dep + "/web/scale", fmt.Sprintf(scale, "x"), "", 400,
			"the namespace of the provided object does not match the namespace sent on the request",
		},
		{
			"finalizers by a patch", "PATCH", "/api/v1/namespaces/default/finalize", `{}`, servertest.MergePatch, 405,
			"the server does not allow this method on the requested resource",
		},
		{
			"a pod", "POST", core + "/pods",
			`{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, "", 201, `"name":"p"`,
		},
		{
			"a generation seen", "PATCH", core + "/pods/p/status", `{"status":{"observedGeneration":-1}}`, servertest.MergePatch,
			422, "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
		},
		{
			"a condition", "PATCH", core + "/pods/p/status", `{"status":{"conditions":[{"type":"a b"}]}}`, servertest.MergePatch,
			422, "status.conditions[0].Type: Invalid value",
		},
		{
			"extended resources", "PATCH", core + "/pods/p/status", `{"status":{"extendedResourceClaimStatus":{}}}`,
			servertest.MergePatch, 422, "status.extendedResourceClaimStatus.requestMappings: Required value: at least one " +
				"request mapping is required",
		},
		{
			"health behind a gate", "PATCH", core + "/pods/p/status?dryRun=All",
			`{"status":{"volumeHealth":[{"name":"x"}]}}`, servertest.MergePatch, 200, `"phase":"Pending"`,
		},
		{
			"a binding of no name", "POST", core + "/pods/p/binding", `{"target":{"name":"n"}}`, "", 400,
			"name in URL does not match name in Binding object",
		},
		{
			"a binding to no node's name", "POST", core + "/pods/p/binding",
			`{"metadata":{"name":"p"},"target":{"name":"A_b"}}`, "", 500, "target.name: Invalid value",
		},
		{
			"a binding of another pod", "POST", core + "/pods/p/binding",
			`{"metadata":{"name":"p","uid":"x"},"target":{"name":"n"}}`, "", 409,
			"StorageError: invalid object, Code: 4, Key: /registry/pods/default/p",
		},
	} {
		media := c.media
		if media == "" {
			media = "application/json"
		}
		running.Call(t, c.method, c.path, c.body, "Content-Type", media).Wants(t, c.what, c.code, c.text)
	}
}
