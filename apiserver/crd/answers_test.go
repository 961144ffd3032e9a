// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apiextensions"
	"keelson/apiserver/servertest"
)

const schemaOfAnswers = `
type: object
properties:
  spec: {type: object, properties: {size: {type: integer}}}
  status: {type: object, properties: {size: {type: integer}}}
`

// TestCustomResourceAnswers goes through answers to odd requests about custom resources, as Kubernetes v1.37 gives
// them.
func TestCustomResourceAnswers(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", schemaOfAnswers, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath:   ".spec.size",
				StatusReplicasPath: ".status.size",
			},
		}
	}))
	const base = "/apis/example.com/v1/namespaces/ns/widgets"
	const object, merge = base + "/w", "application/merge-patch+json"
	const good = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":3}}`
	with := func(old, text string) string { return strings.Replace(good, old, text, 1) }
	const scale = `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"w","namespace":"ns"},"spec":{"replicas":7}}`
	for _, x := range []struct {
		method, path, body, media string
		code                      int
		text                      string
	}{
		{
			"POST", base, with(`"Widget"`, `"Gadget"`), "", 422,
			`Gadget.example.com \"w\" is invalid: kind: Invalid value: \"Gadget\": must be Widget`,
		},
		{
			"POST", base, with(`"apiVersion":"example.com/v1",`, ``), "", 400,
			"the API version in the data () does not match the expected API version (example.com/v1)",
		},
		{
			"POST", base, with(`"name":"w"`, `"name":"w","labels":{"a":1}`), "", 400,
			`Widget in version \"v1\" cannot be handled as a Widget: json: cannot unmarshal number`,
		},
		{"POST", "/apis/example.com/v1/widgets", good, "", 404, "404 page not found"},
		{"DELETE", "/apis/example.com/v1/widgets", "", "", 404, "404 page not found"},
		{"GET", "/apis/example.com/v1/nothings", "", "", 404, "404 page not found"},
		{"POST", base, "[]", "", 400, "couldn't get version/kind; json parse error: json: cannot unmarshal array"},
		{
			"POST", base, "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: yy}\nspec: {size: 1, size: 2}\n",
			"application/yaml", 201, `"size":2`,
		},
		{
			"POST", base, with(`"name":"w"`, `"name":"w","deletionTimestamp":"2001-01-01T00:00:00Z"`), "", 201,
			`"fieldsV1":{"f:spec":{".":{},"f:size":{}}},"manager"`,
		},
		{
			"PATCH", object, `{"kind":"Gadget"}`, merge, 422,
			`Gadget.example.com \"w\" is invalid: kind: Invalid value: \"Gadget\": must be Widget`,
		},
		{
			"PATCH", object, `{"apiVersion":"example.com/v9"}`, merge, 422,
			`Widget.example.com \"w\" is invalid: apiVersion: Invalid value: \"example.com/v9\": must be example.com/v1`,
		},
		{
			"PATCH", object, "{}", "application/strategic-merge-patch+json", 415,
			"accepted media types include: application/json-patch+json, application/merge-patch+json, " +
				"application/apply-patch+yaml",
		},
		{"PUT", object + "/scale", scale, "", 200, `"replicas":7`},
		{"GET", object + "/scale", "", "", 200, `"replicas":7`},
		{"GET", object + "/status", "", "", 404, `widgets.example.com \"w\" not found`},
		{
			"GET", object, "", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", 406,
			"is not a list (*unstructured.Unstructured)",
		},
	} {
		header := "Content-Type"
		if x.body == "" {
			header = "Accept"
		}
		got := custom.Call(t, x.method, x.path, x.body, header, x.media)
		if got.Code != x.code || !strings.Contains(string(got.Body), x.text) {
			t.Errorf("%s %s %s: %d %s, want %d %s", x.method, x.path, x.body, got.Code, servertest.Short(got.Body), x.code, x.text)
		}
		if warned := got.Warnings(); strings.Contains(x.media, "yaml") &&
			(len(warned) != 1 || !strings.Contains(warned[0], `key "size" already set in map`)) {
			t.Errorf("warnings about a key given twice: %q", warned)
		}
	}
}

