// SPDX-License-Identifier: Apache-2.0

package eventlimit

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/apiserver/admission/config"
)

// Type is the key by which a limit counts.
type Type string

// The types: one limit for all events, per namespace, per user, or per source and object.
const (
	Server          Type = "Server"
	Namespace       Type = "Namespace"
	User            Type = "User"
	SourceAndObject Type = "SourceAndObject"
)

var allTypes = []Type{Namespace, Server, SourceAndObject, User}

// Limit limits the rate of events.
type Limit struct {
	Type Type `json:"type"`
	// QPS is the number of events per second, Burst the number at once.
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
	// CacheSize limits the remembered keys; 0: 4096. Server has one key.
	CacheSize int32 `json:"cacheSize,omitempty"`
}

// configuration is the document's format (eventratelimit.admission.k8s.io/v1alpha1 Configuration).
type configuration struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []Limit `json:"limits"`
}

var kind = schema.GroupVersionKind{Group: "eventratelimit.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"}

// Read decodes the plugin's configuration, which is required.
func Read(d *config.Document) ([]Limit, error) {
	if d == nil {
		return nil, field.Invalid(field.NewPath("limits"), []Limit{}, "must not be empty")
	}
	var f configuration
	if err := d.Decode(&f, kind); err != nil {
		return nil, err
	}
	return f.Limits, d.WrapError(invalid.Error(Validate(f.Limits)))
}

// Validate validates limits.
func Validate(limits []Limit) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("limits")
	if len(limits) == 0 {
		errs = append(errs, field.Invalid(at, limits, "must not be empty"))
	}
	for i, limit := range limits {
		if !slices.Contains(allTypes, limit.Type) {
			errs = append(errs, field.NotSupported(at.Index(i).Child("type"), limit.Type, allTypes))
		}
		if limit.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("burst"), limit.Burst, "must be positive"))
		}
		if limit.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("qps"), limit.QPS, "must be positive"))
		}
		if limit.Type != Server && limit.CacheSize < 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("cacheSize"), limit.CacheSize, "must not be negative"))
		}
	}
	return errs
}
