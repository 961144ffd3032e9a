// SPDX-License-Identifier: Apache-2.0

// Package objectstest is the test suite for objects.Storage: Records must pass RunRecords; the watch cache and its
// wrappers also RunWatch. Only tests import it.
package objectstest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/store"
	"keelson/store/embed"
)

// Records is objects.Storage without watches.
type Records interface {
	Get(ctx context.Context, namespace, name, rv string) (*objects.Entry, error)
	List(ctx context.Context, q objects.ListQuery) (*objects.List, error)
	Create(ctx context.Context, obj kind.Object) (*objects.Entry, objects.Receipt, error)
	Update(
		ctx context.Context, ns, name string, createMissing bool, f objects.UpdateFunc,
	) (*objects.Entry, bool, objects.Receipt, error)
	Delete(ctx context.Context, ns, name string, check func(kind.Object) error) (*objects.Entry, objects.Receipt, error)
	DeleteCorrupt(ctx context.Context, ns, name string, dry bool) (objects.Receipt, error)
}

// NewStore opens a store in memory.
func NewStore(t testing.TB) store.Store {
	t.Helper()
	s, err := embed.Open(embed.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// Pods is the storage configuration of pods, with the node index.
func Pods() objects.Config {
	return objects.Config{
		Resource:   schema.GroupResource{Resource: "pods"},
		GVK:        corev1.SchemeGroupVersion.WithKind("Pod"),
		New:        func() kind.Object { return &corev1.Pod{} },
		Prefix:     "pods",
		Namespaced: true,
		Fields: func(obj kind.Object) fields.Set {
			return fields.Set{
				"metadata.name":      obj.GetName(),
				"metadata.namespace": obj.GetNamespace(),
				"spec.nodeName":      nodeOf(obj),
			}
		},
		Index: map[string]func(kind.Object) string{"spec.nodeName": nodeOf},
	}
}

func nodeOf(obj kind.Object) string {
	if p, ok := obj.(*corev1.Pod); ok {
		return p.Spec.NodeName
	}
	return ""
}

// Pod returns the pod "ns/name" with labels "k=v".
func Pod(key string, kv ...string) *corev1.Pod {
	ns, name, _ := strings.Cut(key, "/")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, CreationTimestamp: metav1.Now()}}
	for _, pair := range kv {
		k, v, _ := strings.Cut(pair, "=")
		metav1.SetMetaDataLabel(&p.ObjectMeta, k, v)
	}
	return p
}

// Everything is a query without conditions.
func Everything() objects.ListQuery {
	return objects.ListQuery{Labels: labels.Everything(), Fields: fields.Everything()}
}

func where(t *testing.T, ns, label, field string) objects.ListQuery {
	t.Helper()
	l, err := labels.Parse(label)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fields.ParseSelector(field)
	if err != nil {
		t.Fatal(err)
	}
	return objects.ListQuery{Namespace: ns, Labels: l, Fields: f}
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func create(t *testing.T, s Records, obj kind.Object) *objects.Entry {
	t.Helper()
	e, _, err := s.Create(bounded(t), obj)
	if err != nil {
		t.Fatalf("create %s/%s: %v", obj.GetNamespace(), obj.GetName(), err)
	}
	return e
}

// change updates a copy of a pod.
func change(t *testing.T, s Records, key string, f func(*corev1.Pod)) *objects.Entry {
	t.Helper()
	ns, name, _ := strings.Cut(key, "/")
	e, _, _, err := s.Update(bounded(t), ns, name, false, objects.Replace(func(
		_ context.Context, cur kind.Object,
	) (kind.Object, error) {
		p := cur.DeepCopyObject().(*corev1.Pod)
		f(p)
		return p, nil
	}))
	if err != nil {
		t.Fatalf("update %s: %v", key, err)
	}
	return e
}

func remove(t *testing.T, s Records, key string) *objects.Entry {
	t.Helper()
	ns, name, _ := strings.Cut(key, "/")
	e, _, err := s.Delete(bounded(t), ns, name, nil)
	if err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
	return e
}

func list(t *testing.T, s Records, q objects.ListQuery) *objects.List {
	t.Helper()
	l, err := s.List(bounded(t), q)
	if err != nil {
		t.Fatalf("list %+v: %v", q, err)
	}
	return l
}

func names(l *objects.List) string {
	var out []string
	for _, e := range l.Items {
		out = append(out, e.Object.GetNamespace()+"/"+e.Object.GetName())
	}
	return strings.Join(out, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func reason(t *testing.T, what string, err error, want metav1.StatusReason) {
	t.Helper()
	if got := apierrors.ReasonForError(err); err == nil || got != want {
		t.Errorf("%s: got %v (%s), want reason %s", what, err, got, want)
	}
}

func rv(e *objects.Entry) string { return e.Object.GetResourceVersion() }

func numbered(prefix string, n int) string { return fmt.Sprintf("%s%03d", prefix, n) }
