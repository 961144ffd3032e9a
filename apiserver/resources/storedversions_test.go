// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/kind/kindtest"
	"keelson/api/scheme"
	"keelson/apiserver/objects"
	"keelson/store"
)

// readStored decodes a value as the server does for that resource.
func readStored(t *testing.T, gr schema.GroupResource, value []byte) (kind.Object, error) {
	t.Helper()
	for _, row := range Table(gates.All()) {
		if k := row.Kind; row.View == nil && k.GVR().GroupResource() == gr {
			e, err := objects.Config{
				Codec:   objects.Protobuf(k.GVK(), k.New, k.StoredVersions),
				Default: k.Default,
			}.Decoded(store.KV{Key: "/registry/x", Value: value, Revision: 7}, nil)
			if err != nil {
				return nil, err
			}
			return e.Object, nil
		}
	}
	t.Fatalf("no row for %s", gr)
	return nil, nil
}

// TestStoredVersionsUnconverted: the kinds that Kubernetes 1.37 stores in another version than the one served here, as
// whole random objects.
func TestStoredVersionsUnconverted(t *testing.T) {
	for _, c := range []struct{ group, resource, version string }{
		{"certificates.k8s.io", "clustertrustbundles", "v1beta1"},
		{"certificates.k8s.io", "podcertificaterequests", "v1beta1"},
		{"resource.k8s.io", "devicetaintrules", "v1beta2"},
		{"storagemigration.k8s.io", "storageversionmigrations", "v1beta1"},
		{"batch", "cronjobs", "v1beta1"}, // of a release that knew no other
		{"flowcontrol.apiserver.k8s.io", "flowschemas", "v1beta3"},
	} {
		for _, spec := range stored() {
			if spec.Group != c.group || spec.Resource != c.resource {
				continue
			}
			for seed := range int64(20) {
				obj := kindtest.Random(spec, seed)
				spec.Default(obj)
				obj.SetResourceVersion("7")
				obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
				gvk := spec.GVK()
				gvk.Version = c.version
				doc, err := json.Marshal(obj)
				if err != nil {
					t.Fatal(err)
				}
				old, err := scheme.Scheme.New(gvk)
				if err == nil {
					err = json.Unmarshal(doc, old)
				}
				if err != nil {
					t.Fatal(err)
				}
				// every type of the scheme is one
				value, err := objects.Protobuf(gvk, nil, nil).Encode(old.(kind.Object))
				if err != nil {
					t.Fatal(err)
				}
				got, err := readStored(t, spec.GVR().GroupResource(), value)
				if err != nil || !equality.Semantic.DeepEqual(got, obj) {
					t.Fatalf("%s of seed %d stored as %s: %v (-want +got):\n%s", spec.Kind, seed, c.version, err,
						cmp.Diff(obj, got))
				}
			}
		}
	}
}

// TestStoredVersions: versions that are written otherwise, and values that are none of the kind's.
func TestStoredVersions(t *testing.T) {
	for _, c := range []struct{ name, group, resource, stored, want string }{
		{
			"a definition as every Kubernetes stores it", "apiextensions.k8s.io", "customresourcedefinitions",
			`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"foos.x.io"},"spec":{"group":"x.io","version":"v1",` +
				`"names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"scope":"Namespaced","validation":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string","default":"b"}}}},` +
				`"subresources":{"status":{}},"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,"storage":false}],"additionalPrinterColumns":[{"name":"A","type":"string","JSONPath":".a"}],` +
				`"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{"namespace":"n","name":"s"},"caBundle":"YWE="},"conversionReviewVersions":["v1"]},"preserveUnknownFields":false},` +
				`"status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":["v1"]}}`,
			`"spec":{"group":"x.io","names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"scope":"Namespaced","versions":[` +
				`{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string","default":"b"}}}},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":".a"}]},` +
				`{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string","default":"b"}}}},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":".a"}]}],` +
				`"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"service":{"namespace":"n","name":"s","port":443},"caBundle":"YWE="},"conversionReviewVersions":["v1"]}}}`,
		},
		{
			"an autoscaler of old", "autoscaling", "horizontalpodautoscalers",
			`{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1","metadata":{"name":"h"},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"maxReplicas":3,"targetCPUUtilizationPercentage":50},"status":{"currentReplicas":1,"desiredReplicas":2}}`,
			`"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"minReplicas":1,"maxReplicas":3,"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]}`,
		},
		{
			"a claim without what reading fills in", "", "persistentvolumeclaims",
			`{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"c"},"spec":{}}`,
			`"spec":{"resources":{},"volumeMode":"Filesystem"},"status":{"phase":"Pending"}`,
		},
		{
			"fields that the kind does not have", "resource.k8s.io", "resourceclaims",
			`{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1beta1","metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"a","deviceClassName":"x"}]}}}`,
			`decode ResourceClaim: found resource.k8s.io/v1beta1 ResourceClaim, want resource.k8s.io/v1: unknown field "spec.devices.requests[0].deviceClassName"`,
		},
		{
			"another kind", "", "pods", `{"kind":"Secret","apiVersion":"v1"}`,
			`decode Pod: found v1 Secret, want v1: another kind`,
		},
		{
			"another group", "networking.k8s.io", "ingresses", `{"kind":"Ingress","apiVersion":"extensions/v1beta1"}`,
			`found extensions/v1beta1 Ingress, want networking.k8s.io/v1: another kind`,
		},
		{
			"an unknown version", "", "pods", `{"kind":"Pod","apiVersion":"v7"}`,
			`decode Pod: found v7 Pod, want v1: no version that is known`,
		},
		{
			"a broken message", "batch", "cronjobs", "k8s\x00\n\x18\n\rbatch/v1beta1\x12\x07CronJob\x12\x01\xff",
			`decode CronJob: found batch/v1beta1 CronJob, want batch/v1: `,
		},
		{
			"encrypted", "", "secrets", "k8s:enc:secretbox:v1:a:\x01\x02",
			`decode Secret: it is encrypted, and no configuration of encryption at rest says how to read it`,
		},
		{"no object", "", "pods", `[`, `decode Pod: neither protobuf nor JSON: `},
	} {
		obj, err := readStored(t, schema.GroupResource{Group: c.group, Resource: c.resource}, []byte(c.stored))
		got := ""
		if err != nil {
			got = err.Error()
		} else if b, err := json.Marshal(obj); err == nil {
			got = string(b)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}
