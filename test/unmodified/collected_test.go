// SPDX-License-Identifier: Apache-2.0

package unmodified

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"keelson/cluster"
)

// collected is a cluster with two custom kinds: Boxes, in namespaces, and Halls, outside.
type collected struct {
	*running
	boxes, halls, maps dynamic.NamespaceableResourceInterface
}

func startCollected(t *testing.T) *collected {
	t.Helper()
	running := start(t, func(c *cluster.Config) { c.NoNode = true })
	free := `{type: object, x-kubernetes-preserve-unknown-fields: true}`
	running.must(t, kindYAML(t, "store", "boxs", free, "v1"), "apply", "-f", "-")
	running.must(t, strings.Replace(kindYAML(t, "store", "halls", free, "v1"), `"Namespaced"`, `"Cluster"`, 1), "apply",
		"-f", "-")
	running.must(t, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	of := func(resource string) dynamic.NamespaceableResourceInterface {
		return running.dynamic.Resource(schema.GroupVersionResource{
			Group:    "store.example.com",
			Version:  "v1",
			Resource: resource,
		})
	}
	return &collected{
		running, of("boxs"), of("halls"),
		running.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")),
	}
}

// made creates an object, owned by owners, and returns it.
func made(
	t *testing.T, cs dynamic.ResourceInterface, apiVersion, kind, name string, finalizers []string,
	owners ...*unstructured.Unstructured,
) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	obj.SetName(name)
	obj.SetFinalizers(finalizers)
	var refs []metav1.OwnerReference
	yes := true
	for _, o := range owners {
		refs = append(refs, metav1.OwnerReference{
			APIVersion:         o.GetAPIVersion(),
			Kind:               o.GetKind(),
			Name:               o.GetName(),
			UID:                o.GetUID(),
			BlockOwnerDeletion: &yes,
		})
	}
	obj.SetOwnerReferences(refs)
	out, err := cs.Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s %s: %v", kind, name, err)
	}
	return out
}

func (c *collected) box(
	t *testing.T, ns, name string, owners ...*unstructured.Unstructured,
) *unstructured.Unstructured {
	t.Helper()
	return made(t, c.boxes.Namespace(ns), "store.example.com/v1", "Box", name, nil, owners...)
}

func (c *collected) configMap(
	t *testing.T, ns, name string, owners ...*unstructured.Unstructured,
) *unstructured.Unstructured {
	t.Helper()
	return made(t, c.maps.Namespace(ns), "v1", "ConfigMap", name, nil, owners...)
}

// goes waits until an object is not found.
func goes(t *testing.T, r dynamic.ResourceInterface, name string) {
	t.Helper()
	eventually(t, name+" to go", func() string {
		u, err := r.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("%v, %v", u, err)
	})
}

// TestCustomResourcesAreCollected: owner references between custom and built-in kinds are honoured in both directions
// and across scopes, by each propagation policy, also by those of kinds that came after the collector.
func TestCustomResourcesAreCollected(t *testing.T) {
	collected := startCollected(t)
	ctx := t.Context()
	boxes := collected.boxes.Namespace("default")
	maps := collected.maps.Namespace("default")
	hall := made(t, collected.halls, "store.example.com/v1", "Hall", "hall", nil)
	box := collected.box(t, "default", "box", hall)
	inner := collected.box(t, "default", "inner", box)
	// before of-map: when that has gone, the collector knows of both
	held := made(t, boxes, "store.example.com/v1", "Box", "held", []string{"example.com/hold"}, box)
	collected.configMap(t, "default", "of-inner", inner)
	owner := collected.configMap(t, "default", "owner")
	collected.box(t, "default", "of-map", owner)
	two := collected.box(t, "default", "of-two", owner, hall)
	collected.box(t, "default", "of-none")

	if err := maps.Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	goes(t, boxes, "of-map")
	eventually(t, "the box of two to lose one owner", func() string {
		u, err := boxes.Get(ctx, "of-two", metav1.GetOptions{})
		if err != nil || len(u.GetOwnerReferences()) != 1 || u.GetUID() != two.GetUID() {
			return fmt.Sprintf("%v, %v", u, err)
		}
		return ""
	})

	orphan := metav1.DeletePropagationOrphan
	if err := boxes.Delete(ctx, "inner", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	goes(t, boxes, "inner")
	if u, err := maps.Get(ctx, "of-inner", metav1.GetOptions{}); err != nil || len(u.GetOwnerReferences()) != 0 ||
		u.GetDeletionTimestamp() != nil {
		t.Errorf("the orphan: %v, %v", u, err)
	}

	foreground := metav1.DeletePropagationForeground
	if err := collected.halls.Delete(ctx, "hall", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deletion to reach the held box", func() string {
		u, err := boxes.Get(ctx, held.GetName(), metav1.GetOptions{})
		if err != nil || u.GetDeletionTimestamp() == nil {
			return fmt.Sprintf("%v, %v", u, err)
		}
		return ""
	})
	if u, err := collected.halls.Get(ctx, "hall", metav1.GetOptions{}); err != nil ||
		!slices.Contains(u.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		t.Errorf("the hall is to wait for what it owns: %v, %v", u, err)
	}
	if _, err := boxes.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"held", "box", "of-two"} {
		goes(t, boxes, name)
	}
	goes(t, collected.halls, "hall")
	if _, err := boxes.Get(ctx, "of-none", metav1.GetOptions{}); err != nil {
		t.Errorf("the box without an owner: %v", err)
	}
}

// TestNamespaceTakesCustomResources: a namespace goes with its custom resources; while one has a finalizer the
// namespace says so, and it goes when that is let go. Objects of the kind elsewhere stay.
func TestNamespaceTakesCustomResources(t *testing.T) {
	collected := startCollected(t)
	ctx := t.Context()
	running := collected.running
	running.must(t, "", "create", "namespace", "shop")
	collected.box(t, "shop", "free")
	collected.box(t, "default", "elsewhere")
	made(t, collected.boxes.Namespace("shop"), "store.example.com/v1", "Box", "held", []string{"example.com/hold"})
	if err := running.CoreV1().Namespaces().Delete(ctx, "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	goes(t, collected.boxes.Namespace("shop"), "free")
	eventually(t, "the namespace to say what holds it", func() string {
		ns, err := running.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, want := range []struct {
			typ  corev1.NamespaceConditionType
			text string
		}{
			{
				corev1.NamespaceContentRemaining,
				"Some resources are remaining: boxs.store.example.com has 1 resource instances",
			},
			{
				corev1.NamespaceFinalizersRemaining,
				"Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
			},
		} {
			if !slices.ContainsFunc(ns.Status.Conditions, func(have corev1.NamespaceCondition) bool {
				return have.Type == want.typ && have.Status == corev1.ConditionTrue && have.Message == want.text
			}) {
				return fmt.Sprintf("no %s %q in %+v", want.typ, want.text, ns.Status.Conditions)
			}
		}
		return ""
	})
	_, err := collected.boxes.Namespace("shop").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "store.example.com/v1",
		"kind":       "Box",
		"metadata":   map[string]any{"name": "late"},
	}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "because it is being terminated") {
		t.Errorf("a box in a namespace that goes: %v", err)
	}
	if _, err := collected.boxes.Namespace("shop").Patch(ctx, "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace to go", func() string {
		_, err := running.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(err)
	})
	if _, err := collected.boxes.Namespace("default").Get(ctx, "elsewhere", metav1.GetOptions{}); err != nil {
		t.Errorf("the box elsewhere: %v", err)
	}
}
