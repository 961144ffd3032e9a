// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"crypto/tls"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/registry"
	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/event"
	"keelson/lib/connlimit"
)

// SubresourceHandler serves a subresource, or a kind without storage, that is not just the object.
type SubresourceHandler func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error

// Config holds the dependencies of the handlers.
type Config struct {
	Resources []*registry.Resource
	// Custom finds custom resources; nil: there are none.
	Custom    func(schema.GroupVersionResource) *registry.Resource
	Admission *admission.Chain
	// Tokens issues service-account tokens; nil: none are issued. Authorizer answers access reviews; Rules may be nil.
	Tokens     Tokens
	Authorizer auth.Authorizer
	Rules      Rules
	// Kubelet holds the client certificate for kubelets and the CA of their certificates. Outbound connects to
	// kubelets, pods and services; nil: an Egress that does not know the server's own addresses.
	Kubelet  func() *tls.Config
	Outbound *outbound.Egress
	// TunnelDialer connects to kubelets through tunnels that nodes have opened; nil: there are none.
	TunnelDialer outbound.TunnelDialer
	// EnterTunnel takes a place in a node's tunnel for a request; false: its owner has its share. nil: not limited.
	EnterTunnel func(node string, owner connlimit.Owner) (leave func(), ok bool)
	// Metrics counts watch events; may be nil.
	Metrics *pipeline.Metrics
	// WatchWriteTimeout is the time-out of a write to a watch client; 0: a minute.
	WatchWriteTimeout time.Duration
	// Stopping is closed when the server shuts down; watches then end.
	Stopping <-chan struct{}
	// Marks receives delivered watch events; nil: not recorded.
	Marks *event.Recorder
	Log   *slog.Logger
}

// Handler serves resource requests.
type Handler struct {
	resources map[schema.GroupVersionResource]*registry.Resource
	custom    func(schema.GroupVersionResource) *registry.Resource
	admission *admission.Chain
	// subresources by "group/resource/subresource", or "group/resource" for a kind without storage.
	subresources map[string]SubresourceHandler
	connect      *connector
	// authorizer checks the right to create when an update or apply creates the object; nil: not checked.
	authorizer        auth.Authorizer
	stopping          <-chan struct{}
	metrics           *pipeline.Metrics
	watchWriteTimeout time.Duration // time-out of a write to a watch client
	marks             *event.Recorder
	log               *slog.Logger
}

// New returns the handler of config's resources.
func New(config Config) *Handler {
	handler := &Handler{
		resources:         make(map[schema.GroupVersionResource]*registry.Resource, len(config.Resources)),
		custom:            config.Custom,
		admission:         config.Admission,
		subresources:      reviews(config.Tokens, config.Authorizer, config.Rules),
		authorizer:        config.Authorizer,
		stopping:          config.Stopping,
		metrics:           config.Metrics,
		watchWriteTimeout: config.WatchWriteTimeout,
		marks:             config.Marks,
		log:               config.Log,
	}
	if handler.watchWriteTimeout == 0 {
		handler.watchWriteTimeout = defaultWatchWriteTimeout
	}
	for _, res := range config.Resources {
		handler.resources[res.GVR()] = res
	}
	if handler.log == nil {
		handler.log = slog.New(slog.DiscardHandler)
	}
	handler.subresources["/bindings"] = handler.bind
	handler.subresources["/pods/binding"] = handler.bind
	handler.subresources["/pods/eviction"] = handler.evict
	if config.Tokens != nil {
		handler.subresources["/serviceaccounts/token"] = handler.token(config.Tokens)
	}
	handler.connect = newConnector(handler, config.Authorizer, config.Kubelet, config.Outbound, config.TunnelDialer)
	if config.EnterTunnel != nil {
		handler.connect.enterTunnel = config.EnterTunnel
	}
	maps.Copy(handler.subresources, handler.connect.subresources())
	return handler
}

// Resource returns the resource served as gvr, or nil.
func (h *Handler) Resource(gvr schema.GroupVersionResource) *registry.Resource {
	if res := h.resources[gvr]; res != nil || h.custom == nil {
		return res
	}
	return h.custom(gvr)
}

