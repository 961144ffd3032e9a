// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// operation is one method of a path.
type operation struct {
	action, id     string // x-kubernetes-action, and the verb at the start of the operation ID
	method, suffix string // where operation IDs would be ambiguous
	doc            string
	response       spec.Schema
	codes          []int // besides 200
	stream         bool  // it may be watched
	params         []spec.Parameter
	body           *spec.Parameter
	consumes       []string
}

func (s *schemas) operation(res Resource, path string, c operation) *spec.Operation {
	op := &spec.Operation{OperationProps: spec.OperationProps{
		ID:          operationID(res, c),
		Description: c.doc,
		Consumes:    []string{"*/*"},
		Produces:    []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"},
		Schemes:     []string{"https"},
		Tags:        []string{groupTag(res.GVR.GroupVersion())},
		Parameters:  c.params,
	}}
	switch {
	case res.Model != nil:
		op.Consumes = []string{"application/json", "application/yaml"}
		op.Produces = []string{"application/json", "application/yaml"}
	case c.action == "connect":
		op.Produces = []string{"*/*"}
	case c.stream:
		op.Produces = append(op.Produces, "application/json;stream=watch",
			"application/vnd.kubernetes.protobuf;stream=watch")
	}
	if c.consumes != nil {
		op.Consumes = c.consumes
	}
	if c.body != nil {
		op.Parameters = append(op.Parameters, *c.body)
	}
	op.Parameters = append(op.Parameters, pathParameters(res, path)...)
	if c.action != "connect" {
		op.Parameters = append(op.Parameters, parameter("query", "pretty", "string",
			"If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a "+
				"browser or command-line HTTP tool (curl and wget)."))
	}
	op.Responses = responses(c.response, c.codes)
	op.AddExtension("x-kubernetes-action", c.action)
	op.AddExtension("x-kubernetes-group-version-kind", gvkOf(res.Kind, res.Kind.Kind))
	return op
}

// responses are the responses with 200 and codes, and 401.
func responses(response spec.Schema, codes []int) *spec.Responses {
	all := map[int]spec.Response{
		http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}},
	}
	for _, code := range append([]int{http.StatusOK}, codes...) {
		all[code] = spec.Response{ResponseProps: spec.ResponseProps{
			Description: http.StatusText(code),
			Schema:      &response,
		}}
	}
	return &spec.Responses{ResponsesProps: spec.ResponsesProps{StatusCodeResponses: all}}
}

// requireBodies marks required request bodies in v3, which the conversion from v2 does not do.
func requireBodies(doc *spec3.OpenAPI) {
	for _, p := range doc.Paths.Paths {
		for _, op := range []*spec3.Operation{p.Post, p.Put, p.Patch} {
			if op != nil && op.RequestBody != nil {
				op.RequestBody.Required = true
			}
		}
	}
}

// methods are the operations of p.
func methods(p *spec.PathItem) []*spec.Operation {
	return slices.DeleteFunc([]*spec.Operation{p.Get, p.Put, p.Post, p.Delete, p.Options, p.Head, p.Patch},
		func(op *spec.Operation) bool { return op == nil })
}

// hoistParameters moves parameters common to all operations of pathItem, except bodies, to the path. All are sorted.
func hoistParameters(pathItem spec.PathItem) spec.PathItem {
	ops := methods(&pathItem)
	count := map[[2]string]int{}
	for _, op := range ops {
		for _, param := range op.Parameters {
			count[[2]string{param.Name, param.In}]++
		}
	}
	common := func(param spec.Parameter) bool {
		return param.In != "body" && count[[2]string{param.Name, param.In}] == len(ops)
	}
	sorted := func(a, b spec.Parameter) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.In, b.In))
	}
	for i, op := range ops {
		for _, param := range op.Parameters {
			if i == 0 && common(param) {
				pathItem.Parameters = append(pathItem.Parameters, param)
			}
		}
		op.Parameters = slices.DeleteFunc(op.Parameters, common)
		slices.SortFunc(op.Parameters, sorted)
	}
	slices.SortFunc(pathItem.Parameters, sorted)
	return pathItem
}

// groupTag is the tag of a group version's operations: "rbacAuthorization_v1".
func groupTag(gv schema.GroupVersion) string {
	return camelCase(cmp.Or(strings.TrimSuffix(gv.Group, ".k8s.io"), "core"), false) + "_" + gv.Version
}

