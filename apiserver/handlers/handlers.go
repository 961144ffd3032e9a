// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/connect"
	"keelson/apiserver/kubelets"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/event"
)

// verb serves one verb on objects, a subresource, or a kind without storage.
type verb = func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error

// Config holds the dependencies of the handlers.
type Config struct {
	Served *resources.Served
	// Tokens issues service-account tokens; nil: none are issued. Authorizer answers access reviews; Rules may be nil.
	Tokens     Tokens
	Authorizer auth.Authorizer
	Rules      Rules
	// Kubelets are called for logs and streams. Outbound connects to pods and services.
	Kubelets *kubelets.Kubelets
	Outbound *outbound.Egress
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

// Handler routes resource requests to the verbs.
type Handler struct {
	served *resources.Served
	// verbs on objects and collections, and on the parts of objects that are subresources; scales has those of Scales.
	verbs  map[string]verb
	scales map[string]verb
	// subresources by "group/resource/subresource", or "group/resource" for a kind without storage.
	subresources map[string]verb
	connections  *connect.Connections
	metrics      *pipeline.Metrics
	log          *slog.Logger
}

// New returns the handler of config's resources, which writes by writer.
func New(config Config, writer *writes.Writer) *Handler {
	connections := connect.New(config.Served, writer.Admission, config.Authorizer, config.Kubelets, config.Outbound)
	return &Handler{
		served:       config.Served,
		verbs:        verbs(config, writer),
		scales:       scales{writer}.verbs(),
		subresources: subresources(config, writer, connections),
		connections:  connections,
		metrics:      config.Metrics,
		log:          cmp.Or(config.Log, slog.New(slog.DiscardHandler)),
	}
}

// verbs are the verbs on objects and collections.
func verbs(config Config, writer *writes.Writer) map[string]verb {
	writes := writeVerbs{writer}
	watches := &watches{
		stopping:     config.Stopping,
		metrics:      config.Metrics,
		writeTimeout: cmp.Or(config.WatchWriteTimeout, defaultWatchWriteTimeout),
		marks:        config.Marks,
	}
	return map[string]verb{
		"get":              get,
		"list":             list,
		"watch":            watches.watch,
		"create":           writes.create,
		"update":           writes.update,
		"patch":            writes.patch,
		"delete":           writes.delete,
		"deletecollection": writes.deleteCollection,
	}
}

// subresources are the subresources that are no part of the object, and the kinds without storage.
func subresources(config Config, writer *writes.Writer, connections *connect.Connections) map[string]verb {
	all := reviews(config.Tokens, config.Authorizer, config.Rules)
	bindings := &bindings{served: config.Served, admission: writer.Admission}
	all["/bindings"] = bindings.create
	all["/pods/binding"] = bindings.create
	all["/pods/eviction"] = (&evictions{served: config.Served, writer: writer}).create
	if config.Tokens != nil {
		all["/serviceaccounts/token"] = newTokenRequests(config.Served, writer.Admission, config.Tokens).create
	}
	maps.Copy(all, connections.Subresources())
	return all
}

// CloseIdle closes idle connections to pods.
func (h *Handler) CloseIdle() { h.connections.CloseIdle() }

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
	res := h.served.Find(rq.GVR())
	if res == nil || !matchesScope(rq, res) {
		if !h.served.HasGroup(rq.Group) { // for custom resources Kubernetes has another message
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
	inNamespace := !res.Namespaced || rq.Namespace != "" || rq.Verb != "create" && rq.Verb != "deletecollection"
	serve := h.verbs[rq.Verb]
	if serve == nil || !slices.Contains(res.Verbs(), rq.Verb) || !inNamespace {
		return wire.MethodNotAllowed()
	}
	// list and watch may name an object
	if (rq.Name != "") != objectVerbs[rq.Verb] && rq.Verb != "list" && rq.Verb != "watch" {
		return wire.MethodNotAllowed()
	}
	return serve(w, r, rq, res)
}

// objectVerbs are the verbs on one object.
var objectVerbs = map[string]bool{
	"get":    true,
	"update": true,
	"patch":  true,
	"delete": true,
}

// matchesScope reports whether the path has the kind's scope: a namespaced object needs a namespace.
func matchesScope(rq *pipeline.Request, res *resources.Resource) bool {
	if !res.Namespaced {
		return rq.Namespace == "" || res.IsNamespace
	}
	if rq.Namespace != "" {
		return true
	}
	return rq.Subresource == "" && (rq.Verb == "list" || rq.Verb == "watch" || rq.Name == "" && !res.RoutedByPath)
}

func (h *Handler) serveSub(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
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
	case rq.Verb == "update":
	case rq.Verb != "get" && rq.Verb != "patch" || rq.Subresource == "finalize":
		return wire.MethodNotAllowed()
	}
	if isScale {
		return h.scales[rq.Verb](w, r, rq, res)
	}
	return h.verbs[rq.Verb](w, r, rq, res)
}

func key(res *resources.Resource, sub string) string {
	k := res.Group + "/" + res.Resource
	if sub != "" {
		k += "/" + sub
	}
	return k
}
