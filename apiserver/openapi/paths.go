// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Resource is one served resource or subresource.
type Resource struct {
	GVR         schema.GroupVersionResource
	Subresource string // "" for the resource itself
	Parent      string // the resource's kind, for a subresource with another kind
	Namespaced  bool
	// Kind is the kind of requests and responses (for scale: autoscaling/v1 Scale). Type and List are its Go types,
	// List nil for subresources.
	Kind schema.GroupVersionKind
	Type reflect.Type
	List reflect.Type
	// Model describes a kind without a Go type; Type and List are then nil.
	Model *Model
	// Connect: requests go to a backend of the resource; Type is then the type of the options.
	Connect bool
	// Verbs are the discovery verbs: get list watch create update patch delete deletecollection.
	Verbs []string
}

// objectSchema and listSchema are the schemas of the object and of its list.
func (s *schemas) objectSchema(r Resource) spec.Schema {
	if r.Model != nil {
		return *spec.RefSchema(definitions + r.Model.Name)
	}
	return s.ref(r.Type)
}

func (s *schemas) listSchema(r Resource) spec.Schema {
	if r.Model != nil {
		return *spec.RefSchema(definitions + r.Model.ListName)
	}
	return s.ref(r.List)
}

func (r Resource) hasVerb(verb string) bool { return slices.Contains(r.Verbs, verb) }

// prefix is /api/v1 or /apis/<group>/<version>.
func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func (s *schemas) addPaths(paths map[string]spec.PathItem, res Resource) {
	base := prefix(res.GVR.GroupVersion())
	scoped := base
	if res.Namespaced {
		scoped += "/namespaces/{namespace}"
	}
	many := scoped + "/" + res.GVR.Resource
	one := scoped + "/" + res.GVR.Resource + "/{name}"
	switch {
	case res.Connect:
		s.connectPaths(paths, res, one+"/"+res.Subresource)
		return
	case res.Subresource != "":
		paths[one+"/"+res.Subresource] = s.item(res, one)
		return
	}
	if res.hasVerb("list") || res.hasVerb("create") {
		paths[many] = s.collection(res, many)
	}
	if res.hasVerb("get") || res.hasVerb("delete") || res.hasVerb("update") {
		paths[one] = s.item(res, one)
	}
	all := base + "/" + res.GVR.Resource
	if res.Namespaced && res.hasVerb("list") {
		p := spec.PathItem{}
		p.Get = s.operation(res, all, s.list(res, allNamespaces))
		paths[all] = hoistParameters(p)
	}
	if res.Model == nil && res.hasVerb("watch") {
		s.watchPaths(paths, res, all, many, one)
	}
}

// allNamespaces is the suffix of operation IDs for all namespaces.
const allNamespaces = "ForAllNamespaces"

// list is the operation GET of a collection.
func (s *schemas) list(r Resource, suffix string) operation {
	doc := "list objects of kind " + r.Parent
	if r.hasVerb("watch") && r.Model == nil {
		doc = "list or watch objects of kind " + r.Parent
	}
	return operation{
		action:   "list",
		id:       "list",
		suffix:   suffix,
		doc:      doc,
		response: s.listSchema(r),
		stream:   true,
		params:   options(reflect.TypeFor[metav1.ListOptions]()),
	}
}

// watchPaths are the deprecated watch paths, which are still served.
func (s *schemas) watchPaths(paths map[string]spec.PathItem, res Resource, all, many, one string) {
	watch := func(of, action, suffix, doc string) {
		path := prefix(res.GVR.GroupVersion()) + "/watch" + of[len(prefix(res.GVR.GroupVersion())):]
		pathItem := spec.PathItem{}
		pathItem.Get = s.operation(res, path, operation{
			action:   action,
			id:       "watch",
			suffix:   suffix,
			doc:      doc + ". deprecated: use the 'watch' parameter with a list operation instead",
			response: s.ref(reflect.TypeFor[metav1.WatchEvent]()),
			stream:   true,
			params:   options(reflect.TypeFor[metav1.ListOptions]()),
		})
		if action == "watch" {
			pathItem.Get.Description += ", filtered to a single item with the 'fieldSelector' parameter"
		}
		pathItem.Get.Description += "."
		paths[path] = hoistParameters(pathItem)
	}
	const each = "watch individual changes to a list of "
	watch(many, "watchlist", "List", each+res.Parent)
	if res.Namespaced {
		watch(all, "watchlist", "List"+allNamespaces, each+res.Parent)
	}
	watch(one, "watch", "", "watch changes to an object of kind "+res.Parent)
}

func (s *schemas) collection(res Resource, path string) spec.PathItem {
	var pathItem spec.PathItem
	if res.hasVerb("list") && (res.List != nil || res.Model != nil) {
		pathItem.Get = s.operation(res, path, s.list(res, ""))
	}
	if res.hasVerb("create") {
		pathItem.Post = s.operation(res, path, s.create(res))
	}
	if res.hasVerb("deletecollection") {
		c := operation{
			action:   "deletecollection",
			id:       "delete",
			doc:      "delete collection of " + res.Parent,
			response: s.ref(reflect.TypeFor[metav1.Status]()),
		}
		c.params = options(reflect.TypeFor[metav1.ListOptions]())
		if res.Model == nil {
			c.params = append(options(reflect.TypeFor[metav1.ListOptions](), "watch", "allowWatchBookmarks"),
				options(reflect.TypeFor[metav1.DeleteOptions]())...)
			c.body = bodyParameter(s.ref(reflect.TypeFor[metav1.DeleteOptions]()), false)
		}
		pathItem.Delete = s.operation(res, path, c)
	}
	return hoistParameters(pathItem)
}

