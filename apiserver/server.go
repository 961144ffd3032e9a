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
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiversion "k8s.io/apimachinery/pkg/version"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/decisions"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/addresses"
	"keelson/apiserver/admission"
	"keelson/apiserver/aggregate"
	"keelson/apiserver/audit"
	"keelson/apiserver/backend"
	"keelson/apiserver/crd"
	"keelson/apiserver/discovery"
	"keelson/apiserver/fairness"
	"keelson/apiserver/handlers"
	"keelson/apiserver/objects"
	"keelson/apiserver/openapi"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/servicealloc"
	"keelson/apiserver/tunnels"
	"keelson/apiserver/usage"
	"keelson/auth"
	"keelson/event"
	"keelson/lib/connlimit"
	"keelson/lib/keyed"
	"keelson/store"
)

// Config holds the settings and dependencies of a server.
type Config struct {
	// Store keeps all objects. The server does not close it.
	Store store.Store
	// Listener serves HTTPS; nil: only in-process clients. The server closes it.
	Listener net.Listener
	// Connections limits the open client connections (default 20,000), Streams the running requests that are proxied to
	// another server (default 1,000).
	Connections, Streams int
	// TLS holds the server's certificate and the client CAs. nil: plain HTTP, for tests.
	TLS *tls.Config
	// StandardHTTP2 uses HTTP/2 of net/http, not of lib/h2.
	StandardHTTP2 bool
	// Parts builds the components that read objects. New calls it once.
	Parts func(*Reader) (Parts, error)
	// EventHandlers lists the event handlers of resources; they have the current state before the server is ready (RBAC
	// rules, for example).
	EventHandlers []EventHandler
	// Bootstrap are objects that must exist, of the kinds in keptKinds: missing ones are created, others reconciled.
	Bootstrap []runtime.Object
	// RemovedBindings are bindings of earlier versions: their subjects are removed from the bindings with these names.
	RemovedBindings []*rbacv1.ClusterRoleBinding
	// Kubelet returns the client certificate for kubelets and the CAs of their certificates, for each connection; nil:
	// kubelets cannot be called.
	Kubelet func() *tls.Config
	// Outbound connects to other servers.
	Outbound *outbound.Egress
	// Extra are further paths, below /keelson/ or elsewhere; a path that ends in "/" matches all paths below it.
	Extra map[string]http.Handler
	// Address has the addresses by which others reach the server.
	Address addresses.Own
	// NodePorts is the node port range; zero: servicealloc.DefaultPorts.
	NodePorts servicealloc.PortRange
	// SharedStore means that other servers may use Store: each renews a key in it, and the endpoints of the Service
	// "kubernetes" are the running servers.
	SharedStore bool
	// InProcess are the components that live as long as this server, by the names of their leader election leases.
	InProcess map[string]bool
	// FrontProxy returns the current client certificate for aggregated servers; nil: there is none.
	FrontProxy func() *tls.Certificate
	// Serving is why clients reject the serving certificate; nil: it is not checked.
	Serving func() error
	// Checks validate custom resources in addition to their schemas.
	Checks map[schema.GroupVersionResource]crd.Check
	// Gates are the enabled feature gates.
	Gates gates.On
	// Version is the response of /version.
	Version apiversion.Info
	// Flags is the content of /flagz; nil: not served.
	Flags func() map[string]string
	// Grace limits running requests after a shutdown has begun; default 10 s.
	Grace time.Duration
	// Audit records requests, Tracing exports spans; both may be nil. The server runs them.
	Audit   *audit.Auditor
	Tracing *pipeline.Tracing
	// WatchWriteTimeout is the time-out of a write to a watch client; default a minute.
	WatchWriteTimeout time.Duration
	// Collectors are further metrics for /metrics.
	Collectors []prometheus.Collector
	// Seats limits the concurrent requests under priority and fairness; default 600.
	Seats int
	// Decision returns the stored scheduling decision of a pod; nil: none are stored. The server sets the metadata.
	Decision func(pod types.UID) *decisions.PodDecision
	Marks    *event.Recorder
	Log      *slog.Logger
}

