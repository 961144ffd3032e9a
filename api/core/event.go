// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

// Event describes v1 Event; events.k8s.io/v1 is another view of the same objects (api/events).
func Event() *kind.Kind {
	return kind.Spec[*corev1.Event]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Event",
			Resource:   "events",
			Singular:   "event",
			ShortNames: []string{"ev"},
			Namespaced: true,
		},
		New:            func() *corev1.Event { return &corev1.Event{} },
		NewList:        func() runtime.Object { return &corev1.EventList{} },
		Validate:       func(e *corev1.Event) field.ErrorList { return ValidateEvent(e, "reportingComponent") },
		ValidateUpdate: func(e, _ *corev1.Event) field.ErrorList { return ValidateEvent(e, "reportingComponent") },
		MetaLast:       true,
		CreateOnUpdate: true,
		Fields:         EventFields,
		Columns:        EventColumns(),
		Row:            EventRow,
	}.Erase()
}

// EventFields are the selectable fields of an event.
func EventFields(event *corev1.Event) fields.Set {
	source := cmp.Or(event.Source.Component, event.ReportingController)
	o := &event.InvolvedObject
	return fields.Set{
		"involvedObject.kind":            o.Kind,
		"involvedObject.namespace":       o.Namespace,
		"involvedObject.name":            o.Name,
		"involvedObject.uid":             string(o.UID),
		"involvedObject.apiVersion":      o.APIVersion,
		"involvedObject.resourceVersion": o.ResourceVersion,
		"involvedObject.fieldPath":       o.FieldPath,
		"reason":                         event.Reason,
		"reportingComponent":             event.ReportingController,
		"source":                         source,
		"type":                           event.Type,
	}
}

// EventColumns are how kubectl prints events.
func EventColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Last Seen", Type: "string", Description: corev1.Event{}.SwaggerDoc()["lastTimestamp"]},
		{Name: "Type", Type: "string", Description: corev1.Event{}.SwaggerDoc()["type"]},
		{Name: "Reason", Type: "string", Description: corev1.Event{}.SwaggerDoc()["reason"]},
		{Name: "Object", Type: "string", Description: corev1.Event{}.SwaggerDoc()["involvedObject"]},
		kind.Wide("Subobject", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		kind.Wide("Source", corev1.Event{}.SwaggerDoc()["source"]),
		{Name: "Message", Type: "string", Description: corev1.Event{}.SwaggerDoc()["message"]},
		kind.Wide("First Seen", corev1.Event{}.SwaggerDoc()["firstTimestamp"]),
		kind.Wide("Count", corev1.Event{}.SwaggerDoc()["count"]),
		{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: "Name of the event."},
	}
}

// EventRow is one line of `kubectl get events`.
func EventRow(event *corev1.Event) []any {
	first := ago(event.FirstTimestamp.Time)
	if event.FirstTimestamp.IsZero() {
		first = ago(event.EventTime.Time)
	}
	last := ago(event.LastTimestamp.Time)
	if event.LastTimestamp.IsZero() {
		last = first
	}
	count := event.Count
	if event.Series != nil {
		last = ago(event.Series.LastObservedTime.Time)
		count = event.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(event.InvolvedObject.Kind)
	if event.InvolvedObject.Name != "" {
		target += "/" + event.InvolvedObject.Name
	}
	source := cmp.Or(event.Source.Component, event.ReportingController)
	if instance := cmp.Or(event.Source.Host, event.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return []any{last, event.Type, event.Reason, target, event.InvolvedObject.FieldPath, source, strings.TrimSpace(
		event.Message), first, int64(count), event.Name}
}

func ago(t time.Time) string { return kind.Age(metav1.Time{Time: t}) }

// ValidateEvent checks what both views of an event require. An event that sets eventTime follows the newer rules;
// controller is what the view calls the field that names who reports it.
func ValidateEvent(event *corev1.Event, controller string) field.ErrorList {
	errs := check.At(nil)
	const mismatch = "does not match event.namespace"
	namespace := event.InvolvedObject.Namespace
	if event.EventTime.IsZero() {
		if namespace == "" && event.Namespace != metav1.NamespaceDefault ||
			namespace != "" && namespace != event.Namespace {
			errs.Invalid("involvedObject.namespace", namespace, mismatch)
		}
		return errs.Errors()
	}
	if namespace == "" && event.Namespace != metav1.NamespaceDefault && event.Namespace != metav1.NamespaceSystem {
		errs.Invalid("involvedObject.namespace", namespace, mismatch)
	}
	const textMax, noteMax = 128, 1024
	text := func(name, value string) {
		if value == "" {
			errs.Required(name, "")
		}
		atMost(errs, name, value, textMax)
	}
	if event.ReportingController == "" {
		errs.Required(controller, "")
	}
	errs.Qualified(controller, event.ReportingController)
	text("reportingInstance", event.ReportingInstance)
	text("action", event.Action)
	text("reason", event.Reason)
	atMost(errs, "message", event.Message, noteMax)
	return errs.Errors()
}

func atMost(l *check.List, child, value string, most int) {
	if len(value) > most {
		l.Invalid(child, "", fmt.Sprintf("can have at most %d characters", most))
	}
}
