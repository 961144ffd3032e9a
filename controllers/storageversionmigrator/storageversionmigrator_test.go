// SPDX-License-Identifier: Apache-2.0

package storageversionmigrator

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client/clienttest"
	"keelson/controllers/controllertest"
)

func order(name, group, resource string, age time.Duration) *migrationv1.StorageVersionMigration {
	return &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			UID:               types.UID("uid-" + name),
			CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
		},
		Spec: migrationv1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: group, Resource: resource},
		},
	}
}

func start(t *testing.T, orders ...runtime.Object) (*controllertest.Cluster, *metafake.FakeMetadataClient) {
	object := func(version, kind, ns, name string) *metav1.PartialObjectMetadata {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace:       ns,
			Name:            name,
			UID:             types.UID(name),
			ResourceVersion: "7",
		}}
		o.APIVersion = version
		o.Kind = kind
		return o
	}
	client := clienttest.NewMetadata(
		object("v1", "Secret", "a", "s1"), object("v1", "Secret", "b", "s2"), object("v1", "Secret", "b", "s3"), object(
			"example.com/v1", "Widget", "a", "w1"))
	cluster := controllertest.New(orders...)
	cluster.Metadata = client
	lists := map[schema.GroupVersionResource]string{definitions: "CustomResourceDefinitionList"}
	cluster.Dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, definition())
	verbs := metav1.Verbs{"list", "patch"}
	cluster.Fake.Resources = []*metav1.APIResourceList{
		{
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{
				Name:       "secrets",
				Kind:       "Secret",
				Namespaced: true,
				Verbs:      verbs,
			}},
		},
		{
			GroupVersion: "example.com/v1",
			APIResources: []metav1.APIResource{{
				Name:       "widgets",
				Kind:       "Widget",
				Namespaced: true,
				Verbs:      verbs,
			}},
		},
	}
	return cluster, client
}

func definition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "widgets.example.com", "generation": int64(3)},
		"spec": map[string]any{"versions": []any{
			map[string]any{"name": "v1alpha1", "storage": false}, map[string]any{"name": "v1", "storage": true},
		}},
		"status": map[string]any{
			"storedVersions": []any{"v1alpha1", "v1"},
			"conditions":     []any{map[string]any{"type": "Established", "status": "True"}},
		},
	}}
}

func status(t *testing.T, c *controllertest.Cluster, name string) string {
	t.Helper()
	m, err := c.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, cond := range m.Status.Conditions {
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s=%s %s", cond.Type, cond.Status, cond.Message)))
	}
	return strings.Join(words, ", ")
}

// TestMigrates: every object is patched with nothing, one that changed meanwhile is no failure, and the next order
// waits for its turn.
func TestMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, m := start(t, order("first", "", "secrets", time.Hour), order("second", "", "secrets", time.Minute))
		var patched atomic.Int64
		m.PrependReactor("patch", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
			p, _ := a.(clienttesting.PatchAction)
			if got, want := string(p.GetPatch()), fmt.Sprintf(`{"metadata":{"resourceVersion":"7","uid":%q}}`,
				p.GetName()); got != want {
				t.Errorf("patch %s, want %s", got, want)
			}
			patched.Add(1)
			if status(t, cluster, "second") != "" && status(t, cluster, "first") != "Succeeded=True" {
				t.Error("two migrations of a resource run at once")
			}
			if p.GetName() == "s2" {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "s2",
					fmt.Errorf("changed"))
			}
			return true, &metav1.PartialObjectMetadata{}, nil
		})
		cluster.Start(t, "storage-version-migrator-controller", New)
		time.Sleep(time.Minute)
		for _, name := range []string{"first", "second"} {
			if got := status(t, cluster, name); got != "Succeeded=True" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if n := patched.Load(); n != 6 {
			t.Errorf("%d patches for twice 3 objects", n)
		}
	})
}

// TestFails: a resource that is not served, after a while, and an object that is refused.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, m := start(t, order("unknown", "", "gadgets", 0), order("refused", "", "secrets", 0))
		m.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s1",
				fmt.Errorf("a webhook says no"))
		})
		cluster.Start(t, "storage-version-migrator-controller", New)
		time.Sleep(30 * time.Second)
		if got := status(t, cluster, "unknown"); got != "" {
			t.Errorf("a resource that may come yet: %s", got)
		}
		if got := status(t, cluster, "refused"); got != "Failed=True migration encountered unhandled error" {
			t.Errorf("an object that is refused: %s", got)
		}
		time.Sleep(time.Minute)
		if got := status(t, cluster, "unknown"); got != "Failed=True resource not found" {
			t.Errorf("a resource that did not come: %s", got)
		}
	})
}

// TestDefinition: after a migration a definition knows the stored version alone.
func TestDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, m := start(t, order("widgets", "example.com", "widgets", time.Hour))
		m.PrependReactor("patch", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &metav1.PartialObjectMetadata{}, nil
		})
		cluster.Start(t, "storage-version-migrator-controller", New)
		time.Sleep(time.Minute)
		d, err := cluster.Dynamic.Resource(definitions).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, _, _ := unstructured.NestedStringSlice(d.Object, "status", "storedVersions")
		cond := conditionOf(d, migrating)
		if strings.Join(stored, ",") != "v1" || cond == nil || cond["status"] != "False" ||
			cond["reason"] != "MigrationSucceeded" || conditionOf(d, "Established") == nil {
			t.Errorf("stored versions %v, condition %v", stored, cond)
		}
		if got := status(t, cluster, "widgets"); got != "Succeeded=True" {
			t.Errorf("migration: %s", got)
		}
	})
}
