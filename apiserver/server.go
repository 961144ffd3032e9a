// SPDX-License-Identifier: Apache-2.0

// Package apiserver is the Kubernetes API over HTTP: it puts the registry's
// resources, their storage, the handlers and the pipeline together, and serves
// them on a listener and inside the process. cluster makes one and runs it. It
// starts no agent and knows none.
package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
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
	"keelson/apiserver/registry"
	"keelson/apiserver/servicealloc"
	"keelson/apiserver/tunnels"
	"keelson/apiserver/usage"
	"keelson/auth"
	"keelson/lib/connlimit"
	"keelson/lib/keyed"
	"keelson/lib/mark"
	"keelson/store"
)

// Config is all a server is made of.
type Config struct {
	// Store keeps everything. The server does not close it.
	Store store.Store
	// Listener is where HTTPS is served; nil: inside the process only. The server closes it.
	Listener net.Listener
	// Connections bound how many clients' connections are open at once (default 20,000), Streams how many requests that take a connection
	// to somewhere else are under way (default 1,000).
	Connections, Streams int
	// TLS holds the server's certificate and the authorities of clients. nil: plain HTTP, for tests.
	TLS *tls.Config
	// StandardHTTP2 has net/http's own server speak HTTP/2, and not lib/h2.
	StandardHTTP2 bool
	// Parts builds what needs to read objects. It is called once, by New.
	Parts func(*Reader) (Parts, error)
	// Follow lists who is told of changes to a resource, before the server is ready and from then on (RBAC keeps its rules so).
	Follow []Follower
	// Bootstrap are objects that must exist: created when missing, and cluster roles and bindings brought up to date.
	Bootstrap []runtime.Object
	// Withdrawn are grants of earlier versions: their subjects are taken from the bindings of those names.
	Withdrawn []*rbacv1.ClusterRoleBinding
	// Kubelet holds the client certificate for nodes' own servers and the authority of theirs; nil: kubelets cannot be reached.
	Kubelet *tls.Config
	// Outbound says which addresses are the server's own, beside its Listener and the address of the service "kubernetes".
	Outbound outbound.Config
	// Extra are further paths, below /keelson/ or wherever; a path that ends in "/" takes all below it.
	Extra map[string]http.Handler
	// ServiceCIDRs are where cluster IPs come from, one range or one of each IP family, that of the default one first; default
	// 10.96.0.0/16. NodePorts are where node ports come from; zero: servicealloc.DefaultPorts.
	ServiceCIDRs []netip.Prefix
	NodePorts    servicealloc.PortRange
	// Advertise is the address other machines reach the server at; it becomes the endpoint of the service "kubernetes". Empty: the
	// listener's, and none without a listener.
	Advertise string
	// Shared tells that other servers may run on Store: each renews a key there, so that the endpoints of the service "kubernetes" are those
	// that live.
	Shared bool
	// Here are the components that live as long as this server, by the leases of their leaders elsewhere.
	Here map[string]bool
	// FrontProxy is the client certificate that vouches for users to aggregated servers; nil: none is shown.
	FrontProxy *tls.Certificate
	// Checks judge custom resources that their schemas find right, beside those.
	Checks map[schema.GroupVersionResource]crd.Check
	// Gates are those of Kubernetes' feature gates that are on.
	Gates gates.On
	// Version is what /version says.
	Version apiversion.Info
	// Flags are what /flagz says; nil: there is none.
	Flags func() map[string]string
	// Grace bounds how long requests in flight may take after shutdown began; default 10 s.
	Grace time.Duration
	// Audit records requests, Tracing makes spans of them; nil: neither. The server runs them.
	Audit   *audit.Auditor
	Tracing *pipeline.Tracing
	// SlowWatch is how long a write of a watch to its client may take before the client is cut off; default a minute.
	SlowWatch time.Duration
	// Collectors are further metrics that /metrics shows.
	Collectors []prometheus.Collector
	// Seats bound how many requests are served at once, shared out by priority and fairness; default 600.
	Seats int
	// Decision returns what is remembered of the scheduler's last attempt for a pod; nil: nothing is. The server fills in the metadata.
	Decision func(pod types.UID) *decisions.PodDecision
	Marks    *mark.Recorder
	Log      *slog.Logger
}

// Parts are what judges requests.
type Parts struct {
	Authenticators []auth.Authenticator
	Authorizer     auth.Authorizer
	Admission      *admission.Chain
	// Metrics are served at /metrics beside the server's own.
	Metrics []prometheus.Collector
	// Tokens issues and checks service-account tokens; nil: none.
	Tokens handlers.Tokens
	// Rules lists a user's rules for SelfSubjectRulesReview; may be nil.
	Rules handlers.Rules
	// Follow is like Config.Follow, for what the parts themselves must know.
	Follow []Follower
	// Extra are further paths, as those of Config.
	Extra map[string]http.Handler
	// Guards judge writes of a resource by who makes them, beside admission (RBAC's privilege escalation).
	Guards map[schema.GroupResource]Guard
}

