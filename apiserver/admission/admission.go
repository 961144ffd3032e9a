// SPDX-License-Identifier: Apache-2.0

// Package admission is the chain of plugins between decoding and storing a write.
// handlers calls the chain; each plugin is a file of this package. Plugins read
// through the narrow interfaces they declare, never through the network.
package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/auth"
	"keelson/lib/mark"
)

// Operation is the kind of write.
type Operation string

// The operations.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Request is what a plugin sees. Object is nil for Delete, OldObject nil for Create. OldObject is shared and never modified (P4).
type Request struct {
	Operation   Operation
	Resource    schema.GroupVersionResource
	Kind        schema.GroupVersionKind
	Subresource string
	Namespace   string
	Name        string
	Object      runtime.Object
	OldObject   runtime.Object
	// Options is *metav1.CreateOptions, *metav1.UpdateOptions, *metav1.DeleteOptions or a connect's options (*corev1.PodExecOptions).
	Options runtime.Object
	User    *auth.User
	DryRun  bool
	// Warn adds a warning header to the answer; never nil.
	Warn func(text string)
	// Spec describes the object's kind; nil where the object is not the resource's own (a Binding, a Scale, a connection's options).
	Spec *kind.Kind
	// Again is set in the second round of the mutating plugins, which follows when a plugin asked for it by calling Reinvoke.
	Again bool
	// Annotate adds to the request's audit event; nil: nobody keeps one.
	Annotate func(key, value string)
	// Bodies tells that the event holds objects, not only what was asked about which.
	Bodies bool

	settle    []func(Outcome)
	running   string // the plugin that Admit is called of
	changes   []mark.Change
	reinvoke  bool
	notes     map[string]any
	namespace *corev1.Namespace
}

// NamespaceObject is the namespace that the request is about or happens in, read once for all plugins; nil for a cluster-scoped
// kind. It is shared and never modified (P4). A namespace that is not there is a 404 *apierrors.StatusError.
func (r *Request) NamespaceObject(ctx context.Context, reader Reader) (*corev1.Namespace, error) {
	if r.Namespace == "" || r.namespace != nil {
		return r.namespace, nil
	}
	ns, err := get[*corev1.Namespace](ctx, reader, namespaces, "", r.Namespace)
	if err != nil {
		return nil, err
	}
	r.namespace = ns
	return ns, nil
}

// Changed notes that the plugin that runs changed a field of the object, for the story of the request. A field is named as users write it:
// "spec.tolerations", "spec.containers[*].resources".
func (r *Request) Changed(fields ...string) { r.ChangedBy(r.running, fields...) }

// ChangedBy is Changed where the plugin acts for others: a webhook, a policy.
func (r *Request) ChangedBy(who string, fields ...string) {
	for _, f := range fields {
		c := mark.Change{By: who, Field: f}
		if slices.Contains(r.changes, c) {
			continue
		}
		if r.changes == nil {
			r.changes = make([]mark.Change, 0, 8)
		}
		if len(r.changes) < maxChanges {
			r.changes = append(r.changes, c)
		}
	}
}

// maxChanges bounds what is told of one request, whose patches a webhook writes.
const maxChanges = 64

// Changes is what plugins said to Changed, in order.
func (r *Request) Changes() []mark.Change { return r.changes }

// Outcome is what became of a write that the plugins accepted.
type Outcome int

// The outcomes. Unknown is that of a write which failed after the store had it: it may be stored yet.
const (
	NotStored Outcome = iota
	Stored
	Unknown
)

// OnSettle has f called once, at the end of the request: a plugin that took something for the object gives it back if it is NotStored.
func (r *Request) OnSettle(f func(Outcome)) { r.settle = append(r.settle, f) }

// Settle tells the plugins the outcome. The handler calls it after Check, whatever became of the request.
func (r *Request) Settle(o Outcome) {
	for _, f := range r.settle {
		f(o)
	}
	r.settle = nil
}

// Settler is Settle where a plugin waits for it, else a function that does nothing.
func (r *Request) Settler() func(Outcome) {
	if len(r.settle) == 0 {
		return noSettling
	}
	return r.Settle
}

func noSettling(Outcome) {}

// Reinvoke asks for a second round of the mutating plugins, because one that ran before may want to see what changed.
func (r *Request) Reinvoke() { r.reinvoke = true }

// Keep remembers v under a plugin's name for the second round; Kept returns it, or nil.
func (r *Request) Keep(plugin string, v any) {
	if r.notes == nil {
		r.notes = map[string]any{}
	}
	r.notes[plugin] = v
}

// Kept is what Keep remembered.
func (r *Request) Kept(plugin string) any { return r.notes[plugin] }

// Note annotates the request's audit event, if there is one.
func (r *Request) Note(key, value string) {
	if r.Annotate != nil {
		r.Annotate(key, value)
	}
}

// Plugin is one admission plugin; it implements Mutator, Validator or both.
type Plugin interface{ Name() string }

// Mutator may change Request.Object. An error is a *apierrors.StatusError (403 or 422) where a client caused it.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, r *Request) error
}

// Validator accepts or refuses; it changes nothing.
type Validator interface {
	Plugin
	Validate(ctx context.Context, r *Request) error
}