// Parts are the components that authenticate, authorize and admit requests.
type Parts struct {
	Authenticators []auth.Authenticator
	Authorizer     auth.Authorizer
	Admission      *admission.Chain
	// Metrics are served at /metrics beside the server's own.
	Metrics []prometheus.Collector
	// Tokens issues and verifies service-account tokens; nil: none.
	Tokens handlers.Tokens
	// Rules lists a user's rules for SelfSubjectRulesReview; may be nil.
	Rules handlers.Rules
	// EventHandlers is like Config.EventHandlers, for the parts themselves.
	EventHandlers []EventHandler
	// Extra are further paths, like Config.Extra.
	Extra map[string]http.Handler
	// Guards check writes of a resource by their user, in addition to admission (RBAC's privilege escalation).
	Guards map[schema.GroupResource]Guard
}

// Guard is resources.Resource.Guard.
type Guard = func(ctx context.Context, a *auth.Attributes, obj, old runtime.Object) error

// EventHandler receives every object of a resource: Set for existing and changed ones, Remove for deleted ones.
type EventHandler struct {
	Resource schema.GroupVersionResource
	Set      func(runtime.Object)
	Remove   func(runtime.Object)
	storage  objects.Storage // for stored objects that are no resource of the API; nil: the resource's storage
	// namespace limits the objects; empty: all
	namespace string
}

// Server is an API server. New creates it, Run runs it.
type Server struct {
	config    Config
	log       *slog.Logger
	storage   *storage
	reader    *Reader
	resources []*resources.Resource
	handler   *handlers.Handler
	// definitions serve custom resources; documents are the discovery documents.
	definitions      *crd.Definitions
	services         *aggregate.Services
	flowSchemaStatus *flowSchemaStatus
	documents        *discovery.Documents
	schemas          *openapi.Documents
	publishMu        sync.Mutex // serializes republish, so that the last state is published
	authorizer       auth.Authorizer
	metrics          *pipeline.Metrics
	listener         *connlimit.Listener // nil without Config.Listener
	eventHandlers    []EventHandler
	handlerProgress  []*handlerState
	addresses        *servicealloc.Allocator
	usage            *usage.Collector
	tunnels          *tunnels.Tunnels
	// used by one goroutine at a time: bootstrap, then endpointsLoop, then removeOwnEndpoint
	peers         *peers
	endpointsLoop *keyed.Loop[struct{}]
	upkeep        *upkeep
	root          http.Handler

	stopping chan struct{} // closed when a shutdown begins
	stop     sync.Once
	watches  sync.WaitGroup // in-process watches
	ready    atomic.Bool
}

// serverUser is the user of the server's own writes.
var serverUser = &auth.User{
	Name:   "system:apiserver",
	Groups: []string{auth.Masters, auth.Authenticated},
	How:    auth.InProcess,
}

