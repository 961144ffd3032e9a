// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// keeper returns a keeper on a cluster that holds objs, and set's history of a template with this image.
func keeper(t *testing.T, objs ...runtime.Object) (*controllertest.Cluster, func(image string) *State, *Manager) {
	t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}}
	cluster := controllertest.New(append(objs, set)...)
	env := &framework.Env{Client: cluster.Client, Shared: cluster.Informers(0, client.Scope{})}
	manager, err := New(env, gvk, func(context.Context, string, string) (metav1.Object, error) { return set, nil })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	env.Shared.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		env.Shared.Shutdown()
	})
	if !cache.WaitFor(ctx, "", manager.Informer().HasSyncedChecker()) {
		t.Fatal("no revisions")
	}
	return cluster, func(image string) *State {
		t.Helper()
		s, err := manager.Sync(ctx, Owner{
			Object:    set,
			Selector:  labels.SelectorFromSet(labels.Set{"app": "web"}),
			Template:  template1(image),
			HashLabel: "hash",
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, manager
}

func template1(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// seen wants that the informer has n revisions in the end.
func seen(t *testing.T, k *Manager, n int) {
	t.Helper()
	synctest.Wait()
	if got := len(k.Informer().GetIndexer().List()); got != n {
		t.Fatalf("the informer has %d revisions, want %d", got, n)
	}
}

func TestPatchIsWhatKubectlSends(t *testing.T) {
	b, err := Patch(template1("v1"))
	if want := `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"image":"v1","name":"c","resources":{}}]}}}}`; err != nil ||
		string(b) != want {
		t.Errorf("got %s, %v; want %s", b, err, want)
	}
	back, err := template(b)
	if err != nil || back.Spec.Containers[0].Image != "v1" || back.Labels["app"] != "web" {
		t.Errorf("back: got %+v, %v", back, err)
	}
	for _, bad := range []string{
		``, `[]`, `{}`, `{"spec":{"template":7}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1e2880888"}}}]}}}}`,
		`{"Spec":{"template":{"spec":{"overhead":{"cpu":"1e2880888"}}}}}`,
	} {
		if got, err := template([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

// Asking again before the informer knows of the revision must not create another.
func TestAdvanceTwiceIsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, advance, k := keeper(t)
		a := advance("v1")
		b := advance("v1")
		if a.Update.Name != b.Update.Name || b.Collisions != 0 || b.Update.Revision != 1 {
			t.Errorf("got %s, then %s with number %d and %d collisions", a.Update.Name, b.Update.Name,
				b.Update.Revision, b.Collisions)
		}
		seen(t, k, 1)
	})
}

func TestCollisions(t *testing.T) {
	patch, err := Patch(template1("v1"))
	if err != nil {
		t.Fatal(err)
	}
	k := &Manager{own: framework.Ownership[*appsv1.ControllerRevision]{Owner: gvk}}
	of := func() *appsv1.ControllerRevision {
		o := Owner{
			Object:    &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}},
			Template:  template1("v1"),
			HashLabel: "hash",
		}
		r := k.revision(o, patch, 1, 0)
		r.OwnerReferences[0].UID = "other"
		return r
	}
	_, advance, _ := keeper(t, of())
	s := advance("v1")
	if taken := of().Name; s.Collisions != 1 || s.Update.Name == taken || !strings.HasPrefix(s.Update.Name, "web-") {
		t.Errorf("got %s with %d collisions, want another name than %s and 1", s.Update.Name, s.Collisions, taken)
	}
}

func TestAdoptsRenumbersTruncates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// As an older Kubernetes wrote it, and orphaned since.
		raw := `{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"web"}},"spec":{"containers":[{"image":"v1","name":"c","resources":{}}]}}}}`
		orphan := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name:      "web-old",
				Namespace: "default",
				Labels:    map[string]string{"app": "web"},
			},
			Data:     runtime.RawExtension{Raw: []byte(raw)},
			Revision: 4,
		}
		cluster, advance, manager := keeper(t, orphan)
		if s := advance("v1"); s.Update.Name != "web-old" || s.Update.Revision != 4 {
			t.Fatalf("got %s with number %d, want the adopted web-old with 4", s.Update.Name, s.Update.Revision)
		}
		if s := advance("v2"); s.Update.Revision != 5 || len(s.All) != 2 {
			t.Errorf("a new template: got number %d of %d revisions, want 5 of 2", s.Update.Revision, len(s.All))
		}
		seen(t, manager, 2)
		if objs, err := manager.Informer().GetIndexer().ByIndex(framework.ByController, "web"); err != nil ||
			len(objs) != 2 {
			t.Fatalf("the informer shows %d owned revisions, %v; want 2", len(objs), err)
		}
		state := advance("v1")
		var got []string
		for _, r := range state.All {
			got = append(got, fmt.Sprint(r.Revision))
		}
		if state.Update.Name != "web-old" || strings.Join(got, " ") != "5 6" {
			t.Errorf("a rollback: got %s, numbers %v; want web-old, 5 6", state.Update.Name, got)
		}
		keep := func(*appsv1.ControllerRevision) bool { return true }
		none := func(*appsv1.ControllerRevision) bool { return false }
		for _, tt := range []struct {
			limit int
			live  func(*appsv1.ControllerRevision) bool
			want  int
		}{{-1, none, 2}, {1, none, 2}, {0, keep, 2}, {0, none, 1}} {
			if err := manager.Truncate(t.Context(), state, tt.limit, tt.live); err != nil {
				t.Fatal(err)
			}
			l, err := cluster.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(l.Items) != tt.want {
				t.Errorf("limit %d: got %d revisions, %v; want %d", tt.limit, len(l.Items), err, tt.want)
			}
		}
	})
}

// TestOrphanOfThatName: a revision that cannot be adopted does not hold up the set whose name it has taken.
func TestOrphanOfThatName(t *testing.T) {
	patch, err := Patch(template1("v1"))
	if err != nil {
		t.Fatal(err)
	}
	k := &Manager{own: framework.Ownership[*appsv1.ControllerRevision]{Owner: gvk}}
	o := Owner{
		Object:    &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}},
		Template:  template1("v1"),
		HashLabel: "hash",
	}
	r := k.revision(o, patch, 1, 0)
	r.OwnerReferences = nil
	r.Labels = nil
	_, advance, _ := keeper(t, r)
	s := advance("v1")
	if s.Collisions != 1 || s.Update.Name == r.Name {
		t.Errorf("got %s with %d collisions, want another name than %s and 1", s.Update.Name, s.Collisions, r.Name)
	}
}

// The name of a workload is cut where that leaves a valid name of the revision.
func TestLongName(t *testing.T) {
	k := &Manager{own: framework.Ownership[*appsv1.ControllerRevision]{Owner: gvk}}
	for _, name := range []string{strings.Repeat("d", 253), strings.Repeat("d", 222) + "." + strings.Repeat("d", 30)} {
		got := k.revision(Owner{
			Object:    &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}},
			Template:  template1("v1"),
			HashLabel: "hash",
		}, nil, 1, 0).Name
		if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
			t.Errorf("%s: got revision %s, %v", name, got, errs)
		}
	}
}
