// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Resource is one served resource, or one subresource of it.
type Resource struct {
	GVR         schema.GroupVersionResource
	Subresource string // "" for the resource itself
	Namespaced  bool
	// Kind is what is read and written there (for scale: autoscaling/v1 Scale); Type and List are its Go types, List nil for subresources.
	Kind schema.GroupVersionKind
	Type reflect.Type
	List reflect.Type
	// Model describes a kind without a Go type; Type and List are then nil.
	Model *Model
	// Verbs are the discovery verbs: get list watch create update patch delete deletecollection.
	Verbs []string
}

// one and many are the schemas of what is read and written, and of a list of it.
func (s *schemas) one(r Resource) spec.Schema {
	if r.Model != nil {
		return *spec.RefSchema(definitions + r.Model.Name)
	}
	return s.ref(r.Type)
}

func (s *schemas) many(r Resource) spec.Schema {
	if r.Model != nil {
		return *spec.RefSchema(definitions + r.Model.ListName)
	}
	return s.ref(r.List)
}

func (r Resource) can(verb string) bool { return slices.Contains(r.Verbs, verb) }

// prefix is /api/v1 or /apis/<group>/<version>.
func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func (s *schemas) addPaths(paths map[string]spec.PathItem, r Resource) {
	base := prefix(r.GVR.GroupVersion())
	scoped := base
	if r.Namespaced {
		scoped += "/namespaces/{namespace}"
	}
	item := scoped + "/" + r.GVR.Resource + "/{name}"
	if r.Subresource != "" {
		paths[item+"/"+r.Subresource] = s.itemPath(r)
		return
	}
	if r.can("list") || r.can("create") {
		paths[scoped+"/"+r.GVR.Resource] = s.collectionPath(r)
		if r.Namespaced && r.can("list") {
			only := r
			only.Namespaced, only.Verbs = false, []string{"list"}
			all := s.collectionPath(only)
			paths[base+"/"+r.GVR.Resource] = all
		}
	}
	if r.can("get") || r.can("delete") || r.can("update") {
		paths[item] = s.itemPath(r)
	}
}

func (s *schemas) collectionPath(r Resource) spec.PathItem {
	var p spec.PathItem
	p.Parameters = pathParameters(r.Namespaced, false)
	if r.can("list") && (r.List != nil || r.Model != nil) {
		p.Get = s.operation(r, "list", s.many(r), listParameters()...)
	}
	if r.can("create") {
		p.Post = s.operation(r, "post", s.one(r), append(writeParameters(), bodyParameter(s.one(r), true))...)
	}
	if r.can("deletecollection") {
		p.Delete = s.operation(r, "deletecollection", s.ref(reflect.TypeFor[metav1.Status]()), append(listParameters(), s.deleteOptions())...)
	}
	return p
}

func (s *schemas) itemPath(r Resource) spec.PathItem {
	var p spec.PathItem
	p.Parameters = pathParameters(r.Namespaced, true)
	self := s.one(r)
	if r.can("get") {
		p.Get = s.operation(r, "get", self)
	}
	if r.can("create") && r.Subresource != "" {
		p.Post = s.operation(r, "post", self, append(writeParameters(), bodyParameter(s.one(r), true))...)
	}
	if r.can("update") {
		p.Put = s.operation(r, "put", self, append(writeParameters(), bodyParameter(s.one(r), true))...)
	}
	if r.can("patch") {
		patch := s.body(reflect.TypeFor[metav1.Patch]())
		p.Patch = s.operation(r, "patch", self, append(writeParameters(), patch,
			query("force", "boolean", "Force is going to \"force\" Apply requests. It means user will re-acquire conflicting fields owned by other people."))...)
		p.Patch.Consumes = []string{
			"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
			"application/apply-patch+yaml", "application/apply-patch+cbor",
		}
		if r.Model != nil {
			p.Patch.Consumes = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
		}
	}
	if r.can("delete") && r.Subresource == "" {
		p.Delete = s.operation(r, "delete", s.ref(reflect.TypeFor[metav1.Status]()), s.deleteOptions(), query("dryRun", "string", dryRunText),
			query("gracePeriodSeconds", "integer", "The duration in seconds before the object should be deleted."),
			query("propagationPolicy", "string", "Whether and how garbage collection will be performed."))
	}
	return p
}

func (s *schemas) operation(r Resource, action string, answer spec.Schema, params ...spec.Parameter) *spec.Operation {
	op := &spec.Operation{OperationProps: spec.OperationProps{ID: operationID(r, action), Consumes: []string{"*/*"}}}
	op.Produces = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	if action == "list" || action == "get" {
		op.Produces = append(op.Produces, "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
	}
	if r.Model != nil {
		op.Consumes, op.Produces = []string{"application/json", "application/yaml"}, []string{"application/json", "application/yaml"}
	}
	op.Schemes = []string{"https"}
	op.Tags = []string{groupTag(r.GVR.GroupVersion())}
	op.Parameters = params
	op.Responses = &spec.Responses{ResponsesProps: spec.ResponsesProps{StatusCodeResponses: map[int]spec.Response{
		200: {ResponseProps: spec.ResponseProps{Description: "OK", Schema: &answer}},
		401: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}},
	}}}
	op.AddExtension("x-kubernetes-action", action)
	op.AddExtension("x-kubernetes-group-version-kind", map[string]any{"group": r.Kind.Group, "version": r.Kind.Version, "kind": r.Kind.Kind})
	return op
}

