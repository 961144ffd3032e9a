// SPDX-License-Identifier: Apache-2.0

// Package delivery records which watcher received which watch event, and when, so that a pod's story shows the way of a
// change from the store to its consumers. The watches over HTTP and inside the process call it after each delivered
// event. It records only events of pods and of objects that lead to pods, and only watches of the cluster's components,
// never a person's watch; the number per change is limited, so that the cost does not grow with the number of watchers.
package delivery

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
	"keelson/auth"
	"keelson/event"
)

// recordedResources are the recorded resources; the value says whether status changes are recorded too.
var recordedResources = map[schema.GroupResource]bool{
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
	maxWatchers    = 16  // recorded watchers per change
	maxDescription = 128 // bytes of the description of a watch
)

// Recorder records the events of one watch; nil is valid and records nothing.
type Recorder struct {
	marks    *event.Recorder
	resource string
	status   bool // status changes are recorded too
	to       string
	watches  string
}

// New returns the recorder of u's watch with query q; nil if it is not recorded.
func New(marks *event.Recorder, u *auth.User, gr schema.GroupResource, q *objects.ListQuery) *Recorder {
	status, ok := recordedResources[gr]
	if !ok || marks == nil || u == nil || !strings.HasPrefix(u.Name, "system:") || u.Name == auth.Anonymous {
		return nil
	}
	return &Recorder{
		marks:    marks,
		resource: gr.Resource,
		status:   status,
		to:       watcherName(u),
		watches:  describeWatch(gr.Resource, q),
	}
}

// watcherName is the user name; for a role whose token is bound to a node, a space and the node's name follow.
func watcherName(u *auth.User) string {
	if node := u.Extra["authentication.kubernetes.io/node-name"]; len(node) == 1 &&
		strings.HasPrefix(u.Name, "system:serviceaccount:kube-system:") {
		return u.Name + " " + node[0]
	}
	return u.Name
}

// describeWatch describes what a watch selects.
func describeWatch(resource string, q *objects.ListQuery) string {
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
	if len(text) > maxDescription {
		text = strings.ToValidUTF8(text[:maxDescription], "") + "..."
	}
	return text
}

// Delivered records that the watcher has received ev.
func (t *Recorder) Delivered(ev *objects.Event) {
	if t == nil || ev.Marked == nil || ev.Marked.Load() >= maxWatchers {
		return
	}
	obj := ev.Entry.Object
	if !t.status && ev.Type == watch.Modified && ev.Prev != nil &&
		ev.Prev.Object.GetGeneration() == obj.GetGeneration() {
		return
	}
	if ev.Marked.Add(1) > maxWatchers {
		return
	}
	t.marks.Emit(event.Event{
		Step:      event.StepDelivery,
		Component: "apiserver",
		At:        ev.At,
		Took:      max(time.Since(ev.At), 0),
		Subject: event.Subject{
			Resource:  t.resource,
			Namespace: obj.GetNamespace(),
			Name:      obj.GetName(),
			UID:       string(obj.GetUID()),
		},
		Detail: &event.Delivery{
			Event:    string(ev.Type),
			Revision: ev.Entry.Revision,
			To:       t.to,
			Watches:  t.watches,
		},
	})
}
