// SPDX-License-Identifier: Apache-2.0

// Package events describes events.k8s.io/v1: the same stored objects as core/v1
// events under newer names. One is stored, the other is this package's conversion.
package events

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core"
	"keelson/api/kind"
)

// Event describes events.k8s.io/v1 Event.
func Event() *kind.Kind {
	gv := eventsv1.SchemeGroupVersion
	check := func(e *eventsv1.Event) field.ErrorList {
		var errs field.ErrorList
		if e.EventTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
		}
		return append(errs, core.ValidateEvent(ToCore(e))...)
	}
	return kind.Spec[*eventsv1.Event]{
		Names:          kind.Names{Group: gv.Group, Version: gv.Version, Kind: "Event", Resource: "events", Singular: "event", ShortNames: []string{"ev"}, Namespaced: true},
		New:            func() *eventsv1.Event { return &eventsv1.Event{} },
		NewList:        func() runtime.Object { return &eventsv1.EventList{} },
		Validate:       check,
		CreateOnUpdate: true,
		ValidateUpdate: func(e, old *eventsv1.Event) field.ErrorList { return append(check(e), unchanged(e, old)...) },
		Fields: func(e *eventsv1.Event) fields.Set {
			set := fields.Set{}
			for k, v := range core.EventFields(ToCore(e)) {
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
	"involvedObject.kind": "regarding.kind", "involvedObject.namespace": "regarding.namespace", "involvedObject.name": "regarding.name",
	"involvedObject.uid": "regarding.uid", "involvedObject.apiVersion": "regarding.apiVersion",
	"involvedObject.resourceVersion": "regarding.resourceVersion", "involvedObject.fieldPath": "regarding.fieldPath",
	"reportingComponent": "reportingController",
}

// unchanged: only the series of an event may change.
func unchanged(e, old *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	same := func(name string, equal bool, v any) {
		if !equal {
			errs = append(errs, field.Invalid(field.NewPath(name), v, "field is immutable"))
		}
	}
	same("reportingController", e.ReportingController == old.ReportingController, e.ReportingController)
	same("reportingInstance", e.ReportingInstance == old.ReportingInstance, e.ReportingInstance)
	same("action", e.Action == old.Action, e.Action)
	same("reason", e.Reason == old.Reason, e.Reason)
	same("regarding", e.Regarding == old.Regarding, e.Regarding)
	same("note", e.Note == old.Note, e.Note)
	same("type", e.Type == old.Type, e.Type)
	same("eventTime", e.EventTime.Equal(&old.EventTime), e.EventTime)
	return errs
}

// ToCore converts to the stored form. The object is new, its parts are shared.
func ToCore(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		ObjectMeta: e.ObjectMeta, EventTime: e.EventTime, ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, InvolvedObject: e.Regarding, Related: e.Related, Message: e.Note, Type: e.Type,
		Source: e.DeprecatedSource, FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp, Count: e.DeprecatedCount,
	}
	out.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// FromCore converts from the stored form. The object is new, its parts are shared.
func FromCore(e *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		ObjectMeta: e.ObjectMeta, EventTime: e.EventTime, ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, Regarding: e.InvolvedObject, Related: e.Related, Note: e.Message, Type: e.Type,
		DeprecatedSource: e.Source, DeprecatedFirstTimestamp: e.FirstTimestamp, DeprecatedLastTimestamp: e.LastTimestamp, DeprecatedCount: e.Count,
	}
	out.TypeMeta = metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"}
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}
