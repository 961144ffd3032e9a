// SPDX-License-Identifier: Apache-2.0

// Package events describes events.k8s.io/v1: the same stored objects as core/v1
// events under newer names. One is stored, the other is this package's conversion.
package events

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Event describes events.k8s.io/v1 Event.
func Event() *kind.Kind {
	gv := eventsv1.SchemeGroupVersion
	return kind.Spec[*eventsv1.Event]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "Event",
			Resource:   "events",
			Singular:   "event",
			ShortNames: []string{"ev"},
			Namespaced: true,
		},
		New:            func() *eventsv1.Event { return &eventsv1.Event{} },
		NewList:        func() runtime.Object { return &eventsv1.EventList{} },
		Validate:       validate,
		MetaLast:       true,
		CreateOnUpdate: true,
		ValidateUpdate: validateUpdate,
		Fields: func(e *eventsv1.Event) fields.Set {
			set := fields.Set{}
			for k, v := range core.EventFields(ToCore(e)) {
				if k == "source" {
					continue // only the older version has that
				}
				if name, ok := regarding[k]; ok {
					k = name
				}
				set[k] = v
			}
			return set
		},
		Columns: core.EventColumns(),
		Row:     func(e *eventsv1.Event) []any { return core.EventRow(ToCore(e)) },
	}.Erase()
}

// regarding maps the older field selectors to this version's.
var regarding = map[string]string{
	"involvedObject.kind":            "regarding.kind",
	"involvedObject.namespace":       "regarding.namespace",
	"involvedObject.name":            "regarding.name",
	"involvedObject.uid":             "regarding.uid",
	"involvedObject.apiVersion":      "regarding.apiVersion",
	"involvedObject.resourceVersion": "regarding.resourceVersion",
	"involvedObject.fieldPath":       "regarding.fieldPath",
	"reportingComponent":             "reportingController",
}

// controller is what this version calls the field that names who reports an event.
const controller = "reportingController"

// validate is stricter than the older version: the fields that this one calls deprecated must not be set. Their names,
// and those of the others, are the older version's.
func validate(event *eventsv1.Event) field.ErrorList {
	errs := core.ValidateEvent(ToCore(event), controller)
	errs = append(errs, apivalidation.ValidateObjectMeta(&event.ObjectMeta, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))...)
	errs = append(errs, meta.Finalizers(event)...)
	errs = append(errs, validateSeries(event)...)
	if event.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if event.Type != corev1.EventTypeNormal && event.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", event.Type)))
	}
	for _, old := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !event.DeprecatedFirstTimestamp.IsZero()},
		{"lastTimestamp", !event.DeprecatedLastTimestamp.IsZero()},
		{"count", event.DeprecatedCount != 0},
		{"source", event.DeprecatedSource != corev1.EventSource{}},
	} {
		if old.set {
			errs = invalid.Append(errs, field.Invalid(field.NewPath(old.name), "", "needs to be unset"))
		}
	}
	return errs
}

func validateSeries(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	if e.Series == nil {
		return nil
	}
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateUpdate: only the series of an event may change.
func validateUpdate(event, old *eventsv1.Event) field.ErrorList {
	errs := core.ValidateEvent(ToCore(event), controller)
	if !equality.Semantic.DeepEqual(event.Series, old.Series) {
		errs = append(errs, validateSeries(event)...)
	}
	same := func(name string, now, was any) {
		errs = append(errs, apivalidation.ValidateImmutableField(now, was, field.NewPath(name))...)
	}
	same("involvedObject", event.Regarding, old.Regarding)
	same("reason", event.Reason, old.Reason)
	same("message", event.Note, old.Note)
	same("source", event.DeprecatedSource, old.DeprecatedSource)
	same("firstTimestamp", event.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp)
	same("lastTimestamp", event.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp)
	same("count", event.DeprecatedCount, old.DeprecatedCount)
	same("type", event.Type, old.Type)
	if !event.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		same("eventTime", event.EventTime, old.EventTime)
	}
	same("action", event.Action, old.Action)
	same("related", event.Related, old.Related)
	same("reportingController", event.ReportingController, old.ReportingController)
	same("reportingInstance", event.ReportingInstance, old.ReportingInstance)
	return errs
}

// ToCore converts to the stored form. The object is new, its parts are shared.
func ToCore(event *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		ObjectMeta:          event.ObjectMeta,
		EventTime:           event.EventTime,
		ReportingController: event.ReportingController,
		ReportingInstance:   event.ReportingInstance,
		Action:              event.Action,
		Reason:              event.Reason,
		InvolvedObject:      event.Regarding,
		Related:             event.Related,
		Message:             event.Note,
		Type:                event.Type,
		Source:              event.DeprecatedSource,
		FirstTimestamp:      event.DeprecatedFirstTimestamp,
		LastTimestamp:       event.DeprecatedLastTimestamp,
		Count:               event.DeprecatedCount,
	}
	out.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	if event.Series != nil {
		out.Series = &corev1.EventSeries{Count: event.Series.Count, LastObservedTime: event.Series.LastObservedTime}
	}
	return out
}

// FromCore converts from the stored form. The object is new, its parts are shared.
func FromCore(event *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		ObjectMeta:               event.ObjectMeta,
		EventTime:                event.EventTime,
		ReportingController:      event.ReportingController,
		ReportingInstance:        event.ReportingInstance,
		Action:                   event.Action,
		Reason:                   event.Reason,
		Regarding:                event.InvolvedObject,
		Related:                  event.Related,
		Note:                     event.Message,
		Type:                     event.Type,
		DeprecatedSource:         event.Source,
		DeprecatedFirstTimestamp: event.FirstTimestamp,
		DeprecatedLastTimestamp:  event.LastTimestamp,
		DeprecatedCount:          event.Count,
	}
	out.TypeMeta = metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"}
	if event.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: event.Series.Count, LastObservedTime: event.Series.LastObservedTime}
	}
	return out
}
