// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/core/volume"
	"keelson/api/gates"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// StatefulSet describes apps/v1 StatefulSet.
func StatefulSet(on gates.On) *kind.Kind {
	return kind.Spec[*appsv1.StatefulSet]{
		Names:   names("StatefulSet", "statefulsets", "statefulset", []string{"all"}, "sts"),
		New:     func() *appsv1.StatefulSet { return &appsv1.StatefulSet{} },
		NewList: func() runtime.Object { return &appsv1.StatefulSetList{} },
		Default: defaultStatefulSet,
		PrepareCreate: func(s *appsv1.StatefulSet) {
			s.Generation = 1
			s.Status = appsv1.StatefulSetStatus{}
			podspec.DropDisabled(&s.Spec.Template.Spec, nil, on)
		},
		PrepareUpdate: func(s, old *appsv1.StatefulSet) {
			s.Status = old.Status
			s.Generation = old.Generation
			podspec.DropDisabled(&s.Spec.Template.Spec, &old.Spec.Template.Spec, on)
			if !equality.Semantic.DeepEqual(s.Spec, old.Spec) {
				s.Generation++
			}
		},
		// Its pods' names begin with its own and are host names.
		ValidateName: apivalidation.NameIsDNSLabel,
		Validate: func(s *appsv1.StatefulSet) field.ErrorList {
			return append(meta.Finalizers(s), validateStatefulSpec(&s.Spec, nil)...)
		},
		ValidateUpdate: validateStatefulUpdate,
		Warnings:       statefulWarnings,
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Ready", Type: "string", Description: "Number of the pod with ready state"},
			kind.AgeColumn,
		}, podspec.TemplateColumns("")[:2]...),
		Row: func(s *appsv1.StatefulSet) []any {
			return append([]any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas,
				replicas(s.Spec.Replicas)), kind.Age(s.CreationTimestamp)},
				podspec.TemplateCells(&s.Spec.Template, nil)[:2]...)
		},
		Status: &kind.Sub[*appsv1.StatefulSet]{
			PrepareUpdate:  func(s, old *appsv1.StatefulSet) { s.Spec = old.Spec },
			ValidateUpdate: validateStatefulStatus,
		},
		Scale: &kind.Scale[*appsv1.StatefulSet]{
			Get: func(s *appsv1.StatefulSet) (int32, int32, string) {
				return replicas(s.Spec.Replicas), s.Status.Replicas, selectorString(s.Spec.Selector)
			},
			Set:  func(s *appsv1.StatefulSet, n int32) { s.Spec.Replicas = &n },
			Path: []string{"spec", "replicas"},
		},
	}.Erase()
}

func defaultStatefulSet(set *appsv1.StatefulSet) {
	spec := &set.Spec
	if spec.PodManagementPolicy == "" {
		spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		kind.Fill(&spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if r := spec.UpdateStrategy.RollingUpdate; r != nil &&
		spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		kind.Fill(&r.Partition, 0)
		kind.Fill(&r.MaxUnavailable, intstr.FromInt32(1))
	}
	kind.Fill(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	for _, p := range []*appsv1.PersistentVolumeClaimRetentionPolicyType{
		&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, &spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
	} {
		if *p == "" {
			*p = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
		}
	}
	kind.Fill(&spec.Replicas, 1)
	kind.Fill(&spec.RevisionHistoryLimit, 10)
	for i := range spec.VolumeClaimTemplates {
		c := &spec.VolumeClaimTemplates[i]
		// the stored form does not hold it
		c.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
		volume.DefaultClaim(c)
	}
	podspec.DefaultTemplate(&spec.Template)
}

func statefulWarnings(s, old *appsv1.StatefulSet) []string {
	out := templateWarnings(&s.Spec.Template, old == nil || s.Generation != old.Generation)
	path := field.NewPath("spec", "volumeClaimTemplates")
	for i := range s.Spec.VolumeClaimTemplates {
		at := path.Index(i)
		if old != nil {
			at = at.Child("Spec") // Kubernetes' own path differs between creates and updates
		}
		out = append(out, podspec.ClaimWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, at)...)
	}
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		out = append(out, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= "+
			"0 is recommended")
	}
	return out
}

// validateStatefulSpec: what was there before, in old, may stay. old is nil on create.
func validateStatefulSpec(spec, old *appsv1.StatefulSetSpec) field.ErrorList {
	path := field.NewPath("spec")
	l := check.At(path)
	switch p := spec.PodManagementPolicy; p {
	case "":
		l.Required("podManagementPolicy", "")
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		l.Invalid("podManagementPolicy", p, fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement,
			appsv1.ParallelPodManagement))
	}
	validateStatefulStrategy(l, &spec.UpdateStrategy)
	if p := spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		l.Within("persistentVolumeClaimRetentionPolicy", func() {
			retain := appsv1.RetainPersistentVolumeClaimRetentionPolicyType
			remove := appsv1.DeletePersistentVolumeClaimRetentionPolicyType
			check.Pointer(l, "whenDeleted", &p.WhenDeleted, retain, remove)
			check.Pointer(l, "whenScaled", &p.WhenScaled, retain, remove)
		})
	}
	if old == nil || !equality.Semantic.DeepEqual(spec.VolumeClaimTemplates, old.VolumeClaimTemplates) {
		check.Each(l, "volumeClaimTemplates", spec.VolumeClaimTemplates, func(_ int, c *corev1.PersistentVolumeClaim) {
			l.Within("spec", func() { podspec.ClaimSpec(l, &c.Spec) })
		})
	}
	l.NotNegative("replicas", int64(replicas(spec.Replicas)))
	l.NotNegative("minReadySeconds", int64(spec.MinReadySeconds))
	if spec.Ordinals != nil {
		l.NotNegative("ordinals.start", int64(spec.Ordinals.Start))
	}
	if spec.ServiceName != "" && (old == nil || old.ServiceName != spec.ServiceName) {
		l.Label("serviceName", spec.ServiceName)
	}
	sel, errs := validateSelector(spec.Selector, path.Child("selector"), "statefulset")
	l.Add(errs...)
	if sel != nil {
		l.Add(matches(&spec.Template, sel, path.Child("template"))...)
		l.Add(podspec.ValidateTemplate(asPods(spec), path.Child("template"))...)
	}
	l.Add(foreverErrors(&spec.Template, path.Child("template"), "StatefulSet")...)
	return l.Errors()
}

