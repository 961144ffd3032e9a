// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"keelson/lib/quantity"
)

// Patch is the stored form of a pod template: the strategic merge patch that restores it, as kubectl rollout undo sends
// it. kubectl compares these bytes, so keys are sorted as kubectl does.
func Patch(t *corev1.PodTemplateSpec) ([]byte, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	var template map[string]any
	if err := json.Unmarshal(b, &template); err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// Template decodes the pod template of a revision.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	return template(r.Data.Raw)
}

func template(patch []byte) (*corev1.PodTemplateSpec, error) {
	var stored struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := quantity.CheckJSON(patch, reflect.TypeOf(stored)); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err) // to the API server, the data of a revision is any JSON
	}
	if err := json.Unmarshal(patch, &stored); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err)
	}
	if stored.Spec.Template == nil {
		return nil, fmt.Errorf("decode pod template: there is no spec.template")
	}
	return stored.Spec.Template, nil
}

// equal reports whether r has the template of patch. Other versions of Kubernetes write some empty fields that ours
// omits, so different bytes may be the same template.
func equal(r *appsv1.ControllerRevision, patch []byte, t *corev1.PodTemplateSpec) bool {
	if bytes.Equal(r.Data.Raw, patch) {
		return true
	}
	stored, err := Template(r)
	return err == nil && equality.Semantic.DeepEqual(stored, t)
}