// Guard is registry.Resource.Guard.
type Guard = func(ctx context.Context, u *auth.User, namespace string, obj, old runtime.Object) error

// Follower is told of every object of a resource: Set for what is there and what changes, Remove for what goes.
type Follower struct {
	Resource schema.GroupVersionResource
	Set      func(runtime.Object)
	Remove   func(runtime.Object)
	from     objects.Storage // of what is stored and no resource of the API; nil: the resource's
}

// Server is an API server. New makes one, Run runs it.
type Server struct {
	config    Config
	log       *slog.Logger
	storage   *storage
	reader    *Reader
	resources []*registry.Resource
	handler   *handlers.Handler
	// definitions serve custom resources; documents tell what is served.
	definitions      *crd.Definitions
	services         *aggregate.Services
	flowSchemaStatus *flowSchemaStatus
	documents        *discovery.Documents
	schemas          *openapi.Documents
	publishing       sync.Mutex // one republish at a time, so that the last word stays
	authorizer       auth.Authorizer
	metrics          *pipeline.Metrics
	listener         *connlimit.Listener // nil without Config.Listener
	follow           []Follower
	followed         []*followed
	addresses        *servicealloc.Allocator
	usage            *usage.Collector
	tunnels          *tunnels.Tunnels
	peers            *peers                        // one goroutine at a time: bootstrap, then keepEndpoints or keepSystemObjects, then leave
	missing          *keyed.Loop[systemObjectsKey] // asked when one of the server's own objects has gone
	root             http.Handler

	stopping chan struct{} // closed when shutdown begins
	stop     sync.Once
	watches  sync.WaitGroup // in-process watches
	ready    atomic.Bool
}

// self is who the server is when it writes objects of its own.
var self = &auth.User{Name: "system:apiserver", Groups: []string{auth.Masters, auth.Authenticated}, How: auth.InProcess}

// New assembles a server from c. Nothing runs yet.
func New(c Config) (*Server, error) {
	s := &Server{config: c, log: c.Log, stopping: make(chan struct{}), metrics: pipeline.NewMetrics(), peers: newPeers()}
	s.missing = s.keepSystemObjects()
	patch.LimitCopies()
	s.metrics.Registry.MustRegister(c.Collectors...)
	s.config.Store = measured(c.Store, s.metrics.Registry)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if c.Listener != nil {
		s.listener = connlimit.New(c.Listener, cmp.Or(c.Connections, defaultConnections))
		s.metrics.Registry.MustRegister(connectionMetrics{s.listener})
	}
	if c.Grace == 0 {
		s.config.Grace = 10 * time.Second
	}
	s.openResources(registry.Table(c.Gates))
	s.reader.outbound = s.door()
	if err := s.allocateServices(); err != nil {
		return nil, err
	}
	s.define()
	s.aggregate()
	parts, err := c.Parts(s.reader)
	if err != nil {
		return nil, err
	}
	s.authorizer = parts.Authorizer
	s.config.Extra = maps.Clone(c.Extra)
	if s.config.Extra == nil {
		s.config.Extra = map[string]http.Handler{}
	}
	maps.Copy(s.config.Extra, parts.Extra)
	s.openTunnels()
	s.metrics.Registry.MustRegister(parts.Metrics...)
	fair := s.fairness()
	s.follow = append(s.follow, parts.Follow...)
	for _, res := range s.resources {
		res.Guard = s.guardDevices(res.GroupResource(), parts.Guards[res.GroupResource()])
	}
	s.handler = handlers.New(handlers.Config{
		Resources: s.resources, Custom: s.definitions.Resource, Admission: parts.Admission, Tokens: parts.Tokens, Authorizer: parts.Authorizer, Rules: parts.Rules,
		Kubelet: c.Kubelet, Outbound: s.reader.outbound, Through: s.tunnels.Dial, Stopping: s.stopping, Metrics: s.metrics, SlowWatch: c.SlowWatch, Marks: c.Marks, Log: s.log,
	})
	s.reader.create = func(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
		return s.handler.Create(ctx, self, gvr, obj)
	}
	mux, err := s.mux()
	if err != nil {
		return nil, err
	}
	s.root = s.pipeline(&parts, fair, mux)
	return s, nil
}

