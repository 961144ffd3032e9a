// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/apiserver/servertest"
)

// TestDearQuantities: a quantity that would take gigabytes to compare is refused in each form of a write. The same
// text elsewhere is a text like others.
func TestDearQuantities(t *testing.T) {
	const (
		dear    = "11111111111111111111e2088808880"
		message = "quantities must match the regular expression"
		pods    = "/api/v1/namespaces/default/pods"
		text    = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s","annotations":{"a":"7e123456"},` +
			`"labels":{"a":"7e123456"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"%s"}}}]}}`
	)
	running := servertest.Start(t, nil)
	running.Call(t, "POST", servertest.MapsPath, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","labels":{"a":"7e123456"}},`+
		`"data":{"cpu":"`+dear+`"}}`).Wants(t, "a ConfigMap", http.StatusCreated, "7e123456")
	running.Call(t, "POST", pods, fmt.Sprintf(text, "p", "1")).Wants(t, "a label", http.StatusCreated, "7e123456")
	running.Call(t, "POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}`).
		Wants(t, "a node", http.StatusCreated, "")

	limits := `"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"` + dear + `"}}}]}`
	status := `{"status":{"capacity":{"cpu":"` + dear + `"},"allocatable":{"cpu":"` + dear + `"}}}`
	for _, c := range []struct {
		what, method, path, media, body string
		code                            int
	}{
		{"JSON", "POST", pods, "application/json", fmt.Sprintf(text, "a", dear), 400},
		{"JSON of zero", "POST", pods, "application/json", fmt.Sprintf(text, "a", "0e2088808880"), 400},
		{"JSON of another kind", "POST", servertest.MapsPath, "application/json", fmt.Sprintf(text, "a", dear), 400},
		{"YAML", "POST", pods, "application/yaml", fmt.Sprintf(text, "a", dear), 400},
		{"escaped YAML", "POST", pods, "application/yaml", fmt.Sprintf(text, "a", `1\u0065208880888`), 400},
		{"protobuf", "POST", pods, typeProto, protoPod(t, "1e208880889"), 400},
		{
			"a JSON patch", "PATCH", pods + "/p", "application/json-patch+json",
			`[{"op":"replace","path":"/spec/containers/0/resources/requests/cpu","value":"` + dear + `"}]`, 422,
		},
		{"a merge patch", "PATCH", pods + "/p", "application/merge-patch+json", `{` + limits + `}`, 422},
		{"a strategic patch", "PATCH", pods + "/p", "application/strategic-merge-patch+json", `{` + limits + `}`, 422},
		{
			"an apply", "PATCH", pods + "/q?fieldManager=me", "application/apply-patch+yaml",
			fmt.Sprintf(text, "q", dear), 400,
		},
		{"a node's status", "PATCH", "/api/v1/nodes/n/status", "application/merge-patch+json", status, 422},
		{
			"a node's status by strategic patch", "PATCH", "/api/v1/nodes/n/status",
			"application/strategic-merge-patch+json", status, 422,
		},
	} {
		got := running.Call(t, c.method, c.path, c.body, "Content-Type", c.media)
		got.Wants(t, c.what, c.code, message)
	}
}

// protoPod is a pod that requests cpu, in protobuf.
func protoPod(t *testing.T, cpu string) string {
	t.Helper()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "c",
			Image: "i",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			},
		}}},
	}
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(pod, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
