// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apiversion "k8s.io/apimachinery/pkg/version"

	"keelson/apiserver/discovery"
)

// paths are the paths that are no resources.
type paths struct {
	catalog  *catalog
	health   *health
	registry prometheus.Gatherer // /metrics
	version  apiversion.Info
	flags    func() map[string]string // /flagz; nil: not served
	routes   []Route
}

// Route is a path of the server in addition to those of Kubernetes. No two routes have the same path.
type Route struct {
	// Path matches all paths below it if it ends in "/".
	Path    string
	Handler http.Handler
	// Heavy requests take as many seats as the largest list.
	Heavy bool
}

// heavy returns the paths of the heavy routes.
func heavy(routes []Route) []string {
	var out []string
	for _, route := range routes {
		if route.Heavy {
			out = append(out, route.Path)
		}
	}
	return out
}

// checkRoutes returns an error for a path that two routes have: the mux would panic.
func checkRoutes(routes []Route) error {
	seen := map[string]bool{}
	for _, route := range routes {
		if seen[route.Path] {
			return fmt.Errorf("path %s of the API server is given twice", route.Path)
		}
		seen[route.Path] = true
	}
	return nil
}

// handler serves them.
func (p *paths) handler() (http.Handler, error) {
	if err := checkRoutes(p.routes); err != nil {
		return nil, err
	}
	serveMux := http.NewServeMux()
	fixed := []string{
		"/apis/", "/healthz", "/livez", "/readyz", "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3",
		"/openapi/v3/", "/version",
	}
	var index []string // the fixed paths; more are added below
	for _, route := range p.routes {
		fixed = append(fixed, strings.TrimSuffix(route.Path, "/"))
	}
	serveMux.Handle("/",
		discovery.Index(func() []string { return append(discovery.Paths(p.catalog.groupVersions()), index...) },
			p.catalog.missing()))
	p.catalog.documents.Mount(serveMux)
	if err := discovery.Version(serveMux, p.version); err != nil {
		return nil, err
	}
	p.catalog.schemas.Mount(serveMux)
	probes := discovery.NewProbes()
	for path, checks := range p.health.checks() {
		discovery.Health(serveMux, path, checks, probes)
		for _, c := range checks {
			fixed = append(fixed, "/"+path+"/"+c.Name)
		}
	}
	serveMux.Handle("/metrics/slis", probes)
	index = append(fixed, p.pages(serveMux)...)
	serveMux.Handle("/metrics",
		promhttp.HandlerFor(prometheus.Gatherers{p.registry, celMetrics}, promhttp.HandlerOpts{
			ProcessStartTime: time.Now(),
		}))
	serveMux.HandleFunc("/debug/pprof/", pprof.Index) // heap, goroutine, mutex, ...; the pipeline authorizes the path
	serveMux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	serveMux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	serveMux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	serveMux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	for _, route := range p.routes {
		serveMux.Handle(route.Path, route.Handler)
	}
	return uncached(withoutPathCleaning(serveMux)), nil
}

// pages serves /statusz and /flagz, and returns their paths.
func (p *paths) pages(m *http.ServeMux) []string {
	paths := []string{"/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"}
	served := []string{"/statusz"}
	if p.flags != nil {
		discovery.Flagz(m, "apiserver", p.flags)
		paths = append([]string{"/flagz"}, paths...)
		served = append(served, "/flagz")
	}
	discovery.Statusz(m, "apiserver", p.version, time.Now(), paths)
	return served
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
