// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
)

// realPod is about 2 KB when stored.
func realPod(key string) *corev1.Pod {
	pod := objectstest.Pod(key, "app=my-app", "pod-template-hash=5d4f8c7b9")
	pod.UID = "2f1c7a52-6b1e-4a5e-9d67-0d1b5f6f0c11"
	for i := range 3 {
		container := corev1.Container{
			Name:    fmt.Sprintf("container-%d", i),
			Image:   "registry.example/my-app:v1.2.3",
			Command: []string{"/bin/app", "--serve"},
		}
		for j := range 6 {
			container.Env = append(container.Env, corev1.EnvVar{
				Name:  fmt.Sprintf("VARIABLE_%d", j),
				Value: "some value of middling length",
			})
		}
		container.Resources.Requests = corev1.ResourceList{
			"cpu":    resource.MustParse("100m"),
			"memory": resource.MustParse("64Mi"),
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:  container.Name,
			Image: container.Image,
			Ready: true,
		})
	}
	for _, t := range []corev1.PodConditionType{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type:               t,
			Status:             "True",
			LastTransitionTime: pod.CreationTimestamp,
		})
	}
	return pod
}

func filled(b *testing.B, n int) *watchcache.Resource {
	b.Helper()
	_, r := start(b, watchcache.Config{Store: objectstest.NewStore(b)})
	for i := range n {
		if _, _, err := r.Create(b.Context(), realPod(fmt.Sprintf("ns-%d/pod-%05d", i%20, i))); err != nil {
			b.Fatal(err)
		}
		bind(b, r, fmt.Sprintf("ns-%d", i%20), fmt.Sprintf("pod-%05d", i), fmt.Sprintf("node-%d", i%1000))
	}
	return r
}

func selected(label, field string, limit int64) objects.ListQuery {
	selector, err := labels.Parse(label)
	if err != nil {
		panic(err)
	}
	return objects.ListQuery{Labels: selector, Fields: fields.ParseSelectorOrDie(field), Limit: limit}
}

type protobuf struct{}

func (protobuf) Key() string { return "protobuf" }

func (protobuf) Encode(obj kruntime.Object) ([]byte, error) {
	return obj.(interface{ Marshal() ([]byte, error) }).Marshal()
}

func BenchmarkGet(b *testing.B) {
	r := filled(b, 5000)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := r.Get(b.Context(), "ns-7", "pod-00007", ""); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkList5000(b *testing.B) {
	r := filled(b, 5000)
	tests := []struct {
		name string
		q    objects.ListQuery
		want int
	}{
		{"all", objectstest.Everything(), 5000},
		{
			"namespace", objects.ListQuery{
				Namespace: "ns-3",
				Labels:    objectstest.Everything().Labels,
				Fields:    fields.Everything(),
			}, 250,
		},
		{"node", selected("", "spec.nodeName=node-5", 0), 5},
		{"node, a page", selected("", "spec.nodeName=node-5", 500), 5},
		{"label of none", selected("app=other", "", 0), 0},
	}
	for _, tc := range tests {
		b.Run(tc.name, func(b *testing.B) {
			for b.Loop() {
				l, err := r.List(b.Context(), tc.q)
				if err != nil || len(l.Items) != tc.want {
					b.Fatalf("got %d items, %v; want %d", len(l.Items), err, tc.want)
				}
			}
		})
	}
	b.Run("encoded", func(b *testing.B) {
		for b.Loop() {
			l, err := r.List(b.Context(), objectstest.Everything())
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range l.Items {
				if _, err := e.Encoded(protobuf{}); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkCreate64(b *testing.B) {
	_, r := start(b, watchcache.Config{Store: objectstest.NewStore(b)})
	var wg sync.WaitGroup
	work := make(chan int)
	b.ReportAllocs()
	for range 64 {
		wg.Go(func() {
			for i := range work {
				if _, _, err := r.Create(context.Background(), realPod(fmt.Sprintf("ns/pod-%d", i))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range b.N {
		work <- i
	}
	close(work)
	wg.Wait()
}

// BenchmarkFanOut has 1,000 watchers. "node": each of its own node, as kubelets; a write concerns one. "all": each of
// everything; the time is that until the last has encoded the event.
func BenchmarkFanOut(b *testing.B) {
	const watchers = 1000
	for _, kind := range []string{"node", "all"} {
		b.Run(kind, func(b *testing.B) {
			r := filled(b, 1000)
			ctx, cancel := context.WithCancel(b.Context())
			seen := make(chan struct{}, watchers)
			var wg sync.WaitGroup
			state, err := r.List(ctx, objectstest.Everything())
			if err != nil {
				b.Fatal(err)
			}
			for i := range watchers {
				q := objectstest.Everything()
				q.ResourceVersion = objects.FormatRevision(state.Revision)
				if kind == "node" {
					q.Fields = fields.ParseSelectorOrDie(fmt.Sprintf("spec.nodeName=node-%d", i))
				}
				w, err := r.Watch(ctx, q)
				if err != nil {
					b.Fatal(err)
				}
				wg.Go(func() {
					for ev := range w.Events() {
						if _, err := ev.Entry.Encoded(protobuf{}); err != nil {
							b.Error(err)
						}
						seen <- struct{}{}
					}
				})
			}
			b.ResetTimer()
			for i := range b.N {
				n := i % 1000
				bind(b, r, fmt.Sprintf("ns-%d", n%20), fmt.Sprintf("pod-%05d", n), fmt.Sprintf("node-%d", n))
				wait := 1
				if kind == "all" {
					wait = watchers
				}
				for range wait {
					<-seen
				}
			}
			b.StopTimer()
			cancel()
			wg.Wait()
		})
	}
}
