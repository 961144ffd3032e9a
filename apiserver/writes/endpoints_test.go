// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/event"
)

// TestNoteEndpoints: a pod gets one mark when a slice first lists it as ready. Pods in other namespaces than the
// slice's get none.
func TestNoteEndpoints(t *testing.T) {
	slice := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop",
				Name:      "web-x",
				Labels:    map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			Endpoints: endpoints,
		}
	}
	pod := func(name string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: ready},
			TargetRef: &corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: "shop",
				Name:      name,
				UID:       types.UID("uid-" + name),
			},
		}
	}
	yes := new(true)
	no := new(false)
	foreign := pod("c", yes)
	node := pod("n", yes)
	foreign.TargetRef.Namespace = "bank"
	node.TargetRef.Kind = "Node"
	for name, c := range map[string]struct {
		now, before kind.Object
		want        string
	}{
		"new slice":     {slice(pod("a", yes), pod("b", no), pod("d", nil)), nil, "a d"},
		"becomes ready": {slice(pod("a", yes), pod("b", yes)), slice(pod("a", yes), pod("b", no)), "b"},
		"again":         {slice(pod("a", yes)), slice(pod("a", no)), "a"},
		"not any more":  {slice(pod("a", no)), slice(pod("a", yes)), ""},
		"no pods":       {slice(foreign, node, discoveryv1.Endpoint{}), nil, ""},
		"another kind":  {&corev1.Pod{}, nil, ""},
	} {
		rq := &pipeline.Request{}
		recordEndpoints(rq, c.now, c.before)
		var got []string
		for _, m := range rq.ExtraMarks {
			d, ok := m.Detail.(*event.Endpoint)
			if !ok || d.Service != "web" || d.Slice != "web-x" || m.Subject.UID != "uid-"+m.Subject.Name ||
				m.Subject.Namespace != "shop" {
				t.Errorf("%s: mark %+v", name, m)
			}
			got = append(got, m.Subject.Name)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: marks of %q, want %q", name, s, c.want)
		}
	}
}
