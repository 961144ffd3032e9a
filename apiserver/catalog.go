// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/apiserver/aggregate"
	"keelson/apiserver/discovery"
	"keelson/apiserver/openapi"
	"keelson/apiserver/resources"
)

// catalog publishes what is served in discovery and OpenAPI: the resources of this server and those of aggregated ones.
type catalog struct {
	served    *resources.Served
	documents *discovery.Documents
	schemas   *openapi.Documents

	mu      sync.Mutex // serializes publications, so that the last state is published
	remotes []*aggregate.Discovery
}

// newCatalog publishes the served resources. version is the server's, address its host and port.
func newCatalog(served *resources.Served, version apiversion.Info, address string) *catalog {
	out := &catalog{served: served}
	out.documents = discovery.New(out.missing(), address)
	out.schemas = openapi.New(version.GitVersion, version.GitCommit, openAPIResources(served.AllBuiltIn()))
	out.publish()
	return out
}

// missing responds to unknown paths.
func (c *catalog) missing() http.Handler { return discovery.Missing(c.maybeResourcePath) }

// maybeResourcePath reports whether a path may be a resource path: below /api, below an existing group, or /version.
func (c *catalog) maybeResourcePath(path string) bool {
	if strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/version/") {
		return true
	}
	group, _, below := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
	if !below || !strings.HasPrefix(path, "/apis/") {
		return false
	}
	return slices.ContainsFunc(c.groupVersions(), func(gv string) bool { return strings.HasPrefix(gv, group+"/") })
}

func (c *catalog) groupVersions() []string {
	var out []string
	for _, r := range c.served.All() {
		out = append(out, r.GVR().GroupVersion().String())
	}
	return out
}

// setRemotes publishes what the aggregated servers serve now.
func (c *catalog) setRemotes(services *aggregate.Services) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remotes = services.Discovered()
	c.publishLocked()
}

// publish publishes the resources that are served now.
func (c *catalog) publish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishLocked()
}

func (c *catalog) publishLocked() {
	var remotes []discovery.Remote
	var docs []openapi.Remote
	for _, f := range c.remotes {
		gv := schema.GroupVersion{Group: f.Service.Spec.Group, Version: f.Service.Spec.Version}
		remotes = append(remotes, discovery.Remote{
			GV:              gv,
			GroupPriority:   f.Service.Spec.GroupPriorityMinimum,
			VersionPriority: f.Service.Spec.VersionPriority,
			Resources:       f.Resources,
		})
		docs = append(docs, openapi.Remote{GV: gv, V3: f.V3, V2: f.V2, Sum: f.Sum})
	}
	c.documents.Set(c.served.All(), remotes)
	c.schemas.Set(openAPIResources(c.served.Custom()), docs)
}

// local lists the group versions that this server serves itself.
func (c *catalog) local() []aggregate.Local {
	var out []aggregate.Local
	seen := map[schema.GroupVersion]bool{}
	for _, r := range c.served.All() {
		if gv := r.GVR().GroupVersion(); !seen[gv] {
			seen[gv] = true
			out = append(out, aggregate.Local{GV: gv, Custom: r.Custom != nil})
		}
	}
	return out
}

// openAPIResources converts the resources for OpenAPI.
func openAPIResources(served []*resources.Resource) []openapi.Resource {
	var out []openapi.Resource
	for _, res := range served {
		d := openapi.Resource{
			GVR:        res.GVR(),
			Namespaced: res.Namespaced,
			Kind:       res.GVK(),
			Parent:     res.GVK().Kind,
			Verbs:      res.Verbs(),
		}
		switch {
		case res.Custom != nil:
			d.Model = model(res)
		case res.NewList != nil:
			d.List = reflect.TypeOf(res.NewList()).Elem()
			fallthrough
		default:
			d.Type = reflect.TypeOf(res.New()).Elem()
		}
		out = append(out, d)
		for _, sub := range res.AllSubresources() {
			if d.Model != nil && sub.GVK == res.GVK() {
				out = append(out, openapi.Resource{
					GVR:         res.GVR(),
					Subresource: sub.Name,
					Parent:      d.Parent,
					Namespaced:  res.Namespaced,
					Kind:        sub.GVK,
					Model:       d.Model,
					Verbs:       sub.Verbs,
				})
				continue
			}
			t, err := typeOf(sub.GVK)
			if err != nil {
				continue // a kind without a schema
			}
			out = append(out, openapi.Resource{
				GVR:         res.GVR(),
				Subresource: sub.Name,
				Parent:      d.Parent,
				Namespaced:  res.Namespaced,
				Kind:        sub.GVK,
				Type:        t,
				Verbs:       sub.Verbs,
				Connect:     sub.Connect,
			})
		}
	}
	return openapi.Sorted(out)
}

func model(r *resources.Resource) *openapi.Model {
	return &openapi.Model{
		Name:     openapi.ModelName(r.GVK()),
		ListName: openapi.ModelName(r.ListGVK()),
		ListKind: r.Custom.ListKind,
		Schema:   r.Custom.Schema,
		Sum:      r.Custom.Sum,
	}
}

func typeOf(gvk schema.GroupVersionKind) (reflect.Type, error) {
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("type of %s: %w", gvk, err)
	}
	return reflect.TypeOf(obj).Elem(), nil
}
