// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/api/resources"
)

// PersistentVolumeClaim describes v1 PersistentVolumeClaim.
func PersistentVolumeClaim() *kind.Kind {
	type claim = corev1.PersistentVolumeClaim
	return kind.Spec[*claim]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "PersistentVolumeClaim",
			Resource:   "persistentvolumeclaims",
			Singular:   "persistentvolumeclaim",
			ShortNames: []string{"pvc"},
			Namespaced: true,
		},
		New:     func() *claim { return &claim{} },
		NewList: func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		Default: DefaultClaim,
		PrepareCreate: func(c *claim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			dropForeignSource(&c.Spec, nil)
			normalSource(&c.Spec, nil)
		},
		PrepareUpdate: func(c, old *claim) {
			c.Status = old.Status
			dropForeignSource(&c.Spec, &old.Spec)
			normalSource(&c.Spec, &old.Spec)
		},
		Validate:       validateClaim,
		ValidateUpdate: validateClaimUpdate,
		Warnings: func(c, _ *claim) []string {
			var out []string
			if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
				out = append(out,
					`metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead`)
			}
			return append(out, podspec.ClaimWarnings(&c.Spec, field.NewPath("spec"))...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Status", Type: "string", Description: corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]},
			{
				Name:        "Volume",
				Type:        "string",
				Description: corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"],
			},
			{
				Name:        "Capacity",
				Type:        "string",
				Description: corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"],
			},
			{
				Name:        "Access Modes",
				Type:        "string",
				Description: corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"],
			},
			{Name: "StorageClass", Type: "string", Description: "StorageClass of the pvc"},
			{Name: "VolumeAttributesClass", Type: "string", Description: "VolumeAttributesClass of the pvc"},
			kind.AgeColumn,
			{
				Name:        "VolumeMode",
				Type:        "string",
				Priority:    1,
				Description: corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"],
			},
		},
		Row: claimRow,
		Status: &kind.Sub[*claim]{
			PrepareUpdate: func(c, old *claim) {
				c.Spec = old.Spec
				if old.Status.HealthStatus == nil {
					c.Status.HealthStatus = nil // behind a gate that is off
				}
			},
			ValidateUpdate: func(c, _ *claim) field.ErrorList { return validateClaimStatus(c) },
		},
	}.Erase()
}

// DefaultClaim fills in what a claim, or a template of one, leaves out.
func DefaultClaim(c *corev1.PersistentVolumeClaim) {
	if c.Status.Phase == "" {
		c.Status.Phase = corev1.ClaimPending
	}
	kind.Fill(&c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	resources.RoundUp(c.Spec.Resources.Limits)
	resources.RoundUp(c.Spec.Resources.Requests)
}

// dropForeignSource: the gate CrossNamespaceVolumeDataSource is off. old is nil on create.
func dropForeignSource(s, old *corev1.PersistentVolumeClaimSpec) {
	if old != nil && old.DataSourceRef != nil && kind.Value(old.DataSourceRef.Namespace) != "" {
		return
	}
	if s.DataSourceRef != nil && kind.Value(s.DataSourceRef.Namespace) != "" {
		s.DataSourceRef = nil
	}
}

// normalSource gives both fields for a source of data the same value. A source that only the newer field may name is
// dropped from the older one, unless it was there before.
func normalSource(spec, old *corev1.PersistentVolumeClaimSpec) {
	if old != nil && (old.DataSource != nil || old.DataSourceRef != nil) {
		return
	}
	if d := spec.DataSource; d != nil && spec.DataSourceRef == nil && !olderSource(d) {
		spec.DataSource = nil
	}
	switch d, ref := spec.DataSource, spec.DataSourceRef; {
	case d != nil && ref == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case ref != nil && d == nil && kind.Value(ref.Namespace) == "":
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
}

func olderSource(d *corev1.TypedLocalObjectReference) bool {
	group := kind.Value(d.APIGroup)
	return d.Kind == "PersistentVolumeClaim" && group == "" ||
		d.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"
}

func claimRow(claim *corev1.PersistentVolumeClaim) []any {
	phase := string(claim.Status.Phase)
	capacity := ""
	modes := ""
	if claim.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if claim.Spec.VolumeName != "" {
		modes = accessModes(claim.Status.AccessModes)
		size := claim.Status.Capacity[corev1.ResourceStorage]
		capacity = size.String()
	}
	class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok {
		class = kind.Value(claim.Spec.StorageClassName)
	}
	return []any{
		claim.Name, phase, claim.Spec.VolumeName, capacity, modes, class, orUnset(claim.Spec.VolumeAttributesClassName),
		kind.Age(claim.CreationTimestamp),
		orUnset(claim.Spec.VolumeMode),
	}
}

func orUnset[T ~string](p *T) string {
	if p == nil {
		return "<unset>"
	}
	return string(*p)
}

// accessModes are the modes as printed: "RWO,ROX".
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		text string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {
		corev1.ReadWriteOncePod, "RWOP",
	}} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.text)
		}
	}
	return strings.Join(out, ",")
}

func validateClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(c)...)
	l.Within("spec", func() {
		podspec.ClaimSpec(l, &c.Spec)
	})
	return l.Errors()
}

// validateClaimUpdate: a claim may take a volume once, and grow.
func validateClaimUpdate(claim, old *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := validateClaim(claim)
	path := field.NewPath("spec")
	now := claim.DeepCopy()
	was := old.DeepCopy()
	if was.Spec.VolumeName == "" {
		was.Spec.VolumeName = now.Spec.VolumeName
	}
	class := claim.Annotations[corev1.BetaStorageClassAnnotation]
	oldClass := old.Annotations[corev1.BetaStorageClassAnnotation]
	if class != oldClass {
		errs = append(errs,
			field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation), class,
				"field is immutable"))
	}
	bound := claim.Status.Phase == corev1.ClaimBound
	if was.Spec.StorageClassName == nil && !bound {
		was.Spec.StorageClassName = now.Spec.StorageClassName // the default class comes late
	}
	if bound {
		if now.Spec.Resources.Requests != nil {
			now.Spec.Resources.Requests[corev1.ResourceStorage] = was.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		now.Spec.VolumeAttributesClassName = was.Spec.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(now.Spec, was.Spec) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf(
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound "+
				"claims\n%v", cmp.Diff(was.Spec, now.Spec))))
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	oldSize := old.Spec.Resources.Requests[corev1.ResourceStorage]
	given := old.Status.Capacity[corev1.ResourceStorage]
	if size.Cmp(oldSize) < 0 && size.Cmp(given) <= 0 {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"),
			"field can not be less than status.capacity"))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(claim.Spec.VolumeMode, old.Spec.VolumeMode,
		field.NewPath("volumeMode"))...)
	if a, b := claim.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName; bound && b != nil && *b != "" {
		switch at := path.Child("volumeAttributesClassName"); {
		case a == nil:
			errs = append(errs, field.Forbidden(at, "update from non-nil value to nil is forbidden"))
		case *a == "":
			errs = append(errs, field.Forbidden(at, "update from non-empty value to empty is forbidden"))
		}
	}
	return errs
}

func validateClaimStatus(c *corev1.PersistentVolumeClaim) field.ErrorList {
	l := check.At(nil)
	if len(c.Spec.AccessModes) == 0 {
		l.Within("Spec", func() { l.Required("accessModes", "") })
	}
	l.In("status")
	amounts(l, "capacity", c.Status.Capacity)
	resizing(l, &c.Status)
	return l.Errors()
}

// resizing checks how far the growing of a claim has come.
func resizing(errs *check.List, status *corev1.PersistentVolumeClaimStatus) {
	known := func(child, name string) bool {
		from := errs.Len()
		if errs.Qualified(child, name); errs.Len() > from {
			return false
		}
		if native := !strings.Contains(name, "/") || strings.Contains(name,
			corev1.ResourceDefaultNamespacePrefix); native && name != string(corev1.ResourceStorage) {
			check.NotSupported(errs, child, name, corev1.ResourceStorage)
			return false
		}
		return true
	}
	steps := []corev1.ClaimResourceStatus{
		corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
		corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible,
		corev1.PersistentVolumeClaimNodeResizePending,
	}
	for _, name := range slices.Sorted(maps.Keys(status.AllocatedResourceStatuses)) {
		known("allocatedResourceStatuses", string(name))
		if !slices.Contains(steps, status.AllocatedResourceStatuses[name]) {
			check.NotSupported(errs, "allocatedResourceStatuses", name, steps...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(status.AllocatedResources)) {
		if known("allocatedResources", string(name)) {
			amounts(errs, "allocatedResources", corev1.ResourceList{name: status.AllocatedResources[name]})
		}
	}
}

// amounts wants no negative quantities.
func amounts(l *check.List, child string, list corev1.ResourceList) {
	l.In(child)
	defer l.Out()
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; q.Sign() < 0 {
			l.Add(field.Invalid(l.Path("").Key(string(name)), q.Value(), "must be a valid resource quantity"))
		}
	}
}
