// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/apiregistration"
	"keelson/api/apply"
	"keelson/apiserver/backend"
	"keelson/apiserver/objects"
	"keelson/apiserver/outbound"
	"keelson/lib/keyed"
)

// Config holds the dependencies of Services.
type Config struct {
	// Stored is the storage of APIServices, Owners the field manager of their status.
	Stored objects.Storage
	Owners *apply.Manager
	// Create creates one on behalf of the server.
	Create func(ctx context.Context, obj *v1.APIService) error
	// Update changes one like obj on behalf of the server, if modify reports that there is something to change.
	Update func(ctx context.Context, obj *v1.APIService, modify func(*v1.APIService) bool) error
	Reader backend.Reader
	// Outbound connects to the other servers.
	Outbound *outbound.Egress
	// Certificate returns the current front-proxy client certificate; nil: there is none.
	Certificate func() *tls.Certificate
	// Local lists the group versions that this server serves.
	Local func() []Local
	// Changed is called when the discovery of other servers changes.
	Changed func(*Services)
	Log     *slog.Logger
}

// Local is a group version that this server serves.
type Local struct {
	GV schema.GroupVersion
	// Custom: it belongs to a CustomResourceDefinition.
	Custom bool
}

// Services holds all APIServices and the connections to their servers.
type Services struct {
	config           Config
	loop             *keyed.Loop[allServices]
	unavailableTotal *prometheus.CounterVec
	// reconciled: the built-in group versions have been reconciled since the start. The loop alone uses it.
	reconciled bool

	// remotes are the group versions of other servers; the map is replaced, never modified.
	remotes atomic.Pointer[map[schema.GroupVersion]*remote]

	mu         sync.Mutex
	known      map[string]*v1.APIService // by name
	discovered map[string]*Discovery     // by name of an APIService
	closed     []*remote                 // replaced remotes, whose idle connections Run closes
}

// New returns an empty Services; Set adds to it.
func New(c Config) *Services {
	s := &Services{
		config:           c,
		unavailableTotal: newUnavailableTotal(),
		known:            map[string]*v1.APIService{},
		discovered:       map[string]*Discovery{},
	}
	s.loop = keyed.New(keyed.Config[allServices]{Do: s.sync})
	s.remotes.Store(&map[schema.GroupVersion]*remote{})
	return s
}

func gvOf(s *v1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// Set adds or updates an APIService.
func (s *Services) Set(obj runtime.Object) {
	svc, ok := obj.(*v1.APIService)
	if !ok {
		return
	}
	s.mu.Lock()
	s.known[svc.Name] = svc
	changed := s.rebuildLocked()
	s.mu.Unlock()
	s.notify(changed)
}

// Remove removes a deleted APIService.
func (s *Services) Remove(obj runtime.Object) {
	svc, ok := obj.(*v1.APIService)
	if !ok {
		return
	}
	s.mu.Lock()
	delete(s.known, svc.Name)
	delete(s.discovered, svc.Name)
	changed := s.rebuildLocked()
	s.mu.Unlock()
	s.notify(changed)
}

func (s *Services) notify(changed bool) {
	if changed {
		s.config.Changed(s)
	}
	s.Trigger()
}

// Trigger triggers a pass of Run, after a Service, its endpoints or this server's resources have changed.
func (s *Services) Trigger() { s.loop.Add(allServices{}) }

// Uses reports whether an APIService refers to this Service.
func (s *Services) Uses(namespace, name string) bool {
	for _, r := range *s.remotes.Load() {
		if ref := r.service.Spec.Service; ref.Namespace == namespace && ref.Name == name {
			return true
		}
	}
	return false
}

// rebuildLocked rebuilds the table of remotes and reports whether discovery changed. A remote with an unchanged spec
// keeps its connections.
func (s *Services) rebuildLocked() (changed bool) {
	old := *s.remotes.Load()
	next := map[schema.GroupVersion]*remote{}
	for _, svc := range s.known {
		if svc.Spec.Service == nil {
			continue
		}
		have := old[gvOf(svc)]
		if have != nil && have.service.Name == svc.Name && apiequality.Semantic.DeepEqual(have.service.Spec, svc.Spec) {
			if have.available != isAvailable(svc) {
				have = have.with(svc)
				changed = true
			}
			next[gvOf(svc)] = have
			continue
		}
		if have != nil {
			s.closed = append(s.closed, have)
		}
		next[gvOf(svc)] = newRemote(&s.config, svc)
		changed = true
	}
	for gv, r := range old {
		if next[gv] == nil {
			s.closed = append(s.closed, r)
			changed = true
		}
	}
	s.remotes.Store(&next)
	return changed
}

func isAvailable(s *v1.APIService) bool {
	c := apiregistration.Available(s)
	return c != nil && c.Status == v1.ConditionTrue
}

// Handler returns the proxy for a path or for requests about gv; nil: this server serves it.
func (s *Services) Handler(gv schema.GroupVersion, path string) http.Handler {
	remotes := *s.remotes.Load()
	if len(remotes) == 0 {
		return nil
	}
	if gv.Version == "" {
		gv = gvOfPath(path)
	}
	if r := remotes[gv]; r != nil {
		return r
	}
	return nil
}

// gvOfPath is the group version of /apis/<group>/<version>, a document that the aggregated server writes.
func gvOfPath(path string) schema.GroupVersion {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}
	}
	return schema.GroupVersion{}
}

// Discovered returns what is known of all available group versions of other servers.
func (s *Services) Discovered() []*Discovery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Discovery
	for _, r := range *s.remotes.Load() {
		if !r.available {
			continue
		}
		f := Discovery{}
		if have := s.discovered[r.service.Name]; have != nil {
			f = *have
		}
		f.Service = r.service
		out = append(out, &f)
	}
	slices.SortFunc(out, func(a, b *Discovery) int { return strings.Compare(a.Service.Name, b.Service.Name) })
	return out
}
