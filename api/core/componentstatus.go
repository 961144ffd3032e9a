// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
)

// ComponentStatus describes v1 ComponentStatus, an old way to ask how the control plane is. It is answered, never
// stored.
func ComponentStatus() *kind.Kind {
	return kind.Spec[*corev1.ComponentStatus]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "ComponentStatus",
			Resource:   "componentstatuses",
			Singular:   "componentstatus",
			ShortNames: []string{"cs"},
		},
		New:     func() *corev1.ComponentStatus { return &corev1.ComponentStatus{} },
		NewList: func() runtime.Object { return &corev1.ComponentStatusList{} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Status", Type: "string", Description: "Status of the component conditions"},
			{Name: "Message", Type: "string", Description: "Message of the component conditions"},
			{Name: "Error", Type: "string", Description: "Error of the component conditions"},
		},
		Row: func(c *corev1.ComponentStatus) []any {
			for _, cond := range c.Conditions {
				if cond.Type != corev1.ComponentHealthy {
					continue
				}
				status := "Unhealthy" // also if unknown, as in Kubernetes' table; the message says so
				if cond.Status == corev1.ConditionTrue {
					status = "Healthy"
				}
				return []any{c.Name, status, cond.Message, cond.Error}
			}
			return []any{c.Name, "Unknown", "", ""}
		},
	}.Erase()
}
