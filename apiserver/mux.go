// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/apiserver/aggregate"
	"keelson/apiserver/discovery"
	"keelson/apiserver/openapi"
	"keelson/apiserver/resources"
)

// mux serves all non-resource paths.
func (s *Server) mux() (http.Handler, error) {
	serveMux := http.NewServeMux()
	fixed := []string{
		"/apis/", "/healthz", "/livez", "/readyz", "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3",
		"/openapi/v3/", "/version",
	}
	var index []string // the fixed paths; more are added below
	for extra := range s.config.Extra {
		fixed = append(fixed, strings.TrimSuffix(extra, "/"))
	}
	missing := discovery.Missing(s.maybeResourcePath)
	serveMux.Handle("/",
		discovery.Index(func() []string { return append(discovery.Paths(s.groupVersions()), index...) },
			missing))
	s.documents = discovery.New(missing, s.config.Address.HostPort())
	s.documents.Mount(serveMux)
	if err := discovery.Version(serveMux, s.config.Version); err != nil {
		return nil, err
	}
	s.schemas = openapi.New(s.config.Version.GitVersion, openAPIResources(s.resources))
	if err := s.schemas.Mount(serveMux); err != nil {
		return nil, err
	}
	probes := discovery.NewProbes()
	for path, checks := range s.checks() {
		discovery.Health(serveMux, path, checks, probes)
		for _, c := range checks {
			fixed = append(fixed, "/"+path+"/"+c.Name)
		}
	}
	serveMux.Handle("/metrics/slis", probes)
	index = append(fixed, s.pages(serveMux)...)
	serveMux.Handle("/metrics",
		promhttp.HandlerFor(prometheus.Gatherers{s.metrics.Registry, celMetrics}, promhttp.HandlerOpts{
			ProcessStartTime: time.Now(),
		}))
	serveMux.HandleFunc("/debug/pprof/", pprof.Index) // heap, goroutine, mutex, ...; the pipeline authorizes the path
	serveMux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	serveMux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	serveMux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	serveMux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	for extra, h := range s.config.Extra {
		serveMux.Handle(extra, h)
	}
	s.republish()
	return uncached(withoutPathCleaning(serveMux)), nil
}

// pages serves /statusz and /flagz, and returns their paths.
func (s *Server) pages(m *http.ServeMux) []string {
	paths := []string{"/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"}
	served := []string{"/statusz"}
	if s.config.Flags != nil {
		discovery.Flagz(m, "apiserver", s.config.Flags)
		paths = append([]string{"/flagz"}, paths...)
		served = append(served, "/flagz")
	}
	discovery.Statusz(m, "apiserver", s.config.Version, time.Now(), paths)
	return served
}

// maybeResourcePath reports whether a path may be a resource path: below /api, below an existing group, or /version.
func (s *Server) maybeResourcePath(path string) bool {
	if strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/version/") {
		return true
	}
	group, _, below := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
	if !below || !strings.HasPrefix(path, "/apis/") {
		return false
	}
	return slices.ContainsFunc(s.groupVersions(), func(gv string) bool { return strings.HasPrefix(gv, group+"/") })
}

// uncached sets Cache-Control so that clients cache no response, unless the response sets it.
func uncached(m http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache, private")
		m.ServeHTTP(w, r)
	})
}

// withoutPathCleaning disables the mux's redirects to cleaned paths: a path that does not match is not found.
func withoutPathCleaning(m http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; strings.Contains(p, "//") || path.Clean(p) != p && path.Clean(p)+"/" != p {
			http.NotFound(w, r)
			return
		}
		m.ServeHTTP(w, r)
	})
}

func (s *Server) groupVersions() []string {
	var out []string
	for _, r := range s.allResources() {
		out = append(out, r.GVR().GroupVersion().String())
	}
	return out
}

// allResources lists all served resources, with custom resources.
func (s *Server) allResources() []*resources.Resource {
	return slices.Concat(s.resources, s.definitions.Resources())
}

// republish updates discovery and OpenAPI after a change of the served resources.
func (s *Server) republish() {
	s.publishMu.Lock()
	defer s.publishMu.Unlock()
	var remotes []discovery.Remote
	var docs []openapi.Remote
	for _, f := range s.services.Discovered() {
		gv := schema.GroupVersion{Group: f.Service.Spec.Group, Version: f.Service.Spec.Version}
		remotes = append(remotes, discovery.Remote{
			GV:              gv,
			GroupPriority:   f.Service.Spec.GroupPriorityMinimum,
			VersionPriority: f.Service.Spec.VersionPriority,
			Resources:       f.Resources,
		})
		docs = append(docs, openapi.Remote{GV: gv, V3: f.V3, V2: f.V2})
	}
	s.documents.Set(s.allResources(), remotes)
	s.schemas.Set(openAPIResources(s.definitions.Resources()), docs)
}

// localGroupVersions lists the group versions that this server serves itself.
func (s *Server) localGroupVersions() []aggregate.Local {
	var out []aggregate.Local
	seen := map[schema.GroupVersion]bool{}
	for _, r := range s.allResources() {
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
	}
}

func typeOf(gvk schema.GroupVersionKind) (reflect.Type, error) {
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("type of %s: %w", gvk, err)
	}
	return reflect.TypeOf(obj).Elem(), nil
}
