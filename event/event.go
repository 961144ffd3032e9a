// SPDX-License-Identifier: Apache-2.0

// Package event defines the facts that components report about objects ("marks" in the docs, and in the names of
// variables, because Kubernetes' Event objects are something else): which component did what to which object, when,
// and how long it took. timeline, metrics, event/eventlog and tests receive them. The package stores nothing and sends
// nothing over the network.
//
// Invariants:
//  1. Emitting never blocks on a listener's I/O: listeners copy and return.
//  2. An Event and its Detail are immutable once emitted.
//  3. The type of Detail is chosen by Step: one of this package (see details.go) or, where a step is about something
//     that api describes, one of api. So an event survives the trip through JSON (Decode).
package event

import (
	"encoding/json"
	"fmt"
	"time"
)

// Subject names the object a mark is about. Namespace and UID may be empty.
type Subject struct {
	Resource  string `json:"resource"` // plural, lower case: "pods"
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Event is one hand-off. At is when the step began, Took how long it lasted.
type Event struct {
	Step      Step          `json:"step"`
	Component string        `json:"component"` // apiserver, scheduler, kubelet node-1, ...
	At        time.Time     `json:"at"`
	Took      time.Duration `json:"took"` // nanoseconds
	Subject   Subject       `json:"subject"`
	Err       string        `json:"error,omitempty"` // why the step failed; empty when it did not
	// ReportedBy is the node that reported the mark, set by the server; empty: the control plane.
	ReportedBy string `json:"reportedBy,omitempty"`
	Detail     any    `json:"detail,omitempty"`
}

// Listener receives every mark, on the emitter's goroutine. It must be quick and must not call back into the Recorder.
type Listener func(Event)

// Recorder passes marks to its listeners. A nil *Recorder is valid and does nothing.
type Recorder struct{ listeners []Listener }

// NewRecorder returns a recorder with a fixed set of listeners.
func NewRecorder(l ...Listener) *Recorder { return &Recorder{listeners: l} }

// Emit passes m to every listener.
func (r *Recorder) Emit(m Event) {
	if r == nil {
		return
	}
	for _, l := range r.listeners {
		l(m)
	}
}

// Decode reads a mark written by json.Marshal, giving Detail its concrete (pointer) type again. Others make the details
// of steps whose types are not in this package. An unknown step is an error; nothing is returned half-filled.
func Decode(b []byte, others map[Step]func() any) (Event, error) {
	var raw struct {
		Event
		Detail json.RawMessage `json:"detail"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return Event{}, fmt.Errorf("decode mark: %w", err)
	}
	m := raw.Event
	mk := details[m.Step]
	if mk == nil {
		mk = others[m.Step]
	}
	if mk == nil {
		return Event{}, fmt.Errorf("decode mark: unknown step %q", m.Step)
	}
	if len(raw.Detail) > 0 && string(raw.Detail) != "null" {
		d := mk()
		if err := json.Unmarshal(raw.Detail, d); err != nil {
			return Event{}, fmt.Errorf("decode mark %s: %w", m.Step, err)
		}
		m.Detail = d
	}
	return m, nil
}