// New assembles a server from config. Nothing runs yet.
func New(config Config) (*Server, error) {
	server := &Server{
		config:   config,
		log:      config.Log,
		stopping: make(chan struct{}),
		metrics:  pipeline.NewMetrics(),
		peers:    newPeers(),
	}
	patch.LimitCopies()
	server.metrics.Registry.MustRegister(config.Collectors...)
	server.config.Store = withStorageMetrics(config.Store, server.metrics.Registry)
	if server.log == nil {
		server.log = slog.New(slog.DiscardHandler)
	}
	if config.Listener != nil {
		server.listener = connlimit.New(config.Listener, cmp.Or(config.Connections, defaultConnections))
		server.metrics.Registry.MustRegister(connectionMetrics{server.listener})
	}
	if config.Grace == 0 {
		server.config.Grace = 10 * time.Second
	}
	server.openResources(resources.Table(config.Gates))
	server.upkeep = server.newUpkeep()
	server.endpointsLoop = server.newEndpointsLoop()
	server.metrics.Registry.MustRegister(config.Outbound.Collectors()...)
	if err := server.allocateServices(); err != nil {
		return nil, err
	}
	server.setUpCustomResources()
	server.setUpAggregation()
	parts, err := config.Parts(server.reader)
	if err != nil {
		return nil, err
	}
	server.authorizer = parts.Authorizer
	server.config.Extra = maps.Clone(config.Extra)
	if server.config.Extra == nil {
		server.config.Extra = map[string]http.Handler{}
	}
	maps.Copy(server.config.Extra, parts.Extra)
	server.openTunnels()
	server.metrics.Registry.MustRegister(parts.Metrics...)
	fair := server.fairness()
	server.eventHandlers = append(server.eventHandlers, parts.EventHandlers...)
	for _, res := range server.resources {
		res.Guard = server.guardDevices(res.GroupResource(), parts.Guards[res.GroupResource()])
	}
	server.handler = handlers.New(handlers.Config{
		Resources:         server.resources,
		Custom:            server.definitions.Resource,
		Admission:         parts.Admission,
		Tokens:            parts.Tokens,
		Authorizer:        parts.Authorizer,
		Rules:             parts.Rules,
		Kubelet:           config.Kubelet,
		Outbound:          config.Outbound,
		TunnelDialer:      server.tunnels.Dial,
		EnterTunnel:       server.tunnels.Enter,
		Stopping:          server.stopping,
		Metrics:           server.metrics,
		WatchWriteTimeout: config.WatchWriteTimeout,
		Marks:             config.Marks,
		Log:               server.log,
	})
	server.reader.create = func(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
		return server.handler.Create(ctx, serverUser, gvr, obj)
	}
	mux, err := server.mux()
	if err != nil {
		return nil, err
	}
	server.root = server.pipeline(&parts, fair, mux)
	return server, nil
}

// pipeline is the path of a request: through the filters, then to an aggregated server, to the resources or to the
// other paths.
func (s *Server) pipeline(parts *Parts, fair *fairness.Controller, paths http.Handler) http.Handler {
	config := &s.config
	return pipeline.New(pipeline.Config{
		Authenticators: parts.Authenticators,
		Authorizer:     parts.Authorizer,
		Metrics:        s.metrics,
		Marks:          config.Marks,
		Log:            s.log,
		MaxStreams:     config.Streams,
		Fairness:       fair,
		Cost:           s.cost,
		Audit:          config.Audit,
		Tracing:        config.Tracing,
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := pipeline.From(r.Context())
		if other := s.services.Handler(schema.GroupVersion{Group: rq.Group, Version: rq.Version},
			r.URL.Path); other != nil {
			rq.InitialEventsSent() // the other server limits its watches itself
			other.ServeHTTP(w, r)
			return
		}
		if rq.IsResource {
			s.handler.ServeHTTP(w, r)
			return
		}
		paths.ServeHTTP(w, r)
	}))
}

// openResources creates the Resource of every row; views share the storage of the row that they convert.
func (s *Server) openResources(rows []resources.Row) {
	s.storage = newStorage(s.config.Store, s.log)
	s.usage = usage.New(func(ctx context.Context, node string) (*http.Response, error) {
		return s.handler.Kubelet(ctx, node, "metrics", "resource")
	}, s.log)
	s.reader = &Reader{resources: map[schema.GroupVersionResource]*resources.Resource{}}
	s.reader.setEquivalents(rows)
	stored := map[schema.GroupResource]objects.Storage{}
	add := func(res *resources.Resource) {
		s.resources = append(s.resources, res)
		s.reader.resources[res.GVR()] = res
	}
	for _, row := range rows {
		if row.View != nil {
			continue
		}
		var st objects.Storage
		if row.Computed {
			st = s.computed(row.Kind.GVR())
		} else if !row.Kind.CreateOnly {
			st = s.storage.open(row)
		}
		stored[row.Kind.GVR().GroupResource()] = st
		add(resources.New(row, st))
	}
	for _, row := range rows {
		if row.View != nil {
			add(resources.New(row, resources.Viewed(stored[row.View.Of], row.View)))
		}
	}
}

