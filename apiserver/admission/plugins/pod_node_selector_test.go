// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func namespaceWith(annotations map[string]string) admissiontest.Reader {
	return admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
		admission.Namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev", Annotations: annotations}}},
	})
}

func TestPodNodeSelector(t *testing.T) {
	for _, c := range []struct {
		what       string
		annotation map[string]string
		selectors  map[string]string
		pod        map[string]string
		want       map[string]string
		refused    string
	}{
		{"nothing said", nil, nil, map[string]string{"a": "b"}, map[string]string{"a": "b"}, ""},
		{"the cluster's", nil, map[string]string{DefaultNodeSelector: "env=x"}, nil, map[string]string{"env": "x"}, ""},
		{
			"the namespace's first", map[string]string{namespaceNodeSelector: "env=y"}, map[string]string{
				DefaultNodeSelector: "env=x",
			}, map[string]string{"a": "b"}, map[string]string{"env": "y", "a": "b"}, "",
		},
		{
			"the namespace wants none", map[string]string{namespaceNodeSelector: ""}, map[string]string{
				DefaultNodeSelector: "env=x",
			}, nil, nil, "",
		},
		{
			"another than the namespace's", map[string]string{namespaceNodeSelector: "env=y"}, nil, map[string]string{
				"env": "z",
			}, nil, "pod node label selector conflicts with its namespace node label selector",
		},
		{
			"allowed", nil, map[string]string{"dev": "env=x,a=b"}, map[string]string{"a": "b"}, map[string]string{
				"a": "b",
			}, "",
		},
		{
			"not allowed", nil,
			map[string]string{"dev": "env=x"},
			map[string]string{"a": "b"},
			nil,
			"pod node label selector labels conflict with its namespace whitelist",
		},
	} {
		p := admissiontest.Pod()
		p.Spec.NodeSelector = c.pod
		err := podNodeSelector{Reader: namespaceWith(c.annotation), Selectors: c.selectors}.Admit(t.Context(),
			admissiontest.Creation(p))
		if c.refused != "" {
			admissiontest.WantForbidden(t, c.what, err, c.refused)
			continue
		}
		if d := cmp.Diff(c.want, p.Spec.NodeSelector); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.what, err, d)
		}
	}
}
