// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
)

// Event describes v1 Event; events.k8s.io/v1 is another view of the same objects (api/events).
func Event() *kind.Kind {
	return kind.Spec[*corev1.Event]{
		Names:          kind.Names{Version: "v1", Kind: "Event", Resource: "events", Singular: "event", ShortNames: []string{"ev"}, Namespaced: true},
		New:            func() *corev1.Event { return &corev1.Event{} },
		NewList:        func() runtime.Object { return &corev1.EventList{} },
		Validate:       ValidateEvent,
		ValidateUpdate: func(e, _ *corev1.Event) field.ErrorList { return ValidateEvent(e) },
		CreateOnUpdate: true,
		Fields:         EventFields,
		Columns:        EventColumns(),
		Row:            EventRow,
	}.Erase()
}

// EventFields are the selectable fields of an event.
func EventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	o := &e.InvolvedObject
	return fields.Set{
		"involvedObject.kind": o.Kind, "involvedObject.namespace": o.Namespace, "involvedObject.name": o.Name, "involvedObject.uid": string(o.UID),
		"involvedObject.apiVersion": o.APIVersion, "involvedObject.resourceVersion": o.ResourceVersion, "involvedObject.fieldPath": o.FieldPath,
		"reason": e.Reason, "reportingComponent": e.ReportingController, "source": source, "type": e.Type,
	}
}

// EventColumns are how kubectl prints events.
func EventColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Last Seen", Type: "string", Description: "When the event was last seen."},
		{Name: "Type", Type: "string", Description: "Normal or Warning."},
		{Name: "Reason", Type: "string", Description: "A short, machine understandable reason."},
		{Name: "Object", Type: "string", Description: "The object this event is about."},
		kind.Wide("Subobject", "The part of the object."),
		kind.Wide("Source", "The component reporting this event."),
		{Name: "Message", Type: "string", Description: "A human-readable description."},
		kind.Wide("First Seen", "When the event was first seen."),
		kind.Wide("Count", "How often it occurred."),
		{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: "Name of the event."},
	}
}

// EventRow is one line of `kubectl get events`.
func EventRow(e *corev1.Event) []any {
	first := ago(e.FirstTimestamp.Time)
	if e.FirstTimestamp.IsZero() {
		first = ago(e.EventTime.Time)
	}
	last := ago(e.LastTimestamp.Time)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = ago(e.Series.LastObservedTime.Time), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	if e.Source.Host != "" {
		source += ", " + e.Source.Host
	}
	return []any{last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

func ago(t time.Time) string { return kind.Age(metav1.Time{Time: t}) }

// ValidateEvent checks what both views of an event require. An event that sets eventTime follows the newer, stricter rules.
func ValidateEvent(e *corev1.Event) field.ErrorList {
	errs := validateEventObject(e)
	if e.EventTime.IsZero() {
		return errs
	}
	return append(errs, validateNewEvent(e)...)
}

func validateEventObject(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("involvedObject", "namespace")
	if e.InvolvedObject.Namespace == "" {
		if e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			errs = append(errs, field.Invalid(path, e.InvolvedObject.Namespace, "does not match event.namespace"))
		}
	} else if e.Namespace != e.InvolvedObject.Namespace {
		errs = append(errs, field.Invalid(path, e.InvolvedObject.Namespace, "does not match event.namespace"))
	}
	for _, msg := range apivalidation.ValidateNamespaceName(e.Namespace, false) {
		errs = append(errs, field.Invalid(field.NewPath("namespace"), e.Namespace, msg))
	}
	return errs
}

func validateNewEvent(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	const reasonMax, noteMax = 128, 1024
	text := func(name, value string, most int) {
		path := field.NewPath(name)
		if value == "" {
			errs = append(errs, field.Required(path, ""))
		} else if len(value) > most {
			errs = append(errs, field.Invalid(path, "", fmt.Sprintf("can have at most %d characters", most)))
		}
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	} else {
		for _, msg := range validation.IsQualifiedName(e.ReportingController) {
			errs = append(errs, field.Invalid(field.NewPath("reportingController"), e.ReportingController, msg))
		}
	}
	text("reportingInstance", e.ReportingInstance, reasonMax)
	text("action", e.Action, reasonMax)
	text("reason", e.Reason, reasonMax)
	if len(e.Message) > noteMax {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %d characters", noteMax)))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	if e.Series != nil {
		if e.Series.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
		}
		if e.Series.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
		}
	}
	return errs
}
