// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/api/meta"
)

// ControllerRevision describes apps/v1 ControllerRevision.
func ControllerRevision() *kind.Kind {
	return kind.Spec[*appsv1.ControllerRevision]{
		Names:   names("ControllerRevision", "controllerrevisions", "controllerrevision", nil),
		New:     func() *appsv1.ControllerRevision { return &appsv1.ControllerRevision{} },
		NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		Validate: func(r *appsv1.ControllerRevision) field.ErrorList {
			return append(append(meta.Finalizers(r), validateRevision(r)...), validateData(r.Data.Raw)...)
		},
		ValidateUpdate: func(r, old *appsv1.ControllerRevision) field.ErrorList {
			return append(append(meta.Finalizers(r), validateRevision(r)...),
				apivalidation.ValidateImmutableField(r.Data, old.Data, field.NewPath("data"))...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Controller", Type: "string", Description: "Controller of the object"},
			{
				Name:        "Revision",
				Type:        "string",
				Description: "Revision indicates the revision of the state represented by Data.",
			},
			kind.AgeColumn,
		},
		Row: func(r *appsv1.ControllerRevision) []any {
			owner := "<none>"
			if c := metav1.GetControllerOf(r); c != nil {
				owner = controllerName(c)
			}
			return []any{r.Name, owner, r.Revision, kind.Age(r.CreationTimestamp)}
		},
	}.Erase()
}

func validateRevision(r *appsv1.ControllerRevision) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(r.Revision, field.NewPath("revision"))
}

// validateData wants the state of a new revision to be a JSON object.
func validateData(raw []byte) field.ErrorList {
	path := field.NewPath("data")
	if raw == nil {
		return field.ErrorList{field.Required(path, "data is mandatory")}
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return field.ErrorList{field.Invalid(path, "<value omitted>", fmt.Sprintf("error parsing data: %v", err))}
	}
	switch value.(type) {
	case nil:
		return field.ErrorList{field.Required(path, "data is mandatory")}
	case map[string]any:
		return nil
	default:
		return field.ErrorList{field.Required(path, "data must be a valid JSON object")}
	}
}

// controllerName is the owner as kubectl names it: "statefulset.apps/web".
func controllerName(c *metav1.OwnerReference) string {
	gv, err := parseGroup(c.APIVersion)
	if err != nil || gv == "" {
		return strings.ToLower(c.Kind) + "/" + c.Name
	}
	return strings.ToLower(c.Kind) + "." + gv + "/" + c.Name
}

func parseGroup(apiVersion string) (string, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	return gv.Group, err
}
