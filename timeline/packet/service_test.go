// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var update = flag.Bool("update", false, "rewrite golden files")

// web is a service with two ready pods that a slice carries.
func web() *Objects {
	objects := &Objects{Service: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.12.3",
			ClusterIPs: []string{"10.96.12.3"},
			Selector:   map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{
				Name:       "http",
				Port:       80,
				Protocol:   corev1.ProtocolTCP,
				TargetPort: intstr.FromString("http"),
			}},
		},
	}}
	slice := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-x2f4k"}}
	for i, name := range []string{"web-1", "web-2"} {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
		}
		pod.Spec.Containers = []corev1.Container{{
			Name:  "c",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)},
			}},
		}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP = []string{"10.42.0.5", "10.42.0.6"}[i]
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}
		objects.Pods = append(objects.Pods, pod)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{
			Kind: "Pod",
			Name: name,
		}})
	}
	objects.Slices = []discoveryv1.EndpointSlice{slice}
	return objects
}

func each(o *Objects, f func(*corev1.Pod)) {
	for i := range o.Pods {
		f(&o.Pods[i])
	}
}

func unreadyContainers(p *corev1.Pod) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.ContainerStatuses[0].Ready = false
}

func TestExplain(t *testing.T) {
	deny := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny-all"}}
	for name, change := range map[string]func(*Objects){
		"well":      func(*Objects) {},
		"misspelt":  func(o *Objects) { each(o, func(p *corev1.Pod) { p.Labels["app"] = "wbe" }) },
		"wrong-key": func(o *Objects) { each(o, func(p *corev1.Pod) { p.Labels = map[string]string{"name": "web"} }) },
		"no-pods": func(o *Objects) {
			o.Pods = nil
			o.Slices = nil
		},
		"port-name": func(o *Objects) {
			o.Service.Spec.Ports[0].TargetPort = intstr.FromString("web")
		},
		"not-ready": func(o *Objects) { each(o, unreadyContainers) },
		"probe-words": func(objects *Objects) {
			each(objects, func(p *corev1.Pod) {
				unreadyContainers(p)
				p.UID = types.UID(p.Name)
			})
			for i, words := range []string{"503", "connection refused", "of another pod", ""} {
				pod := []string{"web-1", "web-1", "other", "web-1"}[i]
				e := corev1.Event{
					InvolvedObject: corev1.ObjectReference{UID: types.UID(pod)},
					LastTimestamp:  metav1.Unix(int64(i), 0),
					Message:        "spec.containers{c}: Readiness probe failed: " + words,
				}
				if words == "" {
					e.Message = "Liveness probe failed: never shown"
				}
				objects.Unhealthy = append(objects.Unhealthy, e)
			}
		},
		"crash": func(o *Objects) {
			each(o, func(p *corev1.Pod) {
				unreadyContainers(p)
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason:  "CrashLoopBackOff",
					Message: "back-off 10s",
				}}
			})
		},
		"no-slice": func(o *Objects) { o.Slices = nil },
		"denied":   func(o *Objects) { o.Policies = []networkingv1.NetworkPolicy{deny} },
		"headless": func(o *Objects) {
			o.Service.Spec.ClusterIP = corev1.ClusterIPNone
			o.Service.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
		},
		"external": func(o *Objects) {
			o.Service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
		},
		"by-hand": func(o *Objects) {
			o.Service.Spec.Selector = nil
			o.Slices = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := web()
			change(o)
			var b bytes.Buffer
			Render(&b, Explain(o), false)
			golden(t, name, b.Bytes())
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestNamedTargets: a port is known by its place, not by its number, which another protocol may have too.
func TestNamedTargets(t *testing.T) {
	objects := web()
	objects.Service.Spec.Ports = append(objects.Service.Spec.Ports, corev1.ServicePort{
		Port:       80,
		Protocol:   corev1.ProtocolUDP,
		TargetPort: intstr.FromString("quic"),
	})
	const want = "port 80 -> targetPort quic: no container port of that name"
	if got := Explain(objects).Wrong; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
