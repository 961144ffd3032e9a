// SPDX-License-Identifier: Apache-2.0

// Package apiserver is the Kubernetes API server: it assembles the resources, their storage, the handlers
// and the pipeline, and serves them on a listener and inside the process. cluster creates one and runs it. It never
// starts an agent and knows none.
package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/access"
	"keelson/apiserver/addresses"
	"keelson/apiserver/admission"
	"keelson/apiserver/aggregate"
	"keelson/apiserver/audit"
	"keelson/apiserver/crd"
	"keelson/apiserver/fairness"
	"keelson/apiserver/handlers"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/servicealloc"
	"keelson/apiserver/upkeep"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/event"
	"keelson/lib/connlimit"
	"keelson/lib/mux"
)

// Config holds the settings and dependencies of a server.
type Config struct {
	// Data are the server's objects.
	Data *Data
	// Parts authenticate, authorize and admit requests.
	Parts   Parts
	Serving Serving
	Limits  Limits
	Objects Objects
	// Address has the addresses by which others reach the server.
	Address addresses.Own
	// NodePorts is the node port range; zero: servicealloc.DefaultPorts.
	NodePorts servicealloc.PortRange
	// FrontProxy returns the current client certificate for aggregated servers; nil: there is none.
	FrontProxy func() *tls.Certificate
	Pages      Pages
	Reports    Reports
}

// Serving is how requests arrive.
type Serving struct {
	// Listener serves HTTPS; nil: only in-process clients. The server closes it.
	Listener net.Listener
	// TLS holds the server's certificate and the client CAs. nil: plain HTTP, for tests.
	TLS *tls.Config
	// StandardHTTP2 uses HTTP/2 of net/http, not of lib/h2.
	StandardHTTP2 bool
	// Grace limits running requests after a shutdown has begun; default 10 s.
	Grace time.Duration
}

// Limits bound what clients take.
type Limits struct {
	// Connections limits the open client connections; default 20,000.
	Connections int
	// Streams limits the running requests that are proxied to another server; default 1,000.
	Streams int
	// Seats limits the concurrent requests under priority and fairness; default 600.
	Seats int
	// WatchWriteTimeout is the time-out of a write to a watch client; default a minute.
	WatchWriteTimeout time.Duration
}

// Objects are the objects that the server itself keeps and follows.
type Objects struct {
	// Bootstrap are objects that must exist: missing ones are created, others reconciled (upkeep.Config.Objects).
	Bootstrap []runtime.Object
	// RemovedBindings are bindings of earlier versions: their subjects are removed from the bindings with these names.
	RemovedBindings []*rbacv1.ClusterRoleBinding
	// EventHandlers lists the event handlers of resources; they have the current state before the server is ready (RBAC
	// rules, for example).
	EventHandlers []access.EventHandler
	// Checks validate custom resources in addition to their schemas.
	Checks map[schema.GroupVersionResource]crd.Check
	// SharedStore means that other servers may use the store: each renews a key in it, and the endpoints of the Service
	// "kubernetes" are the running servers.
	SharedStore bool
}

// Pages are what the server serves in addition to objects.
type Pages struct {
	// Version is the response of /version.
	Version apiversion.Info
	// Flags is the content of /flagz; nil: not served.
	Flags func() map[string]string
	// Certificate is why clients reject the serving certificate, for the health pages; nil: it is not checked.
	Certificate func() error
	// Routes are further paths, below /keelson/ or elsewhere.
	Routes []Route
}

// Reports are where the server reports what it does.
type Reports struct {
	// Audit records requests, Tracing exports spans; both may be nil. The server runs them.
	Audit   *audit.Auditor
	Tracing *pipeline.Tracing
	// Collectors are further metrics for /metrics.
	Collectors []prometheus.Collector
	Marks      *event.Recorder
	Log        *slog.Logger
}

// Parts are the components that authenticate, authorize and admit requests.
type Parts struct {
	Authenticators []auth.Authenticator
	Authorizer     auth.Authorizer
	Admission      *admission.Chain
	// Metrics are served at /metrics with the server's own.
	Metrics []prometheus.Collector
	// Tokens issues and verifies service-account tokens; nil: none.
	Tokens handlers.Tokens
	// Rules lists a user's rules for SelfSubjectRulesReview; may be nil.
	Rules handlers.Rules
	// EventHandlers is like Objects.EventHandlers, for the parts themselves.
	EventHandlers []access.EventHandler
	// Routes is like Pages.Routes, for the parts themselves.
	Routes []Route
	// Guards check writes of a resource by their user, in addition to admission (RBAC's privilege escalation).
	Guards map[schema.GroupResource]writes.Guard
}

