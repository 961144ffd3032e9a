// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"

	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// part is a field of an object; ok is false when its kind has none of that name.
func part(obj kind.Object, name string) (v any, ok bool) {
	f := reflect.ValueOf(obj).Elem().FieldByName(name)
	if !f.IsValid() {
		return nil, false
	}
	return f.Interface(), true
}

// copied is next with the generation of old, as the handlers pass it on.
func copied(next, old kind.Object) kind.Object {
	c := next.DeepCopyObject().(kind.Object)
	c.SetGeneration(old.GetGeneration())
	return c
}

// labelsStay are the kinds whose status subresource changes no labels; annotationsStay: no annotations either.
var (
	annotationsStay = []string{
		"APIService", "CSINode", "DeviceTaintRule", "FlowSchema", "PodCertificateRequest", "PodGroup",
		"PriorityLevelConfiguration", "ResourceClaim", "ServiceCIDR", "StorageVersionMigration",
		"ValidatingAdmissionPolicy", "VolumeAttachment",
	}
	labelsStay = append([]string{"Deployment"}, annotationsStay...)
)

// TestStatusIsApart: an update of an object leaves its status alone, and an update of its status all the rest.
func TestStatusIsApart(t *testing.T) {
	for _, spec := range stored() {
		sub := spec.Subs["status"]
		// whose schemas hold raw JSON; the package's own tests cover them
		if sub == nil || spec.Group == "apiextensions.k8s.io" {
			continue
		}
		t.Run(spec.Group+"/"+spec.Resource+"."+spec.Version, func(t *testing.T) {
			for seed := range int64(10) {
				old := kindtest.Random(spec, seed)
				next := kindtest.Random(spec, seed+1000)
				spec.Default(old)
				spec.Default(next)
				old.SetGeneration(7)
				old.SetLabels(map[string]string{"is": "old"})
				old.SetAnnotations(map[string]string{"is": "old"})
				main := copied(next, old)
				spec.PrepareUpdate(main, old)
				was, _ := part(old, "Status")
				if is, _ := part(main, "Status"); !equality.Semantic.DeepEqual(was, is) {
					t.Fatalf("seed %d: an update changed the status (-old +new):\n%s", seed, cmp.Diff(was, is))
				}
				status := copied(next, old)
				sub.PrepareUpdate(status, old)
				was, has := part(old, "Spec")
				if is, _ := part(status, "Spec"); has && !equality.Semantic.DeepEqual(was, is) {
					t.Fatalf("seed %d: an update of the status changed the spec (-old +new):\n%s", seed,
						cmp.Diff(was, is))
				}
				if status.GetGeneration() != 7 {
					t.Errorf("seed %d: an update of the status made generation 7 %d", seed, status.GetGeneration())
				}
				if stay := maps.Equal(status.GetLabels(), old.GetLabels()); stay != slices.Contains(labelsStay,
					spec.Kind) {
					t.Errorf("seed %d: labels stay under an update of the status: %v", seed, stay)
				}
				if stay := maps.Equal(status.GetAnnotations(), old.GetAnnotations()); stay != slices.Contains(
					annotationsStay, spec.Kind) {
					t.Errorf("seed %d: annotations stay under an update of the status: %v", seed, stay)
				}
			}
		})
	}
}

// counted are the kinds with a spec that count its changes in metadata.generation.
var counted = []string{
	"CSIDriver", "CronJob", "DaemonSet", "Deployment", "DeviceClass", "DeviceTaintRule", "FlowSchema",
	"HorizontalPodAutoscaler",
	"Ingress", "IngressClass", "Job", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "NetworkPolicy",
	"Pod",
	"PodDisruptionBudget", "PriorityLevelConfiguration", "ReplicaSet", "ReplicationController", "ResourceSlice",
	"StatefulSet",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}

// TestGeneration: it counts changes of the spec, for the kinds that have it, and nothing else.
func TestGeneration(t *testing.T) {
	for _, spec := range stored() {
		if _, ok := part(spec.New(), "Spec"); !ok || spec.Group == "apiextensions.k8s.io" {
			continue
		}
		t.Run(spec.Group+"/"+spec.Resource+"."+spec.Version, func(t *testing.T) {
			changes := 0
			for seed := range int64(20) {
				old := kindtest.Random(spec, seed)
				next := kindtest.Random(spec, seed+1000)
				spec.Default(old)
				spec.Default(next)
				old.SetGeneration(7)
				old.SetAnnotations(nil)
				next.SetAnnotations(nil)
				other := copied(old, old)
				other.SetLabels(map[string]string{"another": "label"})
				if spec.PrepareUpdate(other, old); other.GetGeneration() != 7 {
					t.Fatalf("seed %d: another label made generation 7 %d", seed, other.GetGeneration())
				}
				obj := copied(next, old)
				spec.PrepareUpdate(obj, old)
				was, _ := part(old, "Spec")
				is, _ := part(obj, "Spec")
				want := int64(7)
				if slices.Contains(counted, spec.Kind) && !equality.Semantic.DeepEqual(was, is) {
					want = 8
					changes = changes + 1
				}
				if obj.GetGeneration() != want {
					t.Fatalf("seed %d: generation %d, want %d", seed, obj.GetGeneration(), want)
				}
			}
			if slices.Contains(counted, spec.Kind) && changes == 0 {
				t.Error("no pair of objects differed in its spec")
			}
		})
	}
}
