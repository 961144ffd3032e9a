// SPDX-License-Identifier: Apache-2.0

package podsecurity

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"

	"keelson/api/invalid"
	"keelson/apiserver/admission/config"
)

// configuration is the document's format (pod-security.admission.config.k8s.io/v1 PodSecurityConfiguration).
type configuration struct {
	metav1.TypeMeta `json:",inline"`
	Defaults        struct {
		Enforce        string `json:"enforce"`
		EnforceVersion string `json:"enforce-version"`
		Audit          string `json:"audit"`
		AuditVersion   string `json:"audit-version"`
		Warn           string `json:"warn"`
		WarnVersion    string `json:"warn-version"`
	} `json:"defaults"`
	Exemptions struct {
		Usernames      []string `json:"usernames"`
		Namespaces     []string `json:"namespaces"`
		RuntimeClasses []string `json:"runtimeClasses"`
	} `json:"exemptions"`
}

const group = "pod-security.admission.config.k8s.io"

var kinds = []schema.GroupVersionKind{
	{Group: group, Version: "v1", Kind: "PodSecurityConfiguration"},
	{Group: group, Version: "v1beta1", Kind: "PodSecurityConfiguration"},
	{Group: group, Version: "v1alpha1", Kind: "PodSecurityConfiguration"},
}

// Read decodes the plugin's configuration; nil: Kubernetes' defaults.
func Read(d *config.Document) (Config, error) {
	if d == nil {
		return Config{}, nil
	}
	var f configuration
	if err := d.Decode(&f, kinds...); err != nil {
		return Config{}, err
	}
	c, errs := f.read()
	return c, d.WrapError(invalid.Error(errs))
}

func (f *configuration) read() (Config, field.ErrorList) {
	var errs field.ErrorList
	level := func(name, level, version string) api.LevelVersion {
		lv := api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}
		var err error
		if level != "" {
			if lv.Level, err = api.ParseLevel(level); err != nil {
				errs = append(errs, field.Invalid(field.NewPath("defaults", name), level, err.Error()))
			}
		}
		if version != "" {
			if lv.Version, err = api.ParseVersion(version); err != nil {
				errs = append(errs, field.Invalid(field.NewPath("defaults", name+"-version"), version, err.Error()))
			}
		}
		return lv
	}
	c := Config{
		Exemptions: Exemptions{
			Users:          f.Exemptions.Usernames,
			Namespaces:     f.Exemptions.Namespaces,
			RuntimeClasses: f.Exemptions.RuntimeClasses,
		},
	}
	c.Defaults.Enforce = level("enforce", f.Defaults.Enforce, f.Defaults.EnforceVersion)
	c.Defaults.Warn = level("warn", f.Defaults.Warn, f.Defaults.WarnVersion)
	c.Defaults.Audit = level("audit", f.Defaults.Audit, f.Defaults.AuditVersion)
	errs = append(errs, names("namespaces", f.Exemptions.Namespaces, func(s string) []string {
		return validation.ValidateNamespaceName(s, false)
	})...)
	errs = append(errs, names("runtimeClasses", f.Exemptions.RuntimeClasses, func(s string) []string {
		return validation.NameIsDNSSubdomain(s, false)
	})...)
	errs = append(errs, names("usernames", f.Exemptions.Usernames, func(s string) []string {
		if s == "" {
			return []string{"username must not be empty"}
		}
		return nil
	})...)
	return c, errs
}

// names validates a list of exemptions: each valid, no duplicates.
func names(what string, list []string, faults func(string) []string) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, name := range list {
		at := field.NewPath("exemptions", what).Index(i)
		switch bad := faults(name); {
		case len(bad) > 0:
			errs = append(errs, field.Invalid(at, name, strings.Join(bad, ", ")))
		case seen[name]:
			errs = append(errs, field.Duplicate(at, name))
		}
		seen[name] = true
	}
	return errs
}