// Server is an API server. New creates it, Run runs it.
type Server struct {
	config           Config
	log              *slog.Logger
	data             *Data
	handler          *handlers.Handler
	addresses        *servicealloc.Allocator
	definitions      *crd.Definitions
	services         *aggregate.Services
	flowSchemaStatus *flowSchemaStatus
	sources          *access.Sources
	listener         *connlimit.Listener // nil without Config.Serving.Listener
	eventHandlers    []access.EventHandler
	health           *health
	root             http.Handler
	upkeep           *upkeep.Upkeep

	stopping chan struct{} // closed when a shutdown begins
	stop     sync.Once
}

// New makes the second half of a server: handlers -> what follows the objects -> pipeline. Nothing runs yet.
func New(config Config) (*Server, error) {
	patch.LimitCopies()
	config.Reports.Log = cmp.Or(config.Reports.Log, slog.New(slog.DiscardHandler))
	config.Serving.Grace = cmp.Or(config.Serving.Grace, 10*time.Second)
	data := config.Data
	routes := slices.Concat([]Route{{Path: mux.Path, Handler: data.tunnels}}, config.Pages.Routes, config.Parts.Routes)
	stopping := make(chan struct{})
	metrics := pipeline.NewMetrics()

	// The writes. The allocator writes addresses and events, which need no allocator.
	written := writes.Config{
		Served:     data.Served,
		Admission:  config.Parts.Admission,
		Authorizer: config.Parts.Authorizer,
		Guards:     deviceGuard{data.Reader, config.Parts.Authorizer}.before(config.Parts.Guards),
	}
	var record objects.Storage
	if config.Objects.SharedStore {
		record = data.cache.Resource(resources.RangeAllocations)
	}
	allocator, err := newAllocator(&config, writes.New(written).Own, record)
	if err != nil {
		return nil, err
	}
	written.Allocators = map[schema.GroupResource]writes.Allocator{
		servicesGVR.GroupResource(): serviceAddresses{allocator},
	}
	writer := writes.New(written)
	own := writer.Own
	handler := handlers.New(config.handled(metrics, stopping), writer)

	// What follows the objects.
	catalog := newCatalog(data.Served, config.Pages.Version, config.Address.HostPort())
	services := newServices(&config, own, catalog)
	hooks := crd.NewHookMetrics()
	definitions := newDefinitions(&config, hooks, catalog, services)
	schemas := data.Served.BuiltIn(flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas"))
	status := newFlowSchemaStatus(schemas.Storage, schemas.FieldManagers["status"], config.Reports.Log)
	fair := fairness.New(cmp.Or(config.Limits.Seats, defaultSeats), maxQueueTime)

	// The way of a request.
	health := &health{store: data.store.Health, serving: config.Pages.Certificate, stopping: stopping}
	others := paths{
		catalog:  catalog,
		health:   health,
		registry: metrics.Registry,
		version:  config.Pages.Version,
		flags:    config.Pages.Flags,
		routes:   routes,
	}
	rest, err := others.handler()
	if err != nil {
		return nil, err
	}
	server := &Server{
		config:           config,
		log:              config.Reports.Log,
		data:             data,
		handler:          handler,
		addresses:        allocator,
		definitions:      definitions,
		services:         services,
		flowSchemaStatus: status,
		sources:          access.NewSources(data.Served, config.Parts.Authorizer, config.Reports.Marks, stopping),
		eventHandlers: slices.Concat(
			serviceAddresses{allocator}.handlers(),
			config.Objects.EventHandlers,
			portHandlers(allocator, record),
			definitionHandlers(definitions),
			serviceHandlers(services),
			[]access.EventHandler{closeTunnels(data.tunnels)},
			fairnessHandlers(fair, status),
			config.Parts.EventHandlers,
		),
		health: health,
		root:   newPipeline(&config, metrics, fair, heavy(routes), services, handler, rest),
		upkeep: upkeep.New(upkeep.Config{
			Served:          data.Served,
			Reader:          data.Reader,
			Own:             own,
			Store:           data.store,
			Shared:          config.Objects.SharedStore,
			Address:         config.Address,
			Objects:         config.Objects.Bootstrap,
			RemovedBindings: config.Objects.RemovedBindings,
			Log:             config.Reports.Log,
		}),
		stopping: stopping,
	}
	if config.Serving.Listener != nil {
		server.listener = connlimit.New(config.Serving.Listener, cmp.Or(config.Limits.Connections, defaultConnections))
		metrics.Registry.MustRegister(connectionMetrics{server.listener})
	}
	metrics.Registry.MustRegister(slices.Concat(config.Reports.Collectors, data.collectors, config.Parts.Metrics,
		hooks.Collectors(), []prometheus.Collector{services, fairnessMetrics{fair}, objectMetrics{data.Served}})...)
	return server, nil
}

// handled is the configuration of the handlers.
func (c *Config) handled(metrics *pipeline.Metrics, stopping <-chan struct{}) handlers.Config {
	parts := &c.Parts
	return handlers.Config{
		Served:            c.Data.Served,
		Tokens:            parts.Tokens,
		Authorizer:        parts.Authorizer,
		Rules:             parts.Rules,
		Kubelets:          c.Data.kubelets,
		Outbound:          c.Data.outbound,
		Stopping:          stopping,
		Metrics:           metrics,
		WatchWriteTimeout: c.Limits.WatchWriteTimeout,
		Marks:             c.Reports.Marks,
		Log:               c.Reports.Log,
	}
}

// newPipeline is the path of a request: through the filters, then to an aggregated server, to the resources or to the
// other paths.
func newPipeline(
	config *Config, metrics *pipeline.Metrics, fair *fairness.Controller, heavy []string,
	services *aggregate.Services, objects, others http.Handler,
) http.Handler {
	return pipeline.New(pipeline.Config{
		Authenticators: config.Parts.Authenticators,
		Authorizer:     config.Parts.Authorizer,
		Metrics:        metrics,
		Marks:          config.Reports.Marks,
		Log:            config.Reports.Log,
		MaxStreams:     config.Limits.Streams,
		Fairness:       fair,
		Cost:           seatCost{config.Data.Served, heavy}.of,
		Audit:          config.Reports.Audit,
		Tracing:        config.Reports.Tracing,
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := pipeline.From(r.Context())
		if other := services.Handler(schema.GroupVersion{Group: rq.Group, Version: rq.Version},
			r.URL.Path); other != nil {
			rq.InitialEventsSent() // the other server limits its watches itself
			other.ServeHTTP(w, r)
			return
		}
		if rq.IsResource {
			objects.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	}))
}

var definitionsGVR = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// newDefinitions makes what serves custom resources.
func newDefinitions(
	config *Config, metrics *crd.HookMetrics, catalog *catalog, services *aggregate.Services,
) *crd.Definitions {
	data := config.Data
	row := data.Served.BuiltIn(definitionsGVR)
	return crd.New(crd.Config{
		Cache:  data.cache,
		Stored: row.Storage,
		Owners: row.FieldManagers["status"],
		Served: data.Served,
		Hooks:  &crd.Hooks{Outbound: data.outbound, Resolve: data.Reader.Resolve, Metrics: metrics},
		Checks: config.Objects.Checks,
		Changed: func() {
			catalog.publish()
			services.Trigger()
		},
		Log: config.Reports.Log,
	})
}

func definitionHandlers(definitions *crd.Definitions) []access.EventHandler {
	return []access.EventHandler{{
		Resource: definitionsGVR,
		Set:      definitions.Set,
		Remove:   definitions.Remove,
		Keep:     crd.WithoutSchemas,
	}}
}

var apiServicesGVR = apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")

// newServices makes the aggregation layer.
func newServices(config *Config, own *writes.Own, catalog *catalog) *aggregate.Services {
	data := config.Data
	row := data.Served.BuiltIn(apiServicesGVR)
	return aggregate.New(aggregate.Config{
		Stored:      row.Storage,
		Owners:      row.FieldManagers["status"],
		Reader:      data.Reader,
		Outbound:    data.outbound,
		Certificate: config.FrontProxy,
		Log:         config.Reports.Log,
		Create: func(ctx context.Context, obj *apiregistrationv1.APIService) error {
			return own.Create(ctx, apiServicesGVR, obj)
		},
		Update: func(
			ctx context.Context, obj *apiregistrationv1.APIService, modify func(*apiregistrationv1.APIService) bool,
		) error {
			return own.Update(ctx, apiServicesGVR, obj, func(have kind.Object) bool {
				svc, ok := have.(*apiregistrationv1.APIService)
				return ok && modify(svc)
			})
		},
		Local:   catalog.local,
		Changed: catalog.setRemotes,
	})
}

func serviceHandlers(services *aggregate.Services) []access.EventHandler {
	look := func(obj runtime.Object) {
		if o, ok := obj.(kind.Object); ok && services.Uses(o.GetNamespace(), serviceOf(o)) {
			services.Trigger()
		}
	}
	return []access.EventHandler{
		{Resource: apiServicesGVR, Set: services.Set, Remove: services.Remove},
		{Resource: servicesGVR, Set: look, Remove: look},
		{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Set: look, Remove: look},
	}
}

// serviceOf is the name of a Service, or of the Service of an EndpointSlice.
func serviceOf(obj kind.Object) string {
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		return obj.GetLabels()[discoveryv1.LabelServiceName]
	}
	return obj.GetName()
}

// As returns the server's handler for an in-process client that works as u; every request passes the whole pipeline.
func (s *Server) As(u *auth.User) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.root.ServeHTTP(w, r.WithContext(auth.WithUser(r.Context(), u)))
	})
}

// Source returns the cached objects as seen by u.
func (s *Server) Source(u *auth.User) *access.Source { return s.sources.As(u) }

// Ensure creates or reconciles an object like those of Objects.Bootstrap, and keeps this version of it from now on.
func (s *Server) Ensure(ctx context.Context, obj kind.Object) error { return s.upkeep.Ensure(ctx, obj) }
