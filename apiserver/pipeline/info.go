// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Info is the parsed path and method of a request, as Kubernetes interprets them.
type Info struct {
	// IsResource is true for requests of objects. Others (discovery, health) have only Verb, the lower-case method, and
	// Path.
	IsResource  bool
	Path        string
	Verb        string // get list watch create update patch delete deletecollection proxy
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	// Rest is the path after the subresource, for proxies, without the leading slash.
	Rest string
	// FieldSelector and LabelSelector restrict a list, watch or deletecollection; nil: absent or invalid.
	FieldSelector fields.Requirements
	LabelSelector labels.Requirements
	// Limit is the page size of a list; 0: none. Length is the Content-Length; -1: unknown.
	Limit  int64
	Length int64
}

// GVR is the requested resource.
func (i *Info) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Group, Version: i.Version, Resource: i.Resource}
}

// ReadOnly reports whether the request changes nothing.
func (i *Info) ReadOnly() bool {
	switch i.Verb {
	case "get", "list", "watch", "head", "options":
		return true
	}
	return false
}

// LongRunning requests have no deadline and do not count as in flight.
func (i *Info) LongRunning() bool {
	if !i.IsResource {
		return false
	}
	switch i.Verb {
	case "watch", "proxy":
		return true
	}
	switch i.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

var methodVerbs = map[string]string{
	http.MethodPost:   "create",
	http.MethodGet:    "get",
	http.MethodHead:   "get",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

// namespaceSubresources would otherwise be parsed as resources in the namespace.
var namespaceSubresources = []string{"status", "finalize"}

// ParseInfo parses the method, path and query of r.
func ParseInfo(r *http.Request) Info {
	info := Info{Path: r.URL.Path, Verb: strings.ToLower(r.Method), Length: r.ContentLength}
	parts := split(r.URL.Path)
	if len(parts) < 3 {
		return info
	}
	switch parts[0] {
	case "api":
		info.Version = parts[1]
		parts = parts[2:]
	case "apis":
		if len(parts) < 4 || parts[1] == "" {
			return info
		}
		info.Group = parts[1]
		info.Version = parts[2]
		parts = parts[3:]
	default:
		return info
	}
	info.IsResource = true
	info.Verb = methodVerbs[r.Method]
	oldWatch := parts[0] == "watch" && len(parts) > 1 // the deprecated /watch/ paths
	if oldWatch {
		info.Verb = "watch"
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		if len(parts) > 2 && !slices.Contains(namespaceSubresources, parts[2]) {
			parts = parts[2:]
		}
	}
	info.Resource = parts[0]
	if len(parts) > 1 {
		info.Name = parts[1]
	}
	if len(parts) > 2 {
		info.Subresource = parts[2]
	}
	if len(parts) > 3 {
		info.Rest = pathAfter(r.URL.Path, len(split(r.URL.Path))-len(parts)+3)
	}
	info.collectionVerb(r.URL)
	return info
}

// collectionVerb converts get and delete without a name to list, watch and deletecollection.
func (i *Info) collectionVerb(target *url.URL) {
	if i.Name != "" {
		return
	}
	switch i.Verb {
	case "get":
		i.Verb = "list"
		if target.RawQuery == "" {
			return
		}
		q := target.Query()
		if w := q.Get("watch"); q.Has("watch") && w != "0" && w != "false" {
			i.Verb = "watch"
		}
		i.selectors(q)
		// where the limit is ignored
		if n, err := strconv.ParseInt(q.Get("limit"), 10, 64); err == nil && n > 0 && q.Get("resourceVersion") != "0" {
			i.Limit = n
		}
		if s := q.Get("fieldSelector"); s != "" && len(s) <= MaxSelector {
			// A list restricted to one name is authorized by that name.
			if sel, err := fields.ParseSelector(s); err == nil {
				if name, ok := sel.RequiresExactMatch("metadata.name"); ok && !strings.ContainsAny(name, "/%") &&
					name != "." && name != ".." {
					i.Name = name
				}
			}
		}
	case "delete":
		i.Verb = "deletecollection"
		if target.RawQuery != "" {
			i.selectors(target.Query())
		}
	}
}

// MaxSelector limits label and field selectors in bytes, because a list or watch evaluates them for every object.
const MaxSelector = 32 << 10

// selectors sets the selectors for authorizers.
func (i *Info) selectors(q url.Values) {
	if s := q.Get("fieldSelector"); s != "" && len(s) <= MaxSelector {
		if sel, err := fields.ParseSelector(s); err == nil {
			i.FieldSelector = sel.Requirements()
		}
	}
	if s := q.Get("labelSelector"); s != "" && len(s) <= MaxSelector {
		if sel, err := labels.Parse(s); err == nil {
			i.LabelSelector, _ = sel.Requirements()
		}
	}
}

func split(path string) []string {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// pathAfter returns the path after its first n elements, with a trailing slash, which proxied servers may need.
func pathAfter(path string, n int) string {
	path = strings.TrimLeft(path, "/")
	for range n {
		_, path, _ = strings.Cut(path, "/")
	}
	return path
}