// ServeHTTP handles a resource request from the pipeline.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rq := pipeline.From(r.Context())
	err := h.serve(w, r, rq)
	if err == nil {
		return
	}
	rq.Failure = err.Error()
	auditStatus(rq, wire.Status(err))
	if code := wire.Status(err).Code; code >= http.StatusInternalServerError && r.Context().Err() == nil {
		h.log.Error("request failed", "verb", rq.Verb, "path", rq.Path, "audit", rq.AuditID, "code", code, "error", err)
	}
	wire.WriteError(w, r, err)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, rq *pipeline.Request) error {
	if strings.HasPrefix(rq.Path, "//") { // it names a resource for authorization, but has no route
		http.NotFound(w, r)
		return nil
	}
	res := h.Resource(rq.GVR())
	if res == nil || !matchesScope(rq, res) {
		if !h.builtIn(rq.Group) { // for custom resources Kubernetes has another message
			http.NotFound(w, r)
			return nil
		}
		return wire.NotFoundPath()
	}
	for _, text := range res.ResponseWarnings {
		rq.Warn(text)
	}
	if res.Deprecated != "" && !rq.User.InProcess() {
		rq.Warn(res.Deprecated)
		if h.metrics != nil {
			h.metrics.Deprecated(res.GVR(), rq.Subresource)
		}
	}
	rq.Mark.Resource = res.Resource // it exists, so metrics may contain its name
	if err := checkRoute(r, rq, res); err != nil {
		return err
	}
	if rq.Subresource != "" {
		return h.serveSub(w, r, rq, res)
	}
	if special := h.subresources[key(res, "")]; special != nil {
		if res.Namespaced && rq.Namespace == "" || rq.Name != "" { // such an object could not be addressed
			return wire.NotFoundPath()
		}
		if rq.Verb != "create" {
			return wire.MethodNotAllowed()
		}
		return special(w, r, rq, res)
	}
	if !slices.Contains(res.Verbs(), rq.Verb) || res.Namespaced && rq.Namespace == "" && (rq.Verb == "create" ||
		rq.Verb == "deletecollection") {
		return wire.MethodNotAllowed()
	}
	// list and watch may name an object
	if (rq.Name != "") != objectVerbs[rq.Verb] && rq.Verb != "list" && rq.Verb != "watch" {
		return wire.MethodNotAllowed()
	}
	switch rq.Verb {
	case "get":
		return h.get(w, r, rq, res)
	case "list":
		return h.list(w, r, rq, res)
	case "watch":
		return h.watch(w, r, rq, res)
	case "create":
		return h.create(w, r, rq, res)
	case "update":
		return h.update(w, r, rq, res)
	case "patch":
		return h.patch(w, r, rq, res)
	case "delete":
		return h.delete(w, r, rq, res)
	case "deletecollection":
		return h.deleteCollection(w, r, rq, res)
	}
	return wire.MethodNotAllowed()
}

// builtIn reports whether the API group is built in.
func (h *Handler) builtIn(group string) bool {
	for gvr := range h.resources {
		if gvr.Group == group {
			return true
		}
	}
	return false
}

// objectVerbs are the verbs on one object.
var objectVerbs = map[string]bool{
	"get":    true,
	"update": true,
	"patch":  true,
	"delete": true,
}

// matchesScope reports whether the path has the kind's scope: a namespaced object needs a namespace.
func matchesScope(rq *pipeline.Request, res *registry.Resource) bool {
	if !res.Namespaced {
		return rq.Namespace == "" || res.IsNamespace
	}
	if rq.Namespace != "" {
		return true
	}
	return rq.Subresource == "" && (rq.Verb == "list" || rq.Verb == "watch" || rq.Name == "" && !res.RoutedByPath)
}

func (h *Handler) serveSub(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error {
	if special := h.subresources[key(res, rq.Subresource)]; special != nil {
		return special(w, r, rq, res)
	}
	_, isPart := res.Subs[rq.Subresource]
	isScale := rq.Subresource == "scale" && res.Scale != nil
	switch {
	case !isPart && !isScale && res.RoutedByPath:
		return apierrors.NewNotFound(res.GroupResource(), rq.Name)
	case !isPart && !isScale:
		return wire.NotFoundPath()
	case isScale && rq.Verb == "get":
		return h.getScale(w, r, rq, res)
	case isScale && rq.Verb == "update":
		return h.updateScale(w, r, rq, res)
	case isScale && rq.Verb == "patch":
		return h.patchScale(w, r, rq, res)
	case rq.Verb == "get" && isPart && rq.Subresource != "finalize":
		return h.get(w, r, rq, res)
	case rq.Verb == "update" && isPart:
		return h.update(w, r, rq, res)
	case rq.Verb == "patch" && isPart && rq.Subresource != "finalize":
		return h.patch(w, r, rq, res)
	}
	return wire.MethodNotAllowed()
}

func key(res *registry.Resource, sub string) string {
	k := res.Group + "/" + res.Resource
	if sub != "" {
		k += "/" + sub
	}
	return k
}

// namespace is the namespace of the request's object: "" for cluster-scoped kinds, including namespaces.
func namespace(rq *pipeline.Request, res *registry.Resource) string {
	if !res.Namespaced {
		return ""
	}
	return rq.Namespace
}