// asPods is the template as the pods will see it: with the set's names for hosts, and a volume for each of the claims.
func asPods(spec *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	if len(spec.VolumeClaimTemplates) == 0 && spec.Template.Spec.Subdomain == "" && spec.Template.Spec.Hostname == "" {
		return &spec.Template
	}
	template := spec.Template // shallow; the list of volumes is replaced
	template.Spec.Subdomain = ""
	template.Spec.Hostname = ""
	template.Spec.Volumes = slices.Clone(template.Spec.Volumes)
	first := make(map[string]int, len(template.Spec.Volumes))
	for i := range template.Spec.Volumes {
		if _, ok := first[template.Spec.Volumes[i].Name]; !ok {
			first[template.Spec.Volumes[i].Name] = i
		}
	}
	for i := range spec.VolumeClaimTemplates {
		name := spec.VolumeClaimTemplates[i].Name
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
		if at, ok := first[name]; ok {
			template.Spec.Volumes[at].VolumeSource = source // the claim wins
			continue
		}
		first[name] = len(template.Spec.Volumes)
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
	return &template
}

func validateStatefulStrategy(errs *check.List, strategy *appsv1.StatefulSetUpdateStrategy) {
	const child = "updateStrategy"
	rolling := appsv1.RollingUpdateStatefulSetStrategyType
	onDelete := appsv1.OnDeleteStatefulSetStrategyType
	switch strategy.Type {
	case "":
		errs.Required(child, "")
	case onDelete:
		if strategy.RollingUpdate != nil {
			errs.Add(field.Invalid(errs.Path(child).Child("rollingUpdate"), strategy.RollingUpdate,
				fmt.Sprintf("only allowed for updateStrategy '%s'", rolling)))
		}
	case rolling:
		if strategy.RollingUpdate != nil {
			errs.Within(child, func() {
				errs.Within("rollingUpdate", func() { validateRollingStateful(errs, strategy.RollingUpdate) })
			})
		}
	default:
		errs.Invalid(child, *strategy, fmt.Sprintf("must be '%s' or '%s'", rolling, onDelete))
	}
}

func validateRollingStateful(errs *check.List, strategy *appsv1.RollingUpdateStatefulSetStrategy) {
	if strategy.Partition != nil {
		errs.NotNegative("partition", int64(*strategy.Partition))
	}
	if strategy.MaxUnavailable == nil {
		return
	}
	errs.Add(validateIntOrPercent(strategy.MaxUnavailable, errs.Path("maxUnavailable"))...)
	if amount(strategy.MaxUnavailable) == 0 {
		errs.Invalid("maxUnavailable", strategy.MaxUnavailable, "cannot be 0")
	}
	atMostAll(errs, "maxUnavailable", strategy.MaxUnavailable)
}

func validateStatefulUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	errs := append(meta.Finalizers(s), validateStatefulSpec(&s.Spec, &old.Spec)...)
	was := old.Spec
	was.Replicas = s.Spec.Replicas
	was.Template = s.Spec.Template
	was.UpdateStrategy = s.Spec.UpdateStrategy
	was.MinReadySeconds = s.Spec.MinReadySeconds
	was.Ordinals = s.Spec.Ordinals
	was.RevisionHistoryLimit = s.Spec.RevisionHistoryLimit
	was.PersistentVolumeClaimRetentionPolicy = s.Spec.PersistentVolumeClaimRetentionPolicy
	if !equality.Semantic.DeepEqual(s.Spec, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "+
				"'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "+
				"'minReadySeconds' "+
				"are forbidden"))
	}
	return errs
}

func validateStatefulStatus(set, old *appsv1.StatefulSet) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	status := &set.Status
	number := func(name string, n *int32) check.NamedNumber[int32] {
		return check.NamedNumber[int32]{Name: name, Value: n}
	}
	counts := []check.NamedNumber[int32]{
		number("readyReplicas", &status.ReadyReplicas), number("currentReplicas", &status.CurrentReplicas),
		number("updatedReplicas", &status.UpdatedReplicas),
		number("availableReplicas", &status.AvailableReplicas),
	}
	errs.NotNegative("replicas", int64(status.Replicas))
	check.NotNegatives(errs, counts...)
	errs.NotNegative("observedGeneration", status.ObservedGeneration)
	check.NotNegatives(errs, number("collisionCount", status.CollisionCount))
	for _, c := range counts {
		if *c.Value > status.Replicas {
			errs.Invalid(c.Name, *c.Value, "cannot be greater than status.replicas")
		}
	}
	if status.AvailableReplicas > status.ReadyReplicas {
		errs.Invalid("availableReplicas", status.AvailableReplicas, "cannot be greater than status.readyReplicas")
	}
	if was := old.Status.CollisionCount; was != nil && kind.Value(status.CollisionCount) < *was {
		errs.Invalid("collisionCount", kind.Value(status.CollisionCount), "cannot be decremented")
	}
	return errs.Errors()
}
