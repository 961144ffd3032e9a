// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"keelson/api/internal/check"
)

// The words that fields may have, in the order messages print them.
var (
	failurePolicies = []admissionv1.FailurePolicyType{admissionv1.Fail, admissionv1.Ignore}
	matchPolicies   = []admissionv1.MatchPolicyType{admissionv1.Equivalent, admissionv1.Exact}
	reinvocations   = []admissionv1.ReinvocationPolicyType{
		admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy,
	}
	scopes = []admissionv1.ScopeType{
		admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope,
	}
	operations = []admissionv1.OperationType{
		admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update,
	}
)

func validateRule(errs *check.List, r *admissionv1.RuleWithOperations) {
	if len(r.Operations) == 0 {
		errs.Required("operations", "")
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionv1.OperationAll) {
		errs.Invalid("operations", r.Operations, "if '*' is present, must not specify other operations")
	}
	check.Each(errs, "operations", r.Operations, func(_ int, op *admissionv1.OperationType) {
		if !slices.Contains(operations, *op) {
			check.NotSupported(errs, "", *op, operations...)
		}
	})
	if len(r.APIGroups) == 0 {
		errs.Required("apiGroups", "")
	}
	if len(r.APIGroups) > 1 && slices.Contains(r.APIGroups, "*") {
		errs.Invalid("apiGroups", r.APIGroups, "if '*' is present, must not specify other API groups")
	}
	if len(r.APIVersions) == 0 {
		errs.Required("apiVersions", "")
	}
	if len(r.APIVersions) > 1 && slices.Contains(r.APIVersions, "*") {
		errs.Invalid("apiVersions", r.APIVersions, "if '*' is present, must not specify other API versions")
	}
	check.Each(errs, "apiVersions", r.APIVersions, func(_ int, v *string) {
		check.Needs(errs, "", *v)
	})
	validateResources(errs, r.Resources)
	check.Pointer(errs, "scope", r.Scope, scopes...)
}

// validateResources refuses lists in which one entry says what another says already: "pods/*" and "pods/log".
func validateResources(errs *check.List, resources []string) {
	if len(resources) == 0 {
		errs.Required("resources", "")
	}
	var wholly, everywhere check.Set // resources with all subresources; subresources of all resources
	plain := false
	check.Each(errs, "resources", resources, func(_ int, r *string) {
		if *r == "" {
			errs.Required("", "")
			return
		}
		res, sub, isSub := strings.Cut(*r, "/")
		if !isSub {
			plain = res != "*"
			return
		}
		if wholly.Has(res) {
			errs.Invalid("", *r, fmt.Sprintf("if '%s/*' is present, must not specify %s", res, *r))
		}
		if everywhere.Has(sub) {
			errs.Invalid("", *r, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, *r))
		}
		if sub == "*" {
			wholly.Add(res)
		}
		if res == "*" {
			everywhere.Add(sub)
		}
	})
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs.Invalid("resources", resources, "if '*/*' is present, must not specify other resources")
	}
	if plain && slices.Contains(resources, "*") {
		errs.Invalid("resources", resources, "if '*' is present, must not specify other resources without subresources")
	}
}

// validateMatch checks what a policy or binding applies to, standing at it.
func validateMatch(errs *check.List, matchResources *admissionv1.MatchResources) {
	if matchResources.MatchPolicy == nil {
		errs.Required("matchPolicy", "")
	}
	check.Pointer(errs, "matchPolicy", matchResources.MatchPolicy, matchPolicies...)
	if matchResources.NamespaceSelector == nil {
		errs.Required("namespaceSelector", "")
	}
	errs.Selector("namespaceSelector", matchResources.NamespaceSelector)
	if matchResources.ObjectSelector == nil {
		errs.Required("objectSelector", "")
	}
	errs.Selector("objectSelector", matchResources.ObjectSelector)
	named := func(_ int, r *admissionv1.NamedRuleWithOperations) {
		var seen check.Set
		check.Each(errs, "resourceNames", r.ResourceNames, func(_ int, name *string) {
			for _, msg := range content.IsPathSegmentName(*name) {
				errs.Invalid("", *name, msg)
			}
			if !seen.Add(*name) {
				errs.Duplicate("", *name)
			}
		})
		validateRule(errs, &r.RuleWithOperations)
	}
	check.Each(errs, "resourceRules", matchResources.ResourceRules, named)
	check.Each(errs, "excludeResourceRules", matchResources.ExcludeResourceRules, named)
}