// camelCase removes all but letters and digits, with the next letter in upper case.
func camelCase(text string, first bool) string {
	var out strings.Builder
	up := first
	for i, c := range text {
		switch {
		case !unicode.IsLetter(c) && c != '_' && (i == 0 || !unicode.IsDigit(c)):
			up = true
		case up:
			out.WriteRune(unicode.ToUpper(c))
			up = false
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}

// operationID is unique per path and method: "listCoreV1NamespacedPod", "listCoreV1PodForAllNamespaces".
func operationID(r Resource, c operation) string {
	id := c.id + groupID(r.GVR.Group) + camelCase(r.GVR.Version, true)
	if c.action == "deletecollection" {
		id += "Collection"
	}
	id += camelCase(strings.ToLower(c.method), true)
	if r.Namespaced && !strings.HasSuffix(c.suffix, allNamespaces) {
		id += "Namespaced"
	}
	return id + r.Parent + camelCase(r.Subresource, true) + c.suffix
}

// subresourcePhrase names the subresource in a description: " status of".
func (r Resource) subresourcePhrase() string {
	if r.Subresource == "" {
		return ""
	}
	return " " + r.Subresource + " of"
}

func article(kind string) string {
	switch {
	case strings.HasSuffix(kind, "s") && !strings.HasSuffix(kind, "ss"):
		return " "
	case strings.ContainsRune("AEIOU", rune(kind[0])):
		return " an "
	}
	return " a "
}

func bodyParameter(ref spec.Schema, required bool) *spec.Parameter {
	return &spec.Parameter{ParamProps: spec.ParamProps{
		Name:     "body",
		In:       "body",
		Schema:   &ref,
		Required: required,
	}}
}

func parameter(in, name, typ, text string) spec.Parameter {
	return spec.Parameter{
		ParamProps: spec.ParamProps{
			Name:        name,
			In:          in,
			Description: text,
			Required:    in == "path",
		},
		SimpleSchema:      spec.SimpleSchema{Type: typ},
		CommonValidations: spec.CommonValidations{UniqueItems: true},
	}
}

func pathParameters(r Resource, path string) []spec.Parameter {
	var params []spec.Parameter
	for name, text := range map[string]string{
		"name":      "name of the " + r.Kind.Kind,
		"namespace": "object name and auth scope, such as for teams and projects",
		"path":      "path to the resource",
	} {
		if strings.Contains(path, "{"+name+"}") {
			params = append(params, parameter("path", name, "string", text))
		}
	}
	return params
}

// options converts the fields of an options type to query parameters.
func options(t reflect.Type, except ...string) []spec.Parameter {
	docs := docsOf(t)
	var params []spec.Parameter
	for f := range t.Fields() {
		name, _, inline := named(f)
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if inline || name == "" || slices.Contains(except, name) || typ.Kind() == reflect.Struct {
			continue
		}
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem() // may be repeated
		}
		params = append(params, parameter("query", name, basic(typ.Kind()).Type[0], docs[name]))
	}
	return params
}

// shareParameters moves parameters that are the same everywhere to one place, because they are repeated hundreds of
// times. kubectl looks for dryRun and fieldValidation in the operations.
func shareParameters(swagger *spec.Swagger) error {
	shared := map[string]spec.Parameter{}
	replace := func(params []spec.Parameter) error {
		for i, parameter := range params {
			own := parameter.In != "body" && slices.Contains([]string{"name", "dryRun", "fieldValidation"},
				parameter.Name) ||
				parameter.In == "body" && !strings.HasPrefix(parameter.Schema.Ref.String(),
					definitions+"io.k8s.apimachinery")
			if own || parameter.Ref.String() != "" {
				continue
			}
			b, err := json.Marshal(parameter)
			if err != nil {
				return fmt.Errorf("encode parameter %s: %w", parameter.Name, err)
			}
			sum := fnv.New64()
			_, _ = sum.Write(b) // Write of a hash never fails
			name := parameter.Name + "-" + base64.URLEncoding.EncodeToString(sum.Sum(nil)[:6])
			shared[name] = parameter
			params[i] = spec.Parameter{Refable: spec.Refable{Ref: spec.MustCreateRef("#/parameters/" + name)}}
		}
		return nil
	}
	for _, p := range swagger.Paths.Paths {
		for _, op := range methods(&p) {
			if err := replace(op.Parameters); err != nil {
				return err
			}
		}
		if err := replace(p.Parameters); err != nil {
			return err
		}
	}
	swagger.Parameters = maps.Clone(shared)
	return nil
}
