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

func (s *schemas) addPaths(paths map[string]spec.PathItem, r Resource) {
	base := prefix(r.GVR.GroupVersion())
	scoped := base
	if r.Namespaced {
		scoped += "/namespaces/{namespace}"
	}
	many := scoped + "/" + r.GVR.Resource
	one := scoped + "/" + r.GVR.Resource + "/{name}"
	switch {
	case r.Connect:
		s.connectPaths(paths, r, one+"/"+r.Subresource)
		return
	case r.Subresource != "":
		paths[one+"/"+r.Subresource] = s.item(r, one)
		return
	}
	if r.hasVerb("list") || r.hasVerb("create") {
		paths[many] = s.collection(r, many)
	}
	if r.hasVerb("get") || r.hasVerb("delete") || r.hasVerb("update") {
		paths[one] = s.item(r, one)
	}
	all := base + "/" + r.GVR.Resource
	if r.Namespaced && r.hasVerb("list") {
		p := spec.PathItem{}
		p.Get = s.operation(r, all, s.list(r, allNamespaces))
		paths[all] = hoistParameters(p)
	}
	if r.Model == nil && r.hasVerb("watch") {
		s.watchPaths(paths, r, all, many, one)
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
func (s *schemas) watchPaths(paths map[string]spec.PathItem, r Resource, all, many, one string) {
	watch := func(of, action, suffix, doc string) {
		path := prefix(r.GVR.GroupVersion()) + "/watch" + of[len(prefix(r.GVR.GroupVersion())):]
		p := spec.PathItem{}
		p.Get = s.operation(r, path, operation{
			action:   action,
			id:       "watch",
			suffix:   suffix,
			doc:      doc + ". deprecated: use the 'watch' parameter with a list operation instead",
			response: s.ref(reflect.TypeFor[metav1.WatchEvent]()),
			stream:   true,
			params:   options(reflect.TypeFor[metav1.ListOptions]()),
		})
		if action == "watch" {
			p.Get.Description += ", filtered to a single item with the 'fieldSelector' parameter"
		}
		p.Get.Description += "."
		paths[path] = hoistParameters(p)
	}
	const each = "watch individual changes to a list of "
	watch(many, "watchlist", "List", each+r.Parent)
	if r.Namespaced {
		watch(all, "watchlist", "List"+allNamespaces, each+r.Parent)
	}
	watch(one, "watch", "", "watch changes to an object of kind "+r.Parent)
}

func (s *schemas) collection(r Resource, path string) spec.PathItem {
	var p spec.PathItem
	if r.hasVerb("list") && (r.List != nil || r.Model != nil) {
		p.Get = s.operation(r, path, s.list(r, ""))
	}
	if r.hasVerb("create") {
		p.Post = s.operation(r, path, s.create(r))
	}
	if r.hasVerb("deletecollection") {
		c := operation{
			action:   "deletecollection",
			id:       "delete",
			doc:      "delete collection of " + r.Parent,
			response: s.ref(reflect.TypeFor[metav1.Status]()),
		}
		c.params = options(reflect.TypeFor[metav1.ListOptions]())
		if r.Model == nil {
			c.params = append(options(reflect.TypeFor[metav1.ListOptions](), "watch", "allowWatchBookmarks"),
				options(reflect.TypeFor[metav1.DeleteOptions]())...)
			c.body = bodyParameter(s.ref(reflect.TypeFor[metav1.DeleteOptions]()), false)
		}
		p.Delete = s.operation(r, path, c)
	}
	return hoistParameters(p)
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

func (s *schemas) item(r Resource, path string) spec.PathItem {
	var p spec.PathItem
	specified := r.subresourcePhrase() + " the specified " + r.Parent
	if r.hasVerb("get") {
		c := operation{
			action:   "get",
			id:       "read",
			doc:      "read" + specified,
			response: s.objectSchema(r),
		}
		if r.Model != nil {
			c.params = options(reflect.TypeFor[metav1.GetOptions]())
		}
		p.Get = s.operation(r, path, c)
	}
	if r.hasVerb("create") && r.Subresource != "" {
		p.Post = s.operation(r, path, s.create(r))
	}
	if r.hasVerb("update") {
		p.Put = s.operation(r, path, operation{
			action:   "put",
			id:       "replace",
			doc:      "replace" + specified,
			response: s.objectSchema(r),
			codes:    []int{201},
			params:   options(reflect.TypeFor[metav1.UpdateOptions]()),
			body:     bodyParameter(s.objectSchema(r), true),
		})
	}
	if r.hasVerb("patch") {
		p.Patch = s.operation(r, path, s.patch(r, specified))
	}
	if r.hasVerb("delete") && r.Subresource == "" {
		c := operation{
			action:   "delete",
			id:       "delete",
			doc:      "delete" + article(r.Parent) + r.Parent,
			response: s.ref(reflect.TypeFor[metav1.Status]()),
			codes:    []int{202},
			params:   options(reflect.TypeFor[metav1.DeleteOptions]()),
			body:     bodyParameter(s.ref(reflect.TypeFor[metav1.DeleteOptions]()), false),
		}
		if r.Model == nil && slices.Contains(deleteReturnsObject, r.Kind.Kind) {
			c.response = s.objectSchema(r)
		}
		p.Delete = s.operation(r, path, c)
	}
	return hoistParameters(p)
}

// deleteReturnsObject are the kinds whose delete responds with the deleted object.
var deleteReturnsObject = []string{
	"CSIDriver", "CSINode", "DeviceClass", "PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate",
	"ResourceClaim",
	"ResourceClaimTemplate", "ResourceQuota", "ResourceSlice", "Service", "ServiceAccount", "StorageClass",
	"VolumeAttachment", "VolumeAttributesClass",
}

func (s *schemas) patch(r Resource, specified string) operation {
	c := operation{
		action:   "patch",
		id:       "patch",
		doc:      "partially update" + specified,
		response: s.objectSchema(r),
		params:   options(reflect.TypeFor[metav1.PatchOptions]()),
		body:     bodyParameter(s.ref(reflect.TypeFor[metav1.Patch]()), true),
		consumes: []string{
			"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml",
		},
	}
	if r.Model == nil {
		c.codes = []int{201}
		c.consumes = slices.Insert(c.consumes, 2, "application/strategic-merge-patch+json")
	}
	return c
}

// connectPaths are the paths of streams, proxies and logs.
func (s *schemas) connectPaths(paths map[string]spec.PathItem, r Resource, path string) {
	if r.Subresource == "log" {
		p := spec.PathItem{}
		p.Get = s.operation(r, path, operation{
			action:   "get",
			id:       "read",
			doc:      "read log of the specified " + r.Parent,
			response: plain("string", ""),
			params:   options(reflect.TypeFor[corev1.PodLogOptions]()),
		})
		p.Get.Produces = append([]string{"text/plain"}, p.Get.Produces...)
		paths[path] = hoistParameters(p)
		return
	}
	connect := func(path, method, suffix string) *spec.Operation {
		return s.operation(r, path, operation{
			action:   "connect",
			id:       "connect",
			method:   method,
			suffix:   suffix,
			doc:      "connect " + method + " requests to " + r.Subresource + " of " + r.Parent,
			response: plain("string", ""),
			params:   options(r.Type),
		})
	}
	if r.Subresource != "proxy" {
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