// computed is the storage of computed rows: componentstatuses, poddecisions and metrics.k8s.io.
func (s *Server) computed(gvr schema.GroupVersionResource) objects.Storage {
	switch gvr.Resource {
	case "componentstatuses":
		return resources.Computed(s.components())
	case "poddecisions":
		return resources.Computed(podDecisions{s.reader, s.config.Decision})
	case "nodes":
		return resources.Computed(usage.Nodes{Reader: s.reader, Collector: s.usage})
	}
	return resources.Computed(usage.Pods{Reader: s.reader, Collector: s.usage})
}

// setUpCustomResources sets up custom resources.
func (s *Server) setUpCustomResources() {
	gvr := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	row := s.reader.resources[gvr]
	hooks := crd.NewHookMetrics(s.metrics.Registry)
	s.definitions = crd.New(crd.Config{
		Cache:   s.storage.cache,
		Stored:  row.Storage,
		Owners:  row.FieldManagers["status"],
		Log:     s.log,
		BuiltIn: func(gvr schema.GroupVersionResource) bool { return s.reader.resources[gvr] != nil },
		Hooks: &crd.Hooks{
			Outbound: s.config.Outbound,
			Resolve: func(ctx context.Context, namespace, name string, port int32) (string, error) {
				return backend.Resolve(ctx, s.reader, namespace, name, port)
			},
			Metrics: hooks,
		},
		Checks: s.config.Checks,
		Changed: func() {
			s.republish()
			s.services.Trigger()
		},
	})
	s.reader.custom = s.definitions.Resource
	s.reader.customs = s.definitions.Resources
	s.eventHandlers = append(s.eventHandlers, EventHandler{
		Resource: gvr,
		Set:      s.definitions.Set,
		Remove:   s.definitions.Remove,
	})
}

// setUpAggregation sets up the aggregation layer.
func (s *Server) setUpAggregation() {
	gvr := apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
	row := s.reader.resources[gvr]
	s.services = aggregate.New(aggregate.Config{
		Stored:      row.Storage,
		Owners:      row.FieldManagers["status"],
		Reader:      s.reader,
		Outbound:    s.config.Outbound,
		Certificate: s.config.FrontProxy,
		Log:         s.log,
		Create: func(ctx context.Context, obj *apiregistrationv1.APIService) error {
			return s.handler.Create(ctx, serverUser, gvr, obj)
		},
		Update: func(
			ctx context.Context, obj *apiregistrationv1.APIService, modify func(*apiregistrationv1.APIService) bool,
		) error {
			return s.handler.Update(ctx, serverUser, gvr, obj, func(have kind.Object) bool {
				svc, ok := have.(*apiregistrationv1.APIService)
				return ok && modify(svc)
			})
		},
		Local:   s.localGroupVersions,
		Changed: s.republish,
	})
	s.metrics.Registry.MustRegister(s.services)
	look := func(obj runtime.Object) {
		if o, ok := obj.(kind.Object); ok && s.services.Uses(o.GetNamespace(), serviceOf(o)) {
			s.services.Trigger()
		}
	}
	s.eventHandlers = append(s.eventHandlers,
		EventHandler{Resource: gvr, Set: s.services.Set, Remove: s.services.Remove},
		EventHandler{Resource: corev1.SchemeGroupVersion.WithResource("services"), Set: look, Remove: look},
		EventHandler{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Set: look, Remove: look})
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

// Reader returns a reader of the server's objects without the pipeline.
func (s *Server) Reader() *Reader { return s.reader }
