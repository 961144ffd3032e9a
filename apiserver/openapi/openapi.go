// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Swagger describes the resources as OpenAPI v2. version is the server's, "v1.37.2".
func Swagger(version string, resources []Resource) (*spec.Swagger, error) {
	return build(version, resources, roots(resources), true)
}

// build is Swagger with additional pages. With v2 false, schemas may use features of v3, for a document that is then
// converted.
func build(version string, resources []Resource, pages []page, v2 bool) (*spec.Swagger, error) {
	s := &schemas{defs: spec.Definitions{}, v2: v2}
	if len(resources) > 0 {
		s.groupVersion = resources[0].GVR.GroupVersion()
	}
	paths := map[string]spec.PathItem{}
	for _, res := range resources {
		if res.Model != nil {
			s.custom(res, v2)
		} else {
			if !res.Connect {
				s.ref(res.Type)
			}
			if res.List != nil {
				s.ref(res.List)
			}
		}
		s.addPaths(paths, res)
	}
	for _, p := range append(lists(resources), pages...) {
		s.addPage(paths, p)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	out := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: version}},
		Paths:       &spec.Paths{Paths: paths},
		Definitions: s.defs,
		SecurityDefinitions: spec.SecurityDefinitions{
			"BearerToken": &spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{
				Type:        "apiKey",
				Name:        "authorization",
				In:          "header",
				Description: "Bearer Token authentication",
			}},
		},
		Security: []map[string][]string{{"BearerToken": {}}},
	}}
	if v2 {
		return out, shareParameters(out)
	}
	return out, nil
}

// Documents serves /openapi/v2 and /openapi/v3 for the currently served resources. They are built on request.
type Documents struct {
	version string
	builtIn []Resource
	swagger func() (*spec.Swagger, error) // for builtIn
	v2      *handler.OpenAPIService
	v3      *handler3.OpenAPIService

	mu         sync.Mutex
	generation int
	extra      map[schema.GroupVersion]bool // v3 documents in addition to those of builtIn
}

// New returns the documents of the built-in resources. version is the server's, "v1.37.2".
func New(version string, fixed []Resource) *Documents {
	documents := &Documents{
		version: version,
		builtIn: fixed,
		v3:      handler3.NewOpenAPIService(),
		extra:   map[schema.GroupVersion]bool{},
	}
	documents.swagger = sync.OnceValues(func() (*spec.Swagger, error) { return Swagger(version, fixed) })
	documents.v2 = handler.NewOpenAPIServiceLazy(documents.merged(nil, nil, 0))
	for gv, list := range byVersion(fixed) {
		documents.update(path(gv), list, nil, 0)
	}
	for _, p := range roots(fixed) {
		documents.update(p.key(), nil, []page{p}, 0)
	}
	return documents
}

// Remote is what an aggregated server publishes about its group version; unpublished parts are nil.
type Remote struct {
	GV schema.GroupVersion
	V3 *spec3.OpenAPI
	V2 *spec.Swagger
}

// Set replaces the resources in addition to the built-in ones.
func (d *Documents) Set(custom []Resource, remotes []Remote) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation++
	d.v2.UpdateSpecLazy(d.merged(custom, remotes, d.generation))
	fixed := byVersion(d.builtIn)
	now := byVersion(custom)
	elsewhere := map[schema.GroupVersion]*spec3.OpenAPI{}
	for _, r := range remotes {
		if r.V3 != nil {
			now[r.GV] = nil
			elsewhere[r.GV] = r.V3
		}
	}
	for gv := range d.extra {
		if _, ok := now[gv]; ok {
			continue
		}
		delete(d.extra, gv)
		if list, ok := fixed[gv]; ok {
			d.update(path(gv), list, nil, d.generation)
		} else {
			d.v3.DeleteGroupVersion(path(gv))
		}
	}
	for gv, list := range now {
		d.extra[gv] = true
		if doc := elsewhere[gv]; doc != nil {
			d.v3.UpdateGroupVersionLazy(path(gv), cached.Static(doc, d.etag(d.generation)))
			continue
		}
		d.update(path(gv), slices.Concat(fixed[gv], list), nil, d.generation)
	}
}

