// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// dangling keeps the condition Dangling of flow schemas true to the priority levels that there are.
type dangling struct {
	stored objects.Storage
	owners *apply.Manager
	log    *slog.Logger
	wake   chan struct{} // has room for one

	mu      sync.Mutex
	schemas map[string]*flowcontrolv1.FlowSchema
	levels  map[string]bool
}

// fairnessManager owns the condition, by Kubernetes' name.
const fairnessManager = "api-priority-and-fairness-config-consumer-v1"

// againAfter is when a condition that could not be written is tried again.
const againAfter = 2 * time.Second

func newDangling(stored objects.Storage, owners *apply.Manager, log *slog.Logger) *dangling {
	return &dangling{
		stored: stored, owners: owners, log: log, wake: make(chan struct{}, 1),
		schemas: map[string]*flowcontrolv1.FlowSchema{}, levels: map[string]bool{},
	}
}

// set tells of a flow schema or priority level as it is now.
func (d *dangling) set(obj runtime.Object) {
	d.mu.Lock()
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		d.schemas[o.Name] = o
	case *flowcontrolv1.PriorityLevelConfiguration:
		d.levels[o.Name] = true
	}
	d.mu.Unlock()
	d.look()
}

// remove tells of one that is gone.
func (d *dangling) remove(obj runtime.Object) {
	d.mu.Lock()
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		delete(d.schemas, o.Name)
	case *flowcontrolv1.PriorityLevelConfiguration:
		delete(d.levels, o.Name)
	}
	d.mu.Unlock()
	d.look()
}

func (d *dangling) look() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run writes the conditions until ctx ends.
func (d *dangling) run(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-again.C:
		}
		for name, c := range d.wrong() {
			if err := d.write(ctx, name, c); err != nil && ctx.Err() == nil {
				d.log.Warn("condition of flow schema is not written", "flowschema", name, "err", err)
				again.Reset(againAfter)
			}
		}
	}
}

// wrong are the conditions that are not as they should be, by the schema's name.
func (d *dangling) wrong() map[string]flowcontrolv1.FlowSchemaCondition {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]flowcontrolv1.FlowSchemaCondition{}
	for name, s := range d.schemas {
		level := s.Spec.PriorityLevelConfiguration.Name
		c := flowcontrolv1.FlowSchemaCondition{
			Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
			Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level),
		}
		if !d.levels[level] {
			c.Status, c.Reason = flowcontrolv1.ConditionTrue, "NotFound"
			c.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", level)
		}
		if !hasCondition(s, c) {
			out[name] = c
		}
	}
	return out
}

func hasCondition(s *flowcontrolv1.FlowSchema, want flowcontrolv1.FlowSchemaCondition) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	})
}

var errNoFlowSchema = errors.New("it is no flow schema")

func (d *dangling) write(ctx context.Context, name string, c flowcontrolv1.FlowSchemaCondition) error {
	_, _, _, err := d.stored.Update(ctx, "", name, false, func(_ context.Context, current kind.Object) (kind.Object, error) {
		now, ok := current.(*flowcontrolv1.FlowSchema)
		if !ok {
			return nil, errNoFlowSchema
		}
		if hasCondition(now, c) {
			return current, nil
		}
		out := now.DeepCopy()
		c.LastTransitionTime = metav1.Now().Rfc3339Copy()
		i := slices.IndexFunc(out.Status.Conditions, func(have flowcontrolv1.FlowSchemaCondition) bool { return have.Type == c.Type })
		switch {
		case i < 0:
			out.Status.Conditions = append(out.Status.Conditions, c)
			slices.SortFunc(out.Status.Conditions, func(a, b flowcontrolv1.FlowSchemaCondition) int {
				return strings.Compare(string(a.Type), string(b.Type))
			})
		default:
			if out.Status.Conditions[i].Status == c.Status {
				c.LastTransitionTime = out.Status.Conditions[i].LastTransitionTime
			}
			out.Status.Conditions[i] = c
		}
		return out, d.owners.Update(current, out, fairnessManager)
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
