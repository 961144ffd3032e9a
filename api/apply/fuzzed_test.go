// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"keelson/api/kind"
)

// FuzzApply: what is applied never panics nor changes the object it is applied to, and applied again it changes
// nothing.
func FuzzApply(f *testing.F) {
	const head = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"a":"b"}},"spec":`
	f.Add(
		[]byte(head+
			`{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"1"},{"name":"A"}]}]}}`),
		false)
	f.Add(
		[]byte(head+
			`{"containers":[{"name":"c","resources":{"limits":{"cpu":1}}},{"name":"d"}],"nodeSelector":null,"tolerations":[{"key":"k"}]}}`),
		true)
	f.Add([]byte(head+`{"containers":[{"image":"i"},null],"volumes":{"a":1}}}`), false)
	f.Add(
		[]byte(
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","finalizers":["a/b","a/b"],"ownerReferences":[{"uid":"u"}]}}`),
		true)
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	manager := New(kindOf(gvk), "", []string{"status"})
	live := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "p",
			Namespace: "n",
			UID:       "u",
			Labels:    map[string]string{"a": "x"},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "j", Env: []corev1.EnvVar{{Name: "B"}}}},
		},
	}
	live.SetGroupVersionKind(gvk)
	if err := manager.Update(nil, live, "creator"); err != nil {
		f.Fatal(err)
	}
	before := live.DeepCopy()
	apply := func(to kind.Object, doc []byte, force bool) (kind.Object, error) {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(doc); err != nil {
			return nil, err
		}
		return manager.Apply(to, u, "fuzzer", force)
	}
	f.Fuzz(func(t *testing.T, doc []byte, force bool) {
		once, err := apply(live, doc, force)
		if d := cmp.Diff(before, live); d != "" {
			t.Fatalf("%s changed the object it was applied to:\n%s", doc, d)
		}
		if err != nil {
			return
		}
		twice, err := apply(once, doc, force)
		if err != nil {
			t.Fatalf("%s a second time: %v", doc, err)
		}
		once.SetManagedFields(nil)
		twice.SetManagedFields(nil)
		if d := cmp.Diff(once, twice); d != "" {
			t.Errorf("%s a second time (-once +twice):\n%s", doc, d)
		}
	})
}
