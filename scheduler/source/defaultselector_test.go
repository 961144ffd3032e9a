// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestDefaultSelector: which pods a pod without spread constraints is spread with, by its services and its controller.
func TestDefaultSelector(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "o", Namespace: "default"}
	by := func(k string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"by": k}}
	}
	index := func(o runtime.Object) cache.Indexer {
		i := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})
		if err := i.Add(o); err != nil {
			t.Fatal(err)
		}
		return i
	}
	selector := &defaultSelector{
		services: corelisters.NewServiceLister(index(&corev1.Service{
			ObjectMeta: meta,
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "a"}},
		})),
		controllers: corelisters.NewReplicationControllerLister(index(&corev1.ReplicationController{
			ObjectMeta: meta,
			Spec:       corev1.ReplicationControllerSpec{Selector: map[string]string{"by": "rc"}},
		})),
		sets: appslisters.NewReplicaSetLister(
			index(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: by("rs")}})),
		stateful: appslisters.NewStatefulSetLister(
			index(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: by("ss")}})),
	}
	for _, tc := range []struct{ app, version, kind, want string }{
		{"a", "", "", "app=a"},
		{"b", "", "", ""},
		{"b", "v1", "ReplicationController", "by=rc"},
		{"b", "apps/v1", "ReplicaSet", "by=rs"},
		{"a", "apps/v1", "ReplicaSet", "app=a,by=rs"},
		{"b", "apps/v1", "StatefulSet", "by=ss"},
		{"b", "example.com/v1", "StatefulSet", ""},
		{"a", "batch/v1", "Job", "app=a"},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{"app": tc.app}}}
		if tc.kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: tc.version,
				Kind:       tc.kind,
				Name:       "o",
				Controller: new(true),
			}}
		}
		got := ""
		if s := selector.selector(p); s != nil {
			got = s.String()
		}
		if got != tc.want {
			t.Errorf("app %s of a %s %s: spread with %q, want %q", tc.app, tc.version, tc.kind, got, tc.want)
		}
	}
}
