// SPDX-License-Identifier: Apache-2.0

// Package decisions describes PodDecision of decisions.keelson.io/v1alpha1: the scheduler's last attempt for a pod, as
// it was recorded when the scheduler decided. PodDecisions are made from that record when somebody reads them, and
// never stored.
package decisions

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"keelson/api/kind"
)

// Kind describes PodDecision.
func Kind() *kind.Kind {
	spec := kind.Spec[*PodDecision]{
		Names: kind.Names{
			Group:      GroupVersion.Group,
			Version:    GroupVersion.Version,
			Kind:       "PodDecision",
			Resource:   "poddecisions",
			Singular:   "poddecision",
			Namespaced: true,
		},
		New:     func() *PodDecision { return &PodDecision{} },
		NewList: func() runtime.Object { return &PodDecisionList{} },
		Columns: []metav1.TableColumnDefinition{
			{Name: "Pod", Type: "string", Format: "name", Description: "Name of the pod"},
			{Name: "Result", Type: "string", Description: "What came of the last attempt"},
			{Name: "Node", Type: "string", Description: "Where the pod goes, or where room is made for it"},
			{Name: "Feasible", Type: "string", Description: "Nodes that fit, of those looked at"},
			{Name: "Reason", Type: "string", Description: "Why that node, or why none"},
			{Name: "Took", Type: "string", Description: "How long the attempt took"},
			{Name: "Age", Type: "string", Description: "How long ago the attempt was"},
		},
		Row: func(d *PodDecision) []any {
			s := &d.Status
			node := s.Node
			if node == "" {
				node = "<none>"
			}
			return []any{
				d.Name, s.Result, node, strconv.Itoa(int(s.Feasible)) + "/" + strconv.Itoa(int(s.Nodes)), s.Reason,
				s.Took.Round(time.Microsecond).String(), duration.HumanDuration(time.Since(d.CreationTimestamp.Time)),
			}
		},
	}.Erase()
	spec.Read = read // it has no protobuf form
	return spec
}

func read(doc []byte, _ bool) (kind.Object, []error, error) {
	d := &PodDecision{}
	if err := json.Unmarshal(doc, d); err != nil {
		return nil, nil, fmt.Errorf("read a PodDecision: %w", err)
	}
	return d, nil, nil
}
