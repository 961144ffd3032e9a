// SPDX-License-Identifier: Apache-2.0

// Package apiregistration describes the kind APIService of
// apiregistration.k8s.io/v1: which server answers for a group version. The
// registry lists it; apiserver/aggregate acts on it.
package apiregistration

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// APIService describes apiregistration.k8s.io/v1 APIService.
func APIService() *kind.Kind {
	gv := v1.SchemeGroupVersion
	return kind.Spec[*v1.APIService]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "APIService",
			Resource:   "apiservices",
			Singular:   "apiservice",
			Categories: []string{"api-extensions"},
		},
		New:     func() *v1.APIService { return &v1.APIService{} },
		NewList: func() runtime.Object { return &v1.APIServiceList{} },
		Default: func(s *v1.APIService) {
			if ref := s.Spec.Service; ref != nil && ref.Port == nil {
				port := int32(443)
				ref.Port = &port
			}
		},
		PrepareCreate: func(s *v1.APIService) {
			s.Status = v1.APIServiceStatus{}
			if s.Spec.Service == nil {
				SetCondition(s, Local)
			}
		},
		PrepareUpdate:  func(s, old *v1.APIService) { s.Status = *old.Status.DeepCopy() },
		Validate:       validate,
		ValidateUpdate: func(s, _ *v1.APIService) field.ErrorList { return validate(s) },
		ValidateName:   path.ValidatePathSegmentName, //nolint:staticcheck // a copy is no better
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "Service",
				Type:        "string",
				Description: "The reference to the service that hosts this API endpoint.",
			},
			{Name: "Available", Type: "string", Description: "Whether this service is available."},
			kind.AgeColumn,
		},
		Row:                   row,
		NoUnconditionalUpdate: true,
		Status: &kind.Sub[*v1.APIService]{
			PrepareUpdate: func(s, old *v1.APIService) {
				s.Spec = old.Spec
				meta.KeepForStatus(s, old)
			},
			ValidateUpdate: func(s, _ *v1.APIService) field.ErrorList { return validateStatus(s) },
		},
	}.Erase()
}

// Local is the condition of what this server answers for itself.
var Local = v1.APIServiceCondition{
	Type:    v1.Available,
	Status:  v1.ConditionTrue,
	Reason:  "Local",
	Message: "Local APIServices are always available",
}

// SetCondition sets c; its time changes only with its status.
func SetCondition(s *v1.APIService, c v1.APIServiceCondition) {
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	i := slices.IndexFunc(s.Status.Conditions, func(have v1.APIServiceCondition) bool { return have.Type == c.Type })
	if i < 0 {
		s.Status.Conditions = append(s.Status.Conditions, c)
		return
	}
	if s.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = s.Status.Conditions[i].LastTransitionTime
	}
	s.Status.Conditions[i] = c
}

// Available returns the condition of that type, or nil.
func Available(s *v1.APIService) *v1.APIServiceCondition {
	for i := range s.Status.Conditions {
		if s.Status.Conditions[i].Type == v1.Available {
			return &s.Status.Conditions[i]
		}
	}
	return nil
}

func row(apiService *v1.APIService) []any {
	service := "Local"
	available := string(v1.ConditionUnknown)
	if ref := apiService.Spec.Service; ref != nil {
		service = ref.Namespace + "/" + ref.Name
	}
	if c := Available(apiService); c != nil {
		available = string(c.Status)
		if c.Status != v1.ConditionTrue && c.Reason != "" {
			available = fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	return []any{apiService.Name, service, available, kind.Age(apiService.CreationTimestamp)}
}

// The bounds of priorities.
const (
	mostGroupPriority   = 20000
	mostVersionPriority = 1000
)

func validate(apiService *v1.APIService) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("spec")
	want := apiService.Spec.Version + "." + apiService.Spec.Group
	for _, n := range [][2]string{{"generateName", apiService.GenerateName}, {"name", apiService.Name}} {
		if n[1] != "" && n[1] != want &&
			len(path.IsValidPathSegmentName(n[1])) == 0 { //nolint:staticcheck // deprecated in favour of a copy
			errs = invalid.Append(errs, field.Invalid(field.NewPath("metadata", n[0]), n[1],
				fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)))
		}
	}
	if apiService.Spec.Group == "" && apiService.Spec.Version != "v1" {
		errs = append(errs,
			field.Required(at.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if apiService.Spec.Group != "" {
		for _, msg := range validation.IsDNS1123Subdomain(apiService.Spec.Group) {
			errs = invalid.Append(errs, field.Invalid(at.Child("group"), apiService.Spec.Group, msg))
		}
	}
	for _, msg := range validation.IsDNS1035Label(apiService.Spec.Version) {
		errs = invalid.Append(errs, field.Invalid(at.Child("version"), apiService.Spec.Version, msg))
	}
	if p := apiService.Spec.GroupPriorityMinimum; p <= 0 || p > mostGroupPriority {
		errs = append(errs, field.Invalid(at.Child("groupPriorityMinimum"), p, "must be positive and less than 20000"))
	}
	if p := apiService.Spec.VersionPriority; p <= 0 || p > mostVersionPriority {
		errs = append(errs, field.Invalid(at.Child("versionPriority"), p, "must be positive and less than 1000"))
	}
	return append(errs, validateService(&apiService.Spec, at)...)
}

func validateService(apiServiceSpec *v1.APIServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if apiServiceSpec.Service == nil {
		if len(apiServiceSpec.CABundle) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("caBundle"), fmt.Sprintf("%d bytes", len(apiServiceSpec.CABundle)),
					"local APIServices may not have a caBundle"))
		}
		if apiServiceSpec.InsecureSkipTLSVerify {
			errs = append(errs, field.Invalid(at.Child("insecureSkipTLSVerify"), true,
				"local APIServices may not have insecureSkipTLSVerify"))
		}
		return errs
	}
	service := at.Child("service")
	if apiServiceSpec.Service.Namespace == "" {
		errs = append(errs, field.Required(service.Child("namespace"), ""))
	}
	if apiServiceSpec.Service.Name == "" {
		errs = append(errs, field.Required(service.Child("name"), ""))
	}
	port := int32(0)
	if apiServiceSpec.Service.Port != nil {
		port = *apiServiceSpec.Service.Port
	}
	if msgs := validation.IsValidPortNum(int(port)); msgs != nil {
		errs = append(errs, field.Invalid(service.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if apiServiceSpec.InsecureSkipTLSVerify && len(apiServiceSpec.CABundle) > 0 {
		errs = append(errs, field.Invalid(at.Child("insecureSkipTLSVerify"), true,
			"may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(s *v1.APIService) field.ErrorList {
	var errs field.ErrorList
	for i, c := range s.Status.Conditions {
		if c.Status != v1.ConditionTrue && c.Status != v1.ConditionFalse && c.Status != v1.ConditionUnknown {
			errs = invalid.Append(errs,
				field.NotSupported(field.NewPath("status", "conditions").Index(i).Child("status"), c.Status,
					[]string{string(v1.ConditionTrue), string(v1.ConditionFalse), string(v1.ConditionUnknown)}))
		}
	}
	return errs
}