func (s *schemas) create(r Resource) operation {
	return operation{
		action:   "post",
		id:       "create",
		doc:      "create" + r.subresourcePhrase() + article(r.Parent) + r.Parent,
		response: s.objectSchema(r),
		codes:    []int{201, 202},
		params:   options(reflect.TypeFor[metav1.CreateOptions]()),
		body:     bodyParameter(s.objectSchema(r), true),
	}
}

func (s *schemas) item(res Resource, path string) spec.PathItem {
	var pathItem spec.PathItem
	specified := res.subresourcePhrase() + " the specified " + res.Parent
	if res.hasVerb("get") {
		c := operation{
			action:   "get",
			id:       "read",
			doc:      "read" + specified,
			response: s.objectSchema(res),
		}
		if res.Model != nil {
			c.params = options(reflect.TypeFor[metav1.GetOptions]())
		}
		pathItem.Get = s.operation(res, path, c)
	}
	if res.hasVerb("create") && res.Subresource != "" {
		pathItem.Post = s.operation(res, path, s.create(res))
	}
	if res.hasVerb("update") {
		pathItem.Put = s.operation(res, path, operation{
			action:   "put",
			id:       "replace",
			doc:      "replace" + specified,
			response: s.objectSchema(res),
			codes:    []int{201},
			params:   options(reflect.TypeFor[metav1.UpdateOptions]()),
			body:     bodyParameter(s.objectSchema(res), true),
		})
	}
	if res.hasVerb("patch") {
		pathItem.Patch = s.operation(res, path, s.patch(res, specified))
	}
	if res.hasVerb("delete") && res.Subresource == "" {
		c := operation{
			action:   "delete",
			id:       "delete",
			doc:      "delete" + article(res.Parent) + res.Parent,
			response: s.ref(reflect.TypeFor[metav1.Status]()),
			codes:    []int{202},
			params:   options(reflect.TypeFor[metav1.DeleteOptions]()),
			body:     bodyParameter(s.ref(reflect.TypeFor[metav1.DeleteOptions]()), false),
		}
		if res.Model == nil && slices.Contains(deleteReturnsObject, res.Kind.Kind) {
			c.response = s.objectSchema(res)
		}
		pathItem.Delete = s.operation(res, path, c)
	}
	return hoistParameters(pathItem)
}

// deleteReturnsObject are the kinds whose delete responds with the deleted object.
var deleteReturnsObject = []string{
	"CSIDriver", "CSINode", "DeviceClass", "PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate",
	"ResourceClaim",
	"ResourceClaimTemplate", "ResourceQuota", "ResourceSlice", "Service", "ServiceAccount", "StorageClass",
	"VolumeAttachment", "VolumeAttributesClass",
}

func (s *schemas) patch(res Resource, specified string) operation {
	c := operation{
		action:   "patch",
		id:       "patch",
		doc:      "partially update" + specified,
		response: s.objectSchema(res),
		params:   options(reflect.TypeFor[metav1.PatchOptions]()),
		body:     bodyParameter(s.ref(reflect.TypeFor[metav1.Patch]()), true),
		consumes: []string{
			"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml",
		},
	}
	if res.Model == nil {
		c.codes = []int{201}
		c.consumes = slices.Insert(c.consumes, 2, "application/strategic-merge-patch+json")
	}
	return c
}

// connectPaths are the paths of streams, proxies and logs.
func (s *schemas) connectPaths(paths map[string]spec.PathItem, res Resource, path string) {
	if res.Subresource == "log" {
		p := spec.PathItem{}
		p.Get = s.operation(res, path, operation{
			action:   "get",
			id:       "read",
			doc:      "read log of the specified " + res.Parent,
			response: plain("string", ""),
			params:   options(reflect.TypeFor[corev1.PodLogOptions]()),
		})
		p.Get.Produces = append([]string{"text/plain"}, p.Get.Produces...)
		paths[path] = hoistParameters(p)
		return
	}
	connect := func(path, method, suffix string) *spec.Operation {
		return s.operation(res, path, operation{
			action:   "connect",
			id:       "connect",
			method:   method,
			suffix:   suffix,
			doc:      "connect " + method + " requests to " + res.Subresource + " of " + res.Parent,
			response: plain("string", ""),
			params:   options(res.Type),
		})
	}
	if res.Subresource != "proxy" {
		p := spec.PathItem{}
		p.Get = connect(path, "GET", "")
		p.Post = connect(path, "POST", "")
		paths[path] = hoistParameters(p)
		return
	}
	for suffix, path := range map[string]string{"": path, "WithPath": path + "/{path}"} {
		p := spec.PathItem{}
		p.Get = connect(path, "GET", suffix)
		p.Head = connect(path, "HEAD", suffix)
		p.Options = connect(path, "OPTIONS", suffix)
		p.Post = connect(path, "POST", suffix)
		p.Put = connect(path, "PUT", suffix)
		p.Patch = connect(path, "PATCH", suffix)
		p.Delete = connect(path, "DELETE", suffix)
		paths[path] = hoistParameters(p)
	}
}
