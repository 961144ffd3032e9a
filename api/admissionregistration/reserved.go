// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// staticSuffix ends the names of what Kubernetes reads from files on the server; none such can be made through the API.
const staticSuffix = ".static.k8s.io"

const reservedName = "names ending with %q are reserved for static manifest-based configurations and cannot be " +
	"managed via the API"

func validateReserved(obj metav1.Object) field.ErrorList {
	if !strings.HasSuffix(obj.GetName(), staticSuffix) {
		return nil
	}
	return field.ErrorList{
		field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), fmt.Sprintf(reservedName, staticSuffix)),
	}
}

// warnReserved is for objects that had their names before these were reserved.
func warnReserved[T metav1.Object](obj, _ T) []string {
	if !strings.HasSuffix(obj.GetName(), staticSuffix) {
		return nil
	}
	return []string{"metadata.name: " + fmt.Sprintf(reservedName, staticSuffix)}
}

// unseen are the resources about which no webhook is asked: reviews, which store nothing.
var unseen = []schema.GroupResource{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

// warnUnseen warns about rules for resources that are never sent to webhooks. A wildcard may mean something else.
func warnUnseen(hooks []admissionv1.MutatingWebhook) []string {
	var out []string
	for i := range hooks {
		for j := range hooks[i].Rules {
			path := field.NewPath("webhooks").Index(i).Child("rules").Index(j)
			for _, gr := range namedUnseen(&hooks[i].Rules[j].Rule) {
				out = append(out,
					fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no effect", path, gr))
			}
		}
	}
	return out
}

func namedUnseen(r *admissionv1.Rule) []schema.GroupResource {
	if slices.Contains(r.APIGroups, "*") || slices.Contains(r.Resources, "*") {
		return nil
	}
	var out []schema.GroupResource
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			if gr := (schema.GroupResource{Group: group, Resource: resource}); slices.Contains(unseen, gr) &&
				!slices.Contains(out, gr) {
				out = append(out, gr)
			}
		}
	}
	return out
}
