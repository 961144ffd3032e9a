// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// objects is a Reader of what it holds, in one namespace.
type objects []runtime.Object

func (o objects) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	for _, obj := range o {
		m, ok := obj.(metav1.Object)
		if ok && m.GetName() == name && resourceOf(obj) == gvr.Resource {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (o objects) Select(
	_ context.Context, gvr schema.GroupVersionResource, _ string, l labels.Selector, _ fields.Selector,
) ([]runtime.Object, error) {
	var out []runtime.Object
	for _, obj := range o {
		if m, ok := obj.(metav1.Object); ok && resourceOf(obj) == gvr.Resource && l.Matches(labels.Set(m.GetLabels())) {
			out = append(out, obj)
		}
	}
	return out, nil
}

func resourceOf(obj runtime.Object) string {
	switch obj.(type) {
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	default:
		return "endpoints"
	}
}

func service(edit func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}}
	s.Spec = corev1.ServiceSpec{
		ClusterIP: "10.0.0.9",
		Ports:     []corev1.ServicePort{{Name: "https", Port: 443}, {Name: "other", Port: 80}},
	}
	if edit != nil {
		edit(&s.Spec)
	}
	return s
}

func slice(ready bool, portName string, port int32, address string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Ports:      []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		},
	}
}

func TestResolve(t *testing.T) {
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "s"}} // clients still write them
	endpoints.Subsets = []corev1.EndpointSubset{{                            // the same
		Addresses: []corev1.EndpointAddress{{IP: "10.1.0.3"}},
		Ports:     []corev1.EndpointPort{{Name: "https", Port: 9443}},
	}}
	for name, tc := range map[string]struct {
		in      objects
		port    int32
		want    string
		wantErr string
		unready bool
	}{
		"slice": {in: objects{service(nil), slice(true, "https", 8443, "10.1.0.2")}, port: 443, want: "10.1.0.2:8443"},
		"other port": {
			in:      objects{service(nil), slice(true, "other", 8080, "10.1.0.2")},
			port:    443,
			want:    "10.0.0.9:443",
			unready: true,
		},
		"not ready": {
			in:      objects{service(nil), slice(false, "https", 8443, "10.1.0.2")},
			port:    443,
			want:    "10.0.0.9:443",
			unready: true,
		},
		"endpoints": {in: objects{service(nil), endpoints}, port: 443, want: "10.1.0.3:9443"},
		"ipv6": {
			in:   objects{service(nil), slice(true, "https", 8443, "fd00::2")},
			port: 443,
			want: "[fd00::2]:8443",
		},
		"no such port": {in: objects{service(nil)}, port: 444, wantErr: `no service port 444 found for service "s"`},
		"absent":       {port: 443, wantErr: `service "s" in "ns" is not present: services "s" not found`},
		"headless": {
			in:      objects{service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })},
			port:    443,
			wantErr: `no endpoints available for service "s"`,
			unready: true,
		},
		"external name": {
			in: objects{service(func(s *corev1.ServiceSpec) {
				s.Type = corev1.ServiceTypeExternalName
				s.ExternalName = "far.example"
			})},
			port: 8443,
			want: "far.example:8443",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Resolve(t.Context(), tc.in, "ns", "s", tc.port)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != tc.want || text != tc.wantErr {
				t.Errorf("got %q, %q; want %q, %q", got, text, tc.want, tc.wantErr)
			}
			if unready, err := Ready(t.Context(), tc.in, "ns", "s", tc.port); unready != tc.unready ||
				(err == nil) != (tc.wantErr == "" && !tc.unready) {
				t.Errorf("ready: %v, %v; want %v", unready, err, tc.unready)
			}
		})
	}
}
