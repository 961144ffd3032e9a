// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"keelson/lib/waittest"
)

// SplitPort returns the host and the port of an address.
func SplitPort(t *testing.T, addr string) (string, int32) {
	t.Helper()
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(p, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return host, int32(n)
}

// Raw makes a plain request; the body has been read into the response.
func (c *Custom) Raw(t *testing.T, method, path string, header map[string]string, body []byte) *http.Response {
	t.Helper()
	client, err := rest.HTTPClientFor(c.Rest)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.Rest.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	return resp
}

// Text reads the body of an answer of Raw.
func Text(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Reshape gives a definition another schema, and waits until it is in force: OpenAPI shows it
// earlier than requests are validated with it, so it tries a field of the schema.
func (c *Custom) Reshape(t *testing.T, plural, schemaYAML string) {
	t.Helper()
	crd, err := c.CRD(plural + ".example.com")
	if err != nil {
		t.Fatal(err)
	}
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict([]byte(schemaYAML), props); err != nil {
		t.Fatal(err)
	}
	props.Properties["sentinel"] = apiextensionsv1.JSONSchemaProps{
		Type: "string",
		Enum: []apiextensionsv1.JSON{{Raw: []byte(`"never-given"`)}},
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = props
	crd.APIVersion = "apiextensions.k8s.io/v1"
	crd.Kind = "CustomResourceDefinition"
	if _, err := c.Resource(DefinitionsGVR).Update(t.Context(), ToUnstructured(t, crd),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	probe := Object("example.com/v1", crd.Spec.Names.Kind, "ns", "sentinel", map[string]any{"sentinel": "x"})
	c.Wait("the new schema of "+plural, func() bool {
		_, err := c.In("v1", plural).Create(t.Context(), probe, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll},
		})
		return err != nil && strings.Contains(err.Error(), "never-given")
	})
}

// DefinitionsGVR is the resource customresourcedefinitions.
var DefinitionsGVR = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// Definition is a CRD of group example.com with one version v1, whose schema is given as YAML.
func Definition(
	plural, kind, schemaYAML string, edit ...func(*apiextensionsv1.CustomResourceDefinition),
) *apiextensionsv1.CustomResourceDefinition {
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict([]byte(schemaYAML), props); err != nil {
		panic(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural:   plural,
				Singular: strings.ToLower(kind),
				Kind:     kind,
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name:    "v1",
				Served:  true,
				Storage: true,
				Schema:  &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
			}},
		},
	}
	for _, f := range edit {
		f(crd)
	}
	return crd
}

// Custom is a client of custom resources.
type Custom struct {
	*Running
	T testing.TB
	dynamic.Interface
}

// StartCustom starts a server for custom resources.
func StartCustom(t testing.TB) *Custom {
	t.Helper()
	return CustomOn(t, Start(t, nil))
}

// CustomOn is a client of r, which gets the namespace "ns".
func CustomOn(t testing.TB, r *Running) *Custom {
	t.Helper()
	c, err := dynamic.NewForConfig(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(),
		Object("v1", "Namespace", "", "ns", nil), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return &Custom{r, t, c}
}

// Object is an object with these fields.
func Object(apiVersion, kind, namespace, name string, more map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	maps.Copy(u.Object, more)
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// ToUnstructured converts an object.
func ToUnstructured(t testing.TB, obj any) *unstructured.Unstructured {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: m}
}

// Define creates a CRD and waits until it is established.
func (c *Custom) Define(crd *apiextensionsv1.CustomResourceDefinition) {
	c.T.Helper()
	if _, err := c.Resource(DefinitionsGVR).Create(c.T.Context(), ToUnstructured(c.T, crd),
		metav1.CreateOptions{}); err != nil {
		c.T.Fatalf("create %s: %v", crd.Name, err)
	}
	c.WaitCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		for _, cond := range crd.Status.Conditions {
			if cond.Type == apiextensionsv1.Established && cond.Status == apiextensionsv1.ConditionTrue {
				return true
			}
		}
		return false
	})
}

// CRD returns the definition with that name.
func (c *Custom) CRD(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	u, err := c.Resource(DefinitionsGVR).Get(c.T.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd)
}

// WaitCRD waits until a definition satisfies ok, and returns it.
func (c *Custom) WaitCRD(
	name string, ok func(*apiextensionsv1.CustomResourceDefinition) bool,
) *apiextensionsv1.CustomResourceDefinition {
	c.T.Helper()
	var last *apiextensionsv1.CustomResourceDefinition
	c.Wait(name, func() bool {
		crd, err := c.CRD(name)
		if err != nil {
			c.T.Fatal(err)
		}
		last = crd
		return ok(crd)
	})
	return last
}

// Wait waits until ok returns true.
func (c *Custom) Wait(what string, ok func() bool) {
	c.T.Helper()
	waittest.Until(c.T, what, ok)
}

// In returns the client of a resource of example.com in namespace "ns".
func (c *Custom) In(version, resource string) dynamic.ResourceInterface {
	return c.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: resource}).
		Namespace("ns")
}

// WidgetSchema is the schema of Widget.
const WidgetSchema = `
type: object
properties:
  spec:
    type: object
    required: [size]
    properties:
      size: {type: integer, minimum: 1}
      color: {type: string, default: red, enum: [red, green]}
      tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true}
    x-kubernetes-validations:
    - {rule: "self.size < 100", message: "too big"}
    - {rule: "self.size >= oldSelf.size", message: "may not shrink"}
  status:
    type: object
    properties:
      phase: {type: string}
`

// Widget is a widget of the namespace ns.
func Widget(name string, spec map[string]any) *unstructured.Unstructured {
	return Object("example.com/v1", "Widget", "ns", name, map[string]any{"spec": spec})
}

// TwoVersions has v1 (stored, with host and port) and v2 (with hostPort).
func TwoVersions(conversion *apiextensionsv1.CustomResourceConversion) *apiextensionsv1.CustomResourceDefinition {
	return Definition("servers", "Server", `{type: object, properties: {host: {type: string}, port: {type: string}}}`,
		func(crd *apiextensionsv1.CustomResourceDefinition) {
			v2 := crd.Spec.Versions[0]
			v2.Name = "v2"
			v2.Storage = false
			v2.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"hostPort": {Type: "string"},
					"port":     {Type: "string"},
				},
			}}
			crd.Spec.Versions = append(crd.Spec.Versions, v2)
			crd.Spec.Conversion = conversion
		})
}

// The resources of ConfigMaps and widgets.
var (
	MapsGVR    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	WidgetsGVR = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)