// pipeline is the way of a request: through the filters, then to another server, to the resources or to the other paths.
func (s *Server) pipeline(parts *Parts, fair *fairness.Controller, paths http.Handler) http.Handler {
	c := &s.config
	return pipeline.New(pipeline.Config{
		Authenticators: parts.Authenticators, Authorizer: parts.Authorizer, Metrics: s.metrics, Marks: c.Marks, Log: s.log,
		MaxStreams: c.Streams, Fairness: fair, Cost: s.cost, Audit: c.Audit, Tracing: c.Tracing,
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := pipeline.From(r.Context())
		if other := s.services.Handler(schema.GroupVersion{Group: rq.Group, Version: rq.Version}, r.URL.Path); other != nil {
			rq.Begun() // the other server bounds its watches itself
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

// openResources makes a Resource of every row; views share the storage of the row they show.
func (s *Server) openResources(rows []registry.Row) {
	s.storage = newStorage(s.config.Store, s.log)
	s.usage = usage.New(func(ctx context.Context, node string) (*http.Response, error) {
		return s.handler.Kubelet(ctx, node, "metrics", "resource")
	}, s.log)
	s.reader = &Reader{resources: map[schema.GroupVersionResource]*registry.Resource{}}
	s.reader.noteAlike(rows)
	stored := map[schema.GroupResource]objects.Storage{}
	add := func(res *registry.Resource) {
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
			stored[row.Kind.GVR().GroupResource()] = st
		}
		add(registry.New(row, st))
	}
	for _, row := range rows {
		if row.View != nil {
			add(registry.New(row, registry.Viewed(stored[row.View.Of], row.View)))
		}
	}
}

// computed is the storage of a row that says so: componentstatuses, poddecisions and those of metrics.k8s.io.
func (s *Server) computed(gvr schema.GroupVersionResource) objects.Storage {
	switch gvr.Resource {
	case "componentstatuses":
		return registry.Computed(s.components())
	case "poddecisions":
		return registry.Computed(podDecisions{s.reader, s.config.Decision})
	case "nodes":
		return registry.Computed(usage.Nodes{Reader: s.reader, Collector: s.usage})
	}
	return registry.Computed(usage.Pods{Reader: s.reader, Collector: s.usage})
}

// define puts custom resources to work.
func (s *Server) define() {
	gvr := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	row := s.reader.resources[gvr]
	hooks := crd.NewHookMetrics(s.metrics.Registry)
	s.definitions = crd.New(crd.Config{
		Cache: s.storage.cache, Stored: row.Storage, Owners: row.Fields["status"], Log: s.log,
		Taken: func(gvr schema.GroupVersionResource) bool { return s.reader.resources[gvr] != nil },
		Hooks: &crd.Hooks{Outbound: s.reader.outbound, Resolve: func(ctx context.Context, namespace, name string, port int32) (string, error) {
			return backend.Resolve(ctx, s.reader, namespace, name, port)
		}, Metrics: hooks},
		Checks: s.config.Checks,
		Changed: func() {
			s.republish()
			s.services.Look()
		},
	})
	s.reader.custom, s.reader.customs = s.definitions.Resource, s.definitions.Resources
	s.follow = append(s.follow, Follower{Resource: gvr, Set: s.definitions.Set, Remove: s.definitions.Remove})
}

// aggregate lets other servers answer for parts of the API.
func (s *Server) aggregate() {
	gvr := apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
	row := s.reader.resources[gvr]
	s.services = aggregate.New(aggregate.Config{
		Stored: row.Storage, Owners: row.Fields["status"], Reader: s.reader, Outbound: s.reader.outbound, Certificate: s.config.FrontProxy, Log: s.log,
		Create: func(ctx context.Context, obj *apiregistrationv1.APIService) error {
			return s.handler.Create(ctx, self, gvr, obj)
		},
		Local: s.local, Changed: s.republish,
	})
	s.metrics.Registry.MustRegister(s.services)
	look := func(obj runtime.Object) {
		if o, ok := obj.(kind.Object); ok && s.services.Concerns(o.GetNamespace(), serviceOf(o)) {
			s.services.Look()
		}
	}
	s.follow = append(s.follow, Follower{Resource: gvr, Set: s.services.Set, Remove: s.services.Remove},
		Follower{Resource: corev1.SchemeGroupVersion.WithResource("services"), Set: look, Remove: look},
		Follower{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Set: look, Remove: look})
}

// serviceOf is the service that a service or an endpoint slice is about.
func serviceOf(obj kind.Object) string {
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		return obj.GetLabels()[discoveryv1.LabelServiceName]
	}
	return obj.GetName()
}

// As returns the server as u sees it, for clients inside the process: every request passes the whole pipeline.
func (s *Server) As(u *auth.User) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.root.ServeHTTP(w, r.WithContext(auth.WithUser(r.Context(), u)))
	})
}

// Reader reads the server's objects past the pipeline.
func (s *Server) Reader() *Reader { return s.reader }
