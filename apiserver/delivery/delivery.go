// SPDX-License-Identifier: Apache-2.0

// Package delivery tells which watcher got which watch event, and when, so that a pod's story shows the way from the store to
// those who act. The server's two ways out, watches over HTTP and those inside the process, call it after an event is handed over. It tells
// of pods and of what makes pods, and of the cluster's own programs as watchers; never of a person's watch, and of few watchers for
// each change, so that its cost does not follow their number.
package delivery

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
	"keelson/auth"
	"keelson/lib/mark"
)

// followed are the resources whose events are told: does a change of status count?
var followed = map[schema.GroupResource]bool{
	{Resource: "pods"}:                        true,
	{Resource: "replicationcontrollers"}:      false,
	{Group: "apps", Resource: "replicasets"}:  false,
	{Group: "apps", Resource: "deployments"}:  false,
	{Group: "apps", Resource: "statefulsets"}: false,
	{Group: "apps", Resource: "daemonsets"}:   false,
	{Group: "batch", Resource: "jobs"}:        false,
	{Group: "batch", Resource: "cronjobs"}:    false,
}

const (
	mostWatchers = 16  // of one change that are told of
	mostWords    = 128 // bytes of what a watcher asked for
)

// Recorder tells of the events of one watch; nil is valid and tells of none.
type Recorder struct {
	marks    *mark.Recorder
	resource string
	status   bool // changes of status are told too
	to       string
	watches  string
}

// New returns the teller of a watch of u that asks for q; nil when there is nothing to tell.
func New(marks *mark.Recorder, u *auth.User, gr schema.GroupResource, q *objects.ListQuery) *Recorder {
	status, ok := followed[gr]
	if !ok || marks == nil || u == nil || !strings.HasPrefix(u.Name, "system:") || u.Name == auth.Anonymous {
		return nil
	}
	return &Recorder{marks: marks, resource: gr.Resource, status: status, to: watcher(u), watches: asked(gr.Resource, q)}
}

// watcher is who watches: the user, and for a role of the cluster whose token is bound to a node, a space and that node.
func watcher(u *auth.User) string {
	if node := u.Extra["authentication.kubernetes.io/node-name"]; len(node) == 1 && strings.HasPrefix(u.Name, "system:serviceaccount:kube-system:") {
		return u.Name + " " + node[0]
	}
	return u.Name
}

// asked is what a watch selects, in words.
func asked(resource string, q *objects.ListQuery) string {
	text := resource
	if q.Namespace != "" {
		text += " of " + q.Namespace
	}
	if q.Fields != nil && !q.Fields.Empty() {
		text += ", " + q.Fields.String()
	}
	if q.Labels != nil && !q.Labels.Empty() {
		text += ", " + q.Labels.String()
	}
	if len(text) > mostWords {
		text = strings.ToValidUTF8(text[:mostWords], "") + "..."
	}
	return text
}

// Delivered leaves a mark: the watcher has ev.
func (t *Recorder) Delivered(ev *objects.Event) {
	if t == nil || ev.Marked == nil || ev.Marked.Load() >= mostWatchers {
		return
	}
	obj := ev.Entry.Object
	if !t.status && ev.Type == watch.Modified && ev.Prev != nil && ev.Prev.Object.GetGeneration() == obj.GetGeneration() {
		return
	}
	if ev.Marked.Add(1) > mostWatchers {
		return
	}
	t.marks.Emit(mark.Mark{
		Step: mark.StepDelivery, Component: "apiserver", At: ev.At, Took: max(time.Since(ev.At), 0),
		Subject: mark.Subject{Resource: t.resource, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: string(obj.GetUID())},
		Detail:  &mark.Delivery{Event: string(ev.Type), Revision: ev.Entry.Revision, To: t.to, Watches: t.watches},
	})
}
