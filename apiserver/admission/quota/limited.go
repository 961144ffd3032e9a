// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/quota"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
)

// Limited is a resource that may be used only if a quota of the namespace covers it.
type Limited struct {
	APIGroup string `json:"apiGroup,omitempty"`
	Resource string `json:"resource"`
	// MatchContains: usage under a name that contains one of these needs a quota with that name.
	MatchContains []string `json:"matchContains,omitempty"`
	// MatchScopes: an object in one of these scopes needs a quota with that scope.
	MatchScopes []corev1.ScopedResourceSelectorRequirement `json:"matchScopes,omitempty"`
}

// configuration is the document's format.
type configuration struct {
	metav1.TypeMeta  `json:",inline"`
	LimitedResources []Limited `json:"limitedResources"`
}

var kinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "ResourceQuotaConfiguration"},
	{Group: "resourcequota.admission.k8s.io", Version: "v1", Kind: "Configuration"},
	{Group: "resourcequota.admission.k8s.io", Version: "v1beta1", Kind: "Configuration"},
	{Group: "resourcequota.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"},
}

// Read decodes the plugin's configuration; nil: nothing is limited by default.
func Read(document *config.Document) ([]Limited, error) {
	if document == nil {
		return nil, nil
	}
	var f configuration
	if err := document.Decode(&f, kinds...); err != nil {
		return nil, err
	}
	var errs field.ErrorList
	for i, l := range f.LimitedResources {
		if l.Resource == "" {
			errs = append(errs, field.Required(field.NewPath("limitedResources").Index(i).Child("resource"), ""))
		}
	}
	return f.LimitedResources, document.WrapError(invalid.Error(errs))
}

// checkLimited rejects the use of a limited resource that no quota of the namespace covers.
func (p *Plugin) checkLimited(a *chargeRequest, quotas []*corev1.ResourceQuota) error {
	if len(p.limited) == 0 {
		return nil
	}
	gr := a.r.Resource.GroupResource()
	var names []corev1.ResourceName
	var wanted []corev1.ScopedResourceSelectorRequirement
	for _, l := range p.limited {
		in, err := a.meter.Matching(l.MatchScopes, a.r.Object)
		if err != nil {
			return nil //nolint:nilerr // as in Kubernetes, an error is no rejection
		}
		wanted = append(wanted, in...)
		if l.Resource != gr.Resource || l.APIGroup != gr.Group {
			continue
		}
		for n, v := range a.meter.Usage(a.r.Object, a.now) {
			if v.Sign() > 0 && containsAny(string(n), l.MatchContains) && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	if len(names) == 0 && len(wanted) == 0 || !a.increasesUsage() {
		return nil
	}
	var covered []corev1.ResourceName
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, q := range quotas {
		in, err := a.meter.Matching(quota.Scopes(q), a.r.Object)
		if err != nil {
			return fmt.Errorf("error matching scopes of quota %s, err: %w", q.Name, err)
		}
		scopes = append(scopes, in...)
		if ok, err := a.meter.Applies(q, a.r.Object); err == nil && ok {
			covered = append(covered, a.meter.Tracked(q.Status.Hard)...)
		}
	}
	names = slices.DeleteFunc(names, func(n corev1.ResourceName) bool { return slices.Contains(covered, n) })
	if len(names) > 0 {
		slices.Sort(names)
		return admission.Forbidden(a.r, "insufficient quota to consume: %s", quota.Joined(names))
	}
	wanted = slices.DeleteFunc(wanted, func(w corev1.ScopedResourceSelectorRequirement) bool {
		return slices.ContainsFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool {
			return s.ScopeName == w.ScopeName
		})
	})
	if len(wanted) > 0 {
		return admission.Forbidden(a.r, "insufficient quota to match these scopes: %v", wanted)
	}
	return nil
}

func containsAny(s string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(s, p) })
}

// increasesUsage reports whether the request increases the usage.
func (a *chargeRequest) increasesUsage() bool {
	usage := a.meter.Usage(a.r.Object, a.now)
	if a.old != nil {
		usage = quota.Floor(quota.Minus(usage, a.meter.Usage(a.old, a.now)))
	}
	return len(quota.NonZero(usage)) > 0
}
