// SPDX-License-Identifier: Apache-2.0

// Package admission is the chain of admission plugins between decoding and storing a write, and what plugins are made
// of: requests, the objects they read, the changes they report, metrics. handlers and writes call the chain; the
// plugins are in packages below. Only webhook plugins call other servers.
package admission

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/auth"
	"keelson/event"
)

// Creator creates a new object on behalf of the server, with admission.
type Creator interface {
	Create(ctx context.Context, resource schema.GroupVersionResource, obj kind.Object) error
}

// Operation is the kind of write.
type Operation string

// The operations.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Request is the input of a plugin. Object is nil for Delete, OldObject nil for Create. OldObject is shared and never
// modified (P4).
type Request struct {
	Operation   Operation
	Resource    schema.GroupVersionResource
	Kind        schema.GroupVersionKind
	Subresource string
	Namespace   string
	Name        string
	Object      runtime.Object
	OldObject   runtime.Object
	// Options is *metav1.CreateOptions, *metav1.UpdateOptions, *metav1.DeleteOptions or a connect's options
	// (*corev1.PodExecOptions).
	Options runtime.Object
	User    *auth.User
	DryRun  bool
	// Warn adds a warning header to the response; never nil.
	Warn func(text string)
	// Spec describes the object's kind; nil if the object is not of the resource's kind (a Binding, a Scale, connect
	// options).
	Spec *kind.Kind
	// Reinvocation is set in the second round of the mutating plugins, which a plugin requests with Reinvoke.
	Reinvocation bool
	// Own creates further objects on behalf of the server, for the plugin that provisions namespaces.
	Own Creator
	// Annotate adds an annotation to the request's audit event; nil: the request is not recorded.
	Annotate func(key, value string)
	// AuditBodies: the audit event contains objects, not only metadata.
	AuditBodies bool

	progress
}

// progress is what the chain and its plugins have found so far about a request.
type progress struct {
	releases      []func()
	currentPlugin string // the plugin whose Admit runs
	changes       []event.Change
	slowest       slowest
	reinvoke      bool
	pluginState   map[string]any
	namespace     *corev1.Namespace
}

// NamespaceObject is the namespace of the request, read once for all plugins; nil for a cluster-scoped kind. It is
// shared and never modified (P4). A missing namespace is a 404 *apierrors.StatusError.
func (r *Request) NamespaceObject(ctx context.Context, reader Reader) (*corev1.Namespace, error) {
	if r.Namespace == "" || r.namespace != nil {
		return r.namespace, nil
	}
	ns, err := Get[*corev1.Namespace](ctx, reader, Namespaces, "", r.Namespace)
	if err != nil {
		return nil, err
	}
	r.namespace = ns
	return ns, nil
}

// Changed records that the running plugin changed a field of the object, for the timeline. Fields are named as users
// write them: "spec.tolerations", "spec.containers[*].resources".
func (r *Request) Changed(fields ...string) { r.ChangedBy(r.currentPlugin, fields...) }

// ChangedBy is Changed for a plugin that acts for a webhook or a policy.
func (r *Request) ChangedBy(who string, fields ...string) {
	for _, f := range fields {
		c := event.Change{By: who, Field: f}
		if slices.Contains(r.changes, c) {
			continue
		}
		if r.changes == nil {
			r.changes = make([]event.Change, 0, 8)
		}
		if len(r.changes) < maxChanges {
			r.changes = append(r.changes, c)
		}
	}
}

// maxChanges limits the recorded changes per request, because webhooks determine their number.
const maxChanges = 64

// Changes are the recorded changes in order.
func (r *Request) Changes() []event.Change { return r.changes }

// slowest is the webhook whose answer took longest. Validating webhooks are called at the same time.
type slowest struct {
	mu   sync.Mutex
	name string
	took time.Duration
}

// slow is how long an answer may take before the timeline names its webhook.
const slow = 100 * time.Millisecond

// Waited records how long a webhook took to answer, and whether its failure was ignored, for the timeline.
func (r *Request) Waited(webhook string, took time.Duration, failed bool) {
	r.slowest.mu.Lock()
	defer r.slowest.mu.Unlock()
	if took < slow || took <= r.slowest.took {
		return
	}
	r.slowest.took = took
	r.slowest.name = "webhook " + webhook + " took " + took.Round(time.Millisecond).String()
	if failed {
		r.slowest.name += " and failed"
	}
}

// Slowest is the webhook whose answer took longest, with how long that was; empty: all were quick.
func (r *Request) Slowest() string {
	r.slowest.mu.Lock()
	defer r.slowest.mu.Unlock()
	return r.slowest.name
}

// Reserved registers what gives back what a validator has reserved for r. Chain.Do calls it once if nothing was stored.
func (r *Request) Reserved(release func()) { r.releases = append(r.releases, release) }

// Reinvoke requests a second round of the mutating plugins, because an earlier plugin may need to see the changes.
func (r *Request) Reinvoke() { r.reinvoke = true }

// SetPluginState stores v under a plugin's name for the second round; PluginState returns it, or nil.
func (r *Request) SetPluginState(plugin string, v any) {
	if r.pluginState == nil {
		r.pluginState = map[string]any{}
	}
	r.pluginState[plugin] = v
}

// PluginState returns what SetPluginState stored.
func (r *Request) PluginState(plugin string) any { return r.pluginState[plugin] }

// AddAuditAnnotation adds an annotation to the request's audit event, if there is one.
func (r *Request) AddAuditAnnotation(key, value string) {
	if r.Annotate != nil {
		r.Annotate(key, value)
	}
}

// Plugin is one admission plugin; it implements Mutator, Validator or both.
type Plugin interface{ Name() string }

// Mutator may modify Request.Object. An error caused by the client is a *apierrors.StatusError (403 or 422).
type Mutator interface {
	Plugin
	Admit(ctx context.Context, r *Request) error
}

// Validator accepts or rejects a request and modifies nothing.
type Validator interface {
	Plugin
	Validate(ctx context.Context, r *Request) error
}