func byVersion(resources []Resource) map[schema.GroupVersion][]Resource {
	out := map[schema.GroupVersion][]Resource{}
	for _, r := range resources {
		gv := r.GVR.GroupVersion()
		out[gv] = append(out[gv], r)
	}
	return out
}

func path(gv schema.GroupVersion) string { return strings.TrimPrefix(prefix(gv), "/") }

// merged is the v2 document of all resources.
func (d *Documents) merged(custom []Resource, remotes []Remote, round int) cached.Value[*spec.Swagger] {
	return cached.Once(cached.Func(func() (*spec.Swagger, string, error) {
		fixed, err := d.swagger()
		if err != nil || len(custom)+len(remotes) == 0 {
			return fixed, d.etag(round), err
		}
		more, err := build(d.version, custom, nil, true)
		if err != nil {
			return nil, "", err
		}
		out := *fixed
		out.Definitions = handler.PruneDefaults(more.Definitions) // v2 has no defaults
		out.Paths = &spec.Paths{Paths: maps.Clone(more.Paths.Paths)}
		out.Parameters = maps.Clone(more.Parameters)
		maps.Copy(out.Parameters, fixed.Parameters)
		for _, r := range remotes {
			if r.V2 != nil {
				addRemote(&out, r)
			}
		}
		maps.Copy(out.Definitions, fixed.Definitions)
		maps.Copy(out.Paths.Paths, fixed.Paths.Paths)
		return &out, d.etag(round), nil
	}))
}

// addRemote adds the paths of another server's group version with the definitions that they need.
func addRemote(out *spec.Swagger, remote Remote) {
	if remote.V2.Paths == nil {
		return
	}
	own := prefix(remote.GV)
	for p, item := range remote.V2.Paths.Paths {
		if strings.HasPrefix(p, own+"/") {
			out.Paths.Paths[p] = item
		}
	}
	for name, p := range remote.V2.Parameters {
		if _, ok := out.Parameters[name]; !ok {
			out.Parameters[name] = p
		}
	}
	for name, def := range remote.V2.Definitions {
		if _, ok := out.Definitions[name]; !ok {
			out.Definitions[name] = def
		}
	}
}

// update replaces the v3 document key.
func (d *Documents) update(key string, list []Resource, pages []page, round int) {
	d.v3.UpdateGroupVersionLazy(key, cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
		s, err := build(d.version, list, pages, false)
		if err != nil {
			return nil, "", err
		}
		doc := openapiconv.ConvertV2ToV3(s)
		requireBodies(doc)
		return doc, d.etag(round), nil
	})))
}

func (d *Documents) etag(round int) string { return fmt.Sprintf("%s-%d", d.version, round) }

// Mount registers /openapi/v2 and /openapi/v3 with mux.
func (d *Documents) Mount(mux *http.ServeMux) error {
	d.v2.RegisterOpenAPIVersionedService("/openapi/v2", paths{mux, nil})
	if err := d.v3.RegisterOpenAPIV3VersionedService("/openapi/v3", paths{mux, d.has}); err != nil {
		return fmt.Errorf("register openapi v3: %w", err)
	}
	return nil
}

// has reports whether a v3 document name exists below /openapi/v3/.
func (d *Documents) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for gv := range d.extra {
		if path(gv) == name {
			return true
		}
	}
	return slices.ContainsFunc(d.builtIn, func(r Resource) bool { return path(r.GVR.GroupVersion()) == name }) ||
		slices.ContainsFunc(roots(d.builtIn), func(p page) bool { return p.key() == name })
}

// paths lets the libraries register handlers with a ServeMux.
type paths struct {
	mux *http.ServeMux
	has func(string) bool // whether a name exists below a prefix
}

func (p paths) Handle(path string, h http.Handler) { p.mux.Handle(path, h) }
func (p paths) HandlePrefix(path string, h http.Handler) {
	prefix := strings.TrimSuffix(path, "/") + "/"
	p.mux.HandleFunc(prefix, func(w http.ResponseWriter, r *http.Request) {
		if !p.has(strings.TrimPrefix(r.URL.Path, prefix)) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Sorted orders resources by group, version, resource and subresource, so that documents are reproducible.
func Sorted(list []Resource) []Resource {
	slices.SortFunc(list, func(a, b Resource) int {
		return strings.Compare(a.GVR.String()+"/"+a.Subresource, b.GVR.String()+"/"+b.Subresource)
	})
	return list
}
