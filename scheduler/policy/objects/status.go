// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/lib/keyed"
	"keelson/scheduler/policy"
)

type schemaResource = schema.GroupVersionResource

// Conditions and their reasons.
const (
	ready, degraded = "Ready", "Degraded"
	maxMessage      = 4096
)

// status is the status of a SchedulingPolicy.
type status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	Effective          *effective         `json:"effective,omitempty"`
}

type effective struct {
	Generation int64           `json:"generation"`
	Spec       json.RawMessage `json:"spec"`
}

// read compiles the spec of an object.
func read(name string, spec any, at *field.Path) (*policy.Policy, field.ErrorList) {
	var s policy.Spec
	m, ok := spec.(map[string]any)
	if !ok {
		return nil, field.ErrorList{field.Required(at, "")}
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &s); err != nil {
		return nil, field.ErrorList{field.Invalid(at, "", err.Error())}
	}
	return policy.Compile(name, &s, at)
}

// Check validates an object that is created or updated. Its spec must compile, unless it is unchanged.
func Check(obj, old *unstructured.Unstructured) field.ErrorList {
	spec := obj.Object["spec"]
	if old != nil && equality.Semantic.DeepEqual(spec, old.Object["spec"]) {
		return nil
	}
	_, wrong := read(obj.GetName(), spec, field.NewPath("spec"))
	return wrong
}

func statusOf(u *unstructured.Unstructured) (s status) {
	b, err := json.Marshal(u.Object["status"])
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return status{} // not our format: it will be overwritten
	}
	return s
}

// statusCurrent reports whether the status is for the object's generation.
func statusCurrent(u *unstructured.Unstructured) bool {
	s := statusOf(u)
	return s.ObservedGeneration == u.GetGeneration() && meta.FindStatusCondition(s.Conditions, ready) != nil
}

// message lists the errors, and the generation in effect.
func (e *entry) message() string {
	if len(e.errs) == 0 {
		return fmt.Sprintf("generation %d is in effect", e.generation)
	}
	texts := make([]string, len(e.errs))
	for i, w := range e.errs {
		texts[i] = w.Error()
	}
	out := strings.Join(texts, "; ")
	if len(out) > maxMessage {
		out = strings.ToValidUTF8(out[:maxMessage], "") + "..."
	}
	if e.inEffect == nil {
		return out + "; the policy is not in effect"
	}
	return out + fmt.Sprintf("; generation %d stays in effect", e.generation)
}

// desiredStatus returns the status to write.
func (e *entry) desiredStatus() (status, error) {
	was := statusOf(e.obj)
	generation := e.obj.GetGeneration()
	s := status{ObservedGeneration: generation, Conditions: slices.Clone(was.Conditions)}
	set := func(c metav1.Condition) {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&s.Conditions, c)
	}
	c := metav1.Condition{
		Type:    ready,
		Status:  metav1.ConditionTrue,
		Reason:  "InEffect",
		Message: e.message(),
	}
	if len(e.errs) > 0 {
		c.Status = metav1.ConditionFalse
		c.Reason = "Invalid"
	}
	set(c)
	switch {
	case e.evalError != "":
		set(metav1.Condition{
			Type:    degraded,
			Status:  metav1.ConditionTrue,
			Reason:  "EvaluationFailed",
			Message: e.evalError,
		})
	case was.ObservedGeneration != generation || meta.FindStatusCondition(was.Conditions, degraded) == nil:
		set(metav1.Condition{Type: degraded, Status: metav1.ConditionFalse, Reason: "AsExpected"})
	}
	if e.inEffect != nil {
		spec, err := json.Marshal(e.spec)
		if err != nil {
			return s, fmt.Errorf("encode spec: %w", err)
		}
		s.Effective = &effective{Generation: e.generation, Spec: spec}
	}
	return s, nil
}

// Report writes the statuses until ctx is done.
func (f *Follower) Report(ctx context.Context) { _ = f.pending.Run(ctx) } // it returns no error

// report writes the status of an object. After a conflict it is called again: the informer brings the newer version.
func (f *Follower) report(ctx context.Context, name string) error {
	err := f.write(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return keyed.ErrAgain
	}
	return err
}

// write writes the status of an object, unless it is the same already.
func (f *Follower) write(ctx context.Context, name string) error {
	f.mu.Lock()
	e := f.known[name]
	if e == nil {
		f.mu.Unlock()
		return nil
	}
	copied := *e
	f.mu.Unlock()
	s, err := copied.desiredStatus()
	if err != nil {
		return err
	}
	m, err := toMap(s)
	if err != nil {
		return err
	}
	if was, err := toMap(statusOf(copied.obj)); err == nil && reflect.DeepEqual(was, m) {
		return nil
	}
	obj := copied.obj.DeepCopy()
	obj.Object["status"] = m
	_, err = f.cfg.Client.Resource(policy.Resource).UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	return err
}

func toMap(s status) (map[string]any, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "Status", "s": ` + string(b) + `}`)); err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	m, _, err := unstructured.NestedMap(u.Object, "s")
	return m, err
}
