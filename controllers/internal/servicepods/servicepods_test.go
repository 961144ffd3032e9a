// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/apitest"
	"keelson/client"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func service(namespace, name string, selector map[string]string) *corev1.Service {
	return apitest.Service(namespace+"/"+name, corev1.ServiceSpec{Selector: selector})
}

// TestWatch: a change of a pod wakes the services that it concerns and no other.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ext := service("a", "external", map[string]string{"app": "web"})
		ext.Spec.Type = corev1.ServiceTypeExternalName
		c := controllertest.New(
			service("a", "web", map[string]string{"app": "web"}), service("a", "blue", map[string]string{
				"app":   "web",
				"color": "blue",
			}),
			service("a", "manual", nil), service("b", "web", map[string]string{"app": "web"}), ext,
		)
		shared := c.Informers(0, client.Scope{})
		s, err := Of(&framework.Env{Client: c.Client, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		shared.StartWithContext(ctx)
		shared.WaitForCacheSync(ctx)
		defer shared.Shutdown()
		defer cancel()
		var woken []string
		h := s.Watch(func(k framework.Key) { woken = append(woken, k.String()) })
		base := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "web"}},
			Status:     corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}
		with := func(f func(*corev1.Pod)) *corev1.Pod {
			p := base.DeepCopy()
			f(p)
			return p
		}
		ready := func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		for _, tc := range []struct {
			name string
			cur  *corev1.Pod
			want []string
		}{
			{"an annotation", with(func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} }), nil},
			{"ready", with(ready), []string{"a/web"}},
			{
				"ended, and never was ready", with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
				[]string{"a/web"},
			},
			{"another address", with(func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }), []string{"a/web"}},
			{
				"going", with(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }),
				[]string{"a/web"},
			},
			{"a hostname", with(func(p *corev1.Pod) { p.Spec.Hostname = "h" }), []string{"a/web"}},
			{"one label more", with(func(p *corev1.Pod) { p.Labels["color"] = "blue" }), []string{"a/blue", "a/web"}},
			{"no label left", with(func(p *corev1.Pod) { p.Labels = nil }), []string{"a/web"}},
		} {
			woken = nil
			h.Update(base, tc.cur)
			slices.Sort(woken)
			if got := slices.Compact(woken); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v are woken, want %v", tc.name, got, tc.want)
			}
		}
	})
}

// TestPodsWithFalseAddresses: a pod whose node gave it an address that no endpoint may have does not make the endpoints
// of the Service's other pods invalid; the cached pod keeps its address.
func TestPodsWithFalseAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := service("a", "web", map[string]string{"app": "web"})
		objs := []runtime.Object{web}
		for name, ips := range map[string][]string{
			"good":       {"10.0.0.1", "fd00::1"},
			"loopback":   {"127.0.0.1"},
			"link-local": {"169.254.1.1", "fe80::1"},
			"zero":       {"0.0.0.0"},
			"group":      {"224.0.0.1"},
			"half":       {"127.0.0.2", "fd00::2"},
		} {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: web.Spec.Selector}}
			p.Status.PodIP = ips[0]
			for _, ip := range ips {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			objs = append(objs, p)
		}
		c := controllertest.New(objs...)
		shared := c.Informers(0, client.Scope{})
		s, err := Of(&framework.Env{Client: c.Client, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		shared.StartWithContext(ctx)
		shared.WaitForCacheSync(ctx)
		defer shared.Shutdown()
		defer cancel()
		pods, err := s.Pods(web)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, p := range pods {
			if len(p.Status.PodIPs) == 0 && p.Status.PodIP == "" {
				continue
			}
			got[p.Name] = p.Status.PodIP + " " + fmt.Sprint(p.Status.PodIPs)
		}
		want := map[string]string{"good": "10.0.0.1 [{10.0.0.1} {fd00::1}]", "half": "fd00::2 [{fd00::2}]"}
		if !maps.Equal(got, want) || len(pods) != 6 {
			t.Errorf("got %d pods with addresses %v, want %v", len(pods), got, want)
		}
		cached, err := s.pods.Pods("a").Get("half")
		if err != nil || cached.Status.PodIP != "127.0.0.2" {
			t.Errorf("the cached pod was modified: %v, %v", cached.Status.PodIPs, err)
		}
	})
}