// TestReadingFillsNoDefaults: an object has the defaults of the version it is stored in, not of the one it is read in.
func TestReadingFillsNoDefaults(t *testing.T) {
	custom := servertest.StartCustom(t)
	crd := servertest.Definition("widgets", "Widget", `
type: object
properties:
  spec: {type: object, default: {}, properties: {a: {type: string, default: A}, b: {type: string}}}
`)
	second := *crd.Spec.Versions[0].DeepCopy()
	second.Name = "v2"
	second.Storage = false
	props := second.Schema.OpenAPIV3Schema.Properties["spec"].Properties
	b := props["b"]
	b.Default = &apiextensionsv1.JSON{Raw: []byte(`"B"`)}
	props["b"] = b
	crd.Spec.Versions = append(crd.Spec.Versions, second)
	custom.Define(crd)
	const path = "/namespaces/ns/widgets"
	body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"}}`
	custom.Call(t, "POST", "/apis/example.com/v1"+path, body).Wants(t, "create", 201, `"spec":{"a":"A"}`)
	custom.Call(t, "GET", "/apis/example.com/v2"+path+"/w", "").Wants(t, "get in v2", 200, `"spec":{"a":"A"}`)
	body = strings.Replace(strings.Replace(body, "/v1", "/v2", 1), `"w"`, `"x"`, 1)
	custom.Call(t, "POST", "/apis/example.com/v2"+path, body).Wants(t, "create in v2", 201, `"spec":{"a":"A","b":"B"}`)
}

// TestUntrustableConversion: unreadable authorities of a conversion webhook keep a definition from being
// established.
func TestUntrustableConversion(t *testing.T) {
	custom := servertest.StartCustom(t)
	url := "https://127.0.0.1:1/convert"
	crd := servertest.Definition("widgets", "Widget", "type: object", func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					URL:      &url,
					CABundle: []byte("no certificate"),
				},
				ConversionReviewVersions: []string{"v1"},
			},
		}
	})
	if _, err := custom.Resource(servertest.DefinitionsGVR).Create(t.Context(), servertest.ToUnstructured(t, crd),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.WaitCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		e := apiextensions.Condition(crd, apiextensionsv1.Established)
		return e != nil && e.Status == apiextensionsv1.ConditionFalse && e.Reason == "InvalidCABundle" &&
			e.Message == "The conversion webhook CABundle is invalid"
	})
}

// TestDefinitionOfWhatIsBuiltIn: a definition with the name of a built-in resource changes nothing about that one, nor
// does its end.
func TestDefinitionOfWhatIsBuiltIn(t *testing.T) {
	custom := servertest.StartCustom(t)
	const services = "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps"
	custom.Define(servertest.Definition("apiservices", "CustomAPIService", "type: object", func(
		crd *apiextensionsv1.CustomResourceDefinition,
	) {
		crd.Name = "apiservices.apiregistration.k8s.io"
		crd.Spec.Group = "apiregistration.k8s.io"
		crd.Spec.Scope = apiextensionsv1.ClusterScoped
		crd.Annotations = map[string]string{"api-approved.kubernetes.io": "unapproved, testing only"}
	}))
	custom.Wait("the built-in kind", func() bool {
		got := custom.Call(t, "GET", services, "")
		return got.Code == 200 && strings.Contains(string(got.Body), `"kind":"APIService"`)
	})
	custom.Call(t, "DELETE",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/apiservices.apiregistration.k8s.io",
		"").Wants(t, "delete", 200, "")
	custom.Wait("the definition is gone", func() bool {
		_, err := custom.CRD("apiservices.apiregistration.k8s.io")
		return err != nil
	})
	custom.Call(t, "GET", services, "").Wants(t, "afterwards", 200, `"kind":"APIService"`)
}
