// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
	"keelson/apiserver/delivery"
	"keelson/apiserver/objects"
	"keelson/auth"
	"keelson/event"
)

var (
	pods = schema.GroupResource{Resource: "pods"}
	sets = schema.GroupResource{Group: "apps", Resource: "replicasets"}
)

func entry(obj kind.Object) *objects.Entry { return objects.NewEntry("", obj, 7, nil) }

func TestWhoIsTold(t *testing.T) {
	pod := entry(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u"}})
	set := func(generation int64) *objects.Entry {
		return entry(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r", Generation: generation}})
	}
	change := func() *atomic.Int32 { return new(atomic.Int32) }
	for name, c := range map[string]struct {
		user string
		gr   schema.GroupResource
		ev   objects.Event
		want int
	}{
		"the scheduler": {
			"system:kube-scheduler", pods, objects.Event{Type: watch.Added, Entry: pod, Marked: change()}, 1,
		},
		"a person": {"alice", pods, objects.Event{Type: watch.Added, Entry: pod, Marked: change()}, 0},
		"unknown user": {
			"system:anonymous", pods, objects.Event{Type: watch.Added, Entry: pod, Marked: change()}, 0,
		},
		"what was there before": {"system:kube-scheduler", pods, objects.Event{Type: watch.Added, Entry: pod}, 0},
		"another kind": {"system:kube-scheduler", schema.GroupResource{Resource: "nodes"}, objects.Event{
			Type:   watch.Added,
			Entry:  pod,
			Marked: change(),
		}, 0},
		"a pod's status": {"system:node:n", pods, objects.Event{
			Type:   watch.Modified,
			Entry:  pod,
			Prev:   pod,
			Marked: change(),
		}, 1},
		"a replica set's status": {"system:kube-controller-manager", sets, objects.Event{
			Type:   watch.Modified,
			Entry:  set(2),
			Prev:   set(2),
			Marked: change(),
		}, 0},
		"a scaled replica set": {"system:kube-controller-manager", sets, objects.Event{
			Type:   watch.Modified,
			Entry:  set(3),
			Prev:   set(2),
			Marked: change(),
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var got []event.Event
			r := event.NewRecorder(func(m event.Event) { got = append(got, m) })
			c.ev.At = time.Now()
			delivery.New(r, &auth.User{Name: c.user}, c.gr, &objects.ListQuery{}).Delivered(&c.ev)
			if len(got) != c.want {
				t.Errorf("got %d marks, want %d: %+v", len(got), c.want, got)
			}
		})
	}
}

// TestWhichNodes: programs that run on every node are listed with their nodes.
func TestWhichNodes(t *testing.T) {
	bound := map[string][]string{"authentication.kubernetes.io/node-name": {"n2"}}
	for want, user := range map[string]*auth.User{
		"system:serviceaccount:kube-system:keelson-proxy n2": {
			Name:  "system:serviceaccount:kube-system:keelson-proxy",
			Extra: bound,
		},
		"system:serviceaccount:kube-system:keelson-proxy": {Name: "system:serviceaccount:kube-system:keelson-proxy"},
		"system:serviceaccount:shop:operator": {
			Name:  "system:serviceaccount:shop:operator",
			Extra: bound,
		},
	} {
		got := ""
		recorder := event.NewRecorder(func(m event.Event) {
			if d, ok := m.Detail.(*event.Delivery); ok {
				got = d.To
			}
		})
		ev := objects.Event{
			Type:   watch.Added,
			Entry:  entry(&corev1.Pod{}),
			At:     time.Now(),
			Marked: new(atomic.Int32),
		}
		delivery.New(recorder, user, pods, &objects.ListQuery{}).Delivered(&ev)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestFewWatchersOfAChange: a change that thousands watch costs no more marks than one that a few do, and their words
// are short.
func TestFewWatchersOfAChange(t *testing.T) {
	marks := 0
	recorder := event.NewRecorder(func(m event.Event) {
		marks++
		if d, ok := m.Detail.(*event.Delivery); !ok || len(d.Watches) > 200 ||
			!strings.HasPrefix(d.Watches, "pods of a, spec.nodeName=") {
			t.Errorf("got %+v", m.Detail)
		}
	})
	ev := objects.Event{
		Type:   watch.Added,
		Entry:  entry(&corev1.Pod{}),
		At:     time.Now(),
		Marked: new(atomic.Int32),
	}
	q := &objects.ListQuery{
		Namespace: "a",
		Fields:    fields.OneTermEqualSelector("spec.nodeName", strings.Repeat("n", 500)),
	}
	for range 1000 {
		delivery.New(recorder, &auth.User{Name: "system:serviceaccount:a:b"}, pods, q).Delivered(&ev)
	}
	if marks != 16 {
		t.Errorf("got %d marks of one change, want 16", marks)
	}
}

func BenchmarkDelivered(b *testing.B) {
	t := delivery.New(event.NewRecorder(func(event.Event) {}), &auth.User{Name: "system:kube-scheduler"}, pods,
		&objects.ListQuery{})
	e := entry(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u"}})
	b.ReportAllocs()
	for b.Loop() {
		var marked atomic.Int32
		t.Delivered(&objects.Event{
			Type:   watch.Added,
			Entry:  e,
			At:     time.Now(),
			Marked: &marked,
		})
	}
}