func groupTag(gv schema.GroupVersion) string {
	g := strings.TrimSuffix(strings.TrimSuffix(gv.Group, ".k8s.io"), ".authorization")
	if g == "" {
		g = "core"
	}
	return strings.ReplaceAll(g, ".", "") + "_" + gv.Version
}

var actionVerbs = map[string]string{"post": "create", "get": "read", "put": "replace", "patch": "patch", "delete": "delete", "list": "list", "deletecollection": "deleteCollection"}

// operationID is unique per path and method: "listCoreV1NamespacedPod", "listCoreV1PodForAllNamespaces".
func operationID(r Resource, action string) string {
	name := strings.Split(groupTag(r.GVR.GroupVersion()), "_")
	id := actionVerbs[action] + title(name[0]) + title(name[1])
	if action == "deletecollection" {
		id = "delete" + title(name[0]) + title(name[1]) + "Collection"
	}
	if r.Namespaced {
		id += "Namespaced"
	}
	id += title(strings.TrimSuffix(r.GVR.Resource, "s"))
	if r.Subresource != "" {
		id += title(strings.ReplaceAll(r.Subresource, "/", "_"))
	}
	if action == "list" && !r.Namespaced && len(r.Verbs) == 1 {
		id += "ForAllNamespaces"
	}
	return id
}

func title(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func (s *schemas) body(t reflect.Type) spec.Parameter {
	return bodyParameter(s.ref(t), true)
}

func (s *schemas) deleteOptions() spec.Parameter {
	return bodyParameter(s.ref(reflect.TypeFor[metav1.DeleteOptions]()), false)
}

func bodyParameter(ref spec.Schema, required bool) spec.Parameter {
	return spec.Parameter{ParamProps: spec.ParamProps{Name: "body", In: "body", Schema: &ref, Required: required}}
}

func query(name, typ, text string) spec.Parameter { return parameter("query", name, typ, text) }

func parameter(in, name, typ, text string) spec.Parameter {
	return spec.Parameter{
		ParamProps:        spec.ParamProps{Name: name, In: in, Description: text, Required: in == "path"},
		SimpleSchema:      spec.SimpleSchema{Type: typ},
		CommonValidations: spec.CommonValidations{UniqueItems: true},
	}
}

func pathParameters(namespaced, item bool) []spec.Parameter {
	params := []spec.Parameter{query("pretty", "string", "If 'true', then the output is pretty printed.")}
	if item {
		params = append(params, parameter("path", "name", "string", "name of the object"))
	}
	if namespaced {
		params = append(params, parameter("path", "namespace", "string", "object name and auth scope, such as for teams and projects"))
	}
	return params
}

const dryRunText = "When present, indicates that modifications should not be persisted. An invalid or unrecognized dryRun directive will result in an error response and no further processing of the request. Valid values are: - All: all dry run stages will be processed"

func writeParameters() []spec.Parameter {
	return []spec.Parameter{
		query("dryRun", "string", dryRunText),
		query("fieldManager", "string", "fieldManager is a name associated with the actor or entity that is making these changes."),
		query("fieldValidation", "string", "fieldValidation instructs the server on how to handle objects in the request containing unknown or duplicate fields. Valid values are: - Ignore, Warn, Strict."),
	}
}

func listParameters() []spec.Parameter {
	return []spec.Parameter{
		query("allowWatchBookmarks", "boolean", "allowWatchBookmarks requests watch events with type \"BOOKMARK\"."),
		query("continue", "string", "The continue option should be set when retrieving more results from the server."),
		query("fieldSelector", "string", "A selector to restrict the list of returned objects by their fields. Defaults to everything."),
		query("labelSelector", "string", "A selector to restrict the list of returned objects by their labels. Defaults to everything."),
		query("limit", "integer", "limit is a maximum number of responses to return for a list call."),
		query("resourceVersion", "string", "resourceVersion sets a constraint on what resource versions a request may be served from."),
		query("resourceVersionMatch", "string", "resourceVersionMatch determines how resourceVersion is applied to list calls."),
		query("sendInitialEvents", "boolean", "`sendInitialEvents=true` may be set together with `watch=true`."),
		query("timeoutSeconds", "integer", "Timeout for the list/watch call."),
		query("watch", "boolean", "Watch for changes to the described resources and return them as a stream of add, update, and remove notifications."),
	}
}
