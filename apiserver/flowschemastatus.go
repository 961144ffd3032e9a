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
	"keelson/lib/keyed"
)

// flowSchemaStatus maintains the condition Dangling of FlowSchemas: whether their priority level exists.
type flowSchemaStatus struct {
	stored objects.Storage
	owners *apply.Manager
	loop   *keyed.Loop[string] // by the name of the flow schema

	mu      sync.Mutex
	schemas map[string]*flowcontrolv1.FlowSchema
	levels  map[string]bool
}

// fairnessManager is the field manager of the condition, named as in Kubernetes.
const fairnessManager = "api-priority-and-fairness-config-consumer-v1"

// retryDelay is the wait after a failed write.
const retryDelay = 2 * time.Second

func newFlowSchemaStatus(stored objects.Storage, owners *apply.Manager, log *slog.Logger) *flowSchemaStatus {
	status := &flowSchemaStatus{
		stored:  stored,
		owners:  owners,
		schemas: map[string]*flowcontrolv1.FlowSchema{},
		levels:  map[string]bool{},
	}
	status.loop = keyed.New(keyed.Config[string]{
		Do:    status.sync,
		Pause: retryDelay,
		Failed: func(name string, err error) {
			log.Warn("write condition of flow schema", "flowschema", name, "err", err)
		},
	})
	return status
}

// set adds or updates a FlowSchema or PriorityLevelConfiguration.
func (d *flowSchemaStatus) set(obj runtime.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		d.schemas[o.Name] = o
		d.loop.Add(o.Name)
	case *flowcontrolv1.PriorityLevelConfiguration:
		d.levels[o.Name] = true
		d.requeueLocked(o.Name)
	}
}

// remove removes a deleted one.
func (d *flowSchemaStatus) remove(obj runtime.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		delete(d.schemas, o.Name)
	case *flowcontrolv1.PriorityLevelConfiguration:
		delete(d.levels, o.Name)
		d.requeueLocked(o.Name)
	}
}

// requeueLocked requeues the FlowSchemas of a priority level.
func (d *flowSchemaStatus) requeueLocked(level string) {
	for name, s := range d.schemas {
		if s.Spec.PriorityLevelConfiguration.Name == level {
			d.loop.Add(name)
		}
	}
}

// run writes the conditions until ctx ends.
func (d *flowSchemaStatus) run(ctx context.Context) error { return d.loop.Run(ctx) }

// sync writes the condition of one FlowSchema if it differs.
func (d *flowSchemaStatus) sync(ctx context.Context, name string) (time.Duration, error) {
	d.mu.Lock()
	flowSchema := d.schemas[name]
	if flowSchema == nil {
		d.mu.Unlock()
		return 0, nil
	}
	level := flowSchema.Spec.PriorityLevelConfiguration.Name
	there := d.levels[level]
	d.mu.Unlock()
	condition := flowcontrolv1.FlowSchemaCondition{
		Type:   flowcontrolv1.FlowSchemaConditionDangling,
		Status: flowcontrolv1.ConditionFalse,
		Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
			level),
	}
	if !there {
		condition.Status = flowcontrolv1.ConditionTrue
		condition.Reason = "NotFound"
		condition.Message = fmt.Sprintf(
			"This FlowSchema references the PriorityLevelConfiguration object named %q but there "+
				"is no such object", level)
	}
	if hasCondition(flowSchema, condition) {
		return 0, nil
	}
	return 0, d.write(ctx, name, condition)
}

func hasCondition(s *flowcontrolv1.FlowSchema, want flowcontrolv1.FlowSchemaCondition) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	})
}

var errNoFlowSchema = errors.New("it is no flow schema")

func (d *flowSchemaStatus) write(ctx context.Context, name string, condition flowcontrolv1.FlowSchemaCondition) error {
	_, _, _, err := d.stored.Update(ctx, "", name, false, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		now, ok := current.(*flowcontrolv1.FlowSchema)
		if !ok {
			return nil, errNoFlowSchema
		}
		if hasCondition(now, condition) {
			return current, nil
		}
		out := now.DeepCopy()
		condition.LastTransitionTime = metav1.Now().Rfc3339Copy()
		i := slices.IndexFunc(out.Status.Conditions, func(have flowcontrolv1.FlowSchemaCondition) bool {
			return have.Type == condition.Type
		})
		switch {
		case i < 0:
			out.Status.Conditions = append(out.Status.Conditions, condition)
			slices.SortFunc(out.Status.Conditions, func(a, b flowcontrolv1.FlowSchemaCondition) int {
				return strings.Compare(string(a.Type), string(b.Type))
			})
		default:
			if out.Status.Conditions[i].Status == condition.Status {
				condition.LastTransitionTime = out.Status.Conditions[i].LastTransitionTime
			}
			out.Status.Conditions[i] = condition
		}
		return out, d.owners.Update(current, out, fairnessManager)
	}))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
