// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"slices"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/auth"
)

// Access prevents that users read by a policy what they may not read: a user that configures parameters must have the
// right to get them.
type Access struct {
	Reader     Reader
	Authorizer auth.Authorizer
}

// Guarded are the resources whose writes Check checks.
var Guarded = []schema.GroupVersionResource{
	ValidatingResource, ValidatingBindingResource, MutatingResource, MutatingBindingResource,
}

// Check checks a write of a policy or binding by the user of the attributes; old is nil for a create.
// The error is a 422 Status.
func (a Access) Check(ctx context.Context, of *auth.Attributes, obj, old runtime.Object) error {
	user := of.User
	if user == nil || slices.Contains(user.Groups, auth.Masters) {
		return nil
	}
	switch o := obj.(type) {
	case *registrationv1.ValidatingAdmissionPolicy:
		before, _ := old.(*registrationv1.ValidatingAdmissionPolicy)
		return a.policy(ctx, user, "ValidatingAdmissionPolicy", o.Name, o.Spec.ParamKind,
			before != nil && apiequality.Semantic.DeepEqual(o.Spec.ParamKind, before.Spec.ParamKind))
	case *registrationv1.MutatingAdmissionPolicy:
		before, _ := old.(*registrationv1.MutatingAdmissionPolicy)
		return a.policy(ctx, user, "MutatingAdmissionPolicy", o.Name, o.Spec.ParamKind,
			before != nil && apiequality.Semantic.DeepEqual(o.Spec.ParamKind, before.Spec.ParamKind))
	case *registrationv1.ValidatingAdmissionPolicyBinding:
		before, _ := old.(*registrationv1.ValidatingAdmissionPolicyBinding)
		same := before != nil && before.Spec.PolicyName == o.Spec.PolicyName && apiequality.Semantic.DeepEqual(
			o.Spec.ParamRef, before.Spec.ParamRef)
		return a.binding(ctx, user, "ValidatingAdmissionPolicyBinding", o.Name, ValidatingResource, o.Spec.PolicyName,
			o.Spec.ParamRef, same)
	case *registrationv1.MutatingAdmissionPolicyBinding:
		before, _ := old.(*registrationv1.MutatingAdmissionPolicyBinding)
		same := before != nil && before.Spec.PolicyName == o.Spec.PolicyName && apiequality.Semantic.DeepEqual(
			o.Spec.ParamRef, before.Spec.ParamRef)
		return a.binding(ctx, user, "MutatingAdmissionPolicyBinding", o.Name, MutatingResource, o.Spec.PolicyName,
			o.Spec.ParamRef, same)
	}
	return nil
}

func (a Access) policy(
	ctx context.Context, u *auth.User, kind, name string, k *registrationv1.ParamKind, same bool,
) error {
	if k == nil || same {
		return nil
	}
	ask := a.readAttributes(k)
	ask.Namespace = "*"
	ask.Name = "*"
	why := fmt.Sprintf("user %s must have \"get\" permission on all objects of the referenced paramKind (kind=%s, "+
		"apiVersion=%s)", formatUser(u), k.Kind, k.APIVersion)
	return a.check(ctx, u, ask, kind, name, "paramKind", why)
}

func (a Access) binding(
	ctx context.Context, user *auth.User, kind, name string, policies schema.GroupVersionResource, policy string,
	ref *registrationv1.ParamRef, same bool,
) error {
	if ref == nil || same {
		return nil
	}
	var k *registrationv1.ParamKind
	// without its policy, everything must be readable
	if obj, err := a.Reader.Get(ctx, policies, "", policy); err == nil {
		switch p := obj.(type) {
		case *registrationv1.ValidatingAdmissionPolicy:
			k = p.Spec.ParamKind
		case *registrationv1.MutatingAdmissionPolicy:
			k = p.Spec.ParamKind
		}
	}
	ask := a.readAttributes(k)
	ask.Namespace = ref.Namespace
	ask.Name = ref.Name
	return a.check(ctx, user, ask, kind, name, "paramRef",
		fmt.Sprintf("user %s does not have \"get\" permission on the object referenced by paramRef", formatUser(user)))
}

// readAttributes is the check whether objects of a kind may be read; nil: of any kind.
func (a Access) readAttributes(paramKind *registrationv1.ParamKind) *auth.Attributes {
	ask := &auth.Attributes{
		Verb:            "get",
		Group:           "*",
		Version:         "*",
		Resource:        "*",
		ResourceRequest: true,
	}
	if paramKind == nil {
		return ask
	}
	gv, err := schema.ParseGroupVersion(paramKind.APIVersion)
	if err != nil {
		return ask
	}
	ask.Group = gv.Group
	ask.Version = gv.Version
	if gvr, _, ok := a.Reader.ResourceOf(gv.WithKind(paramKind.Kind)); ok {
		ask.Resource = gvr.Resource
	}
	return ask
}

func (a Access) check(
	ctx context.Context, u *auth.User, attributes *auth.Attributes, kind, name, at, why string,
) error {
	attributes.User = u
	d, err := a.Authorizer.Authorize(ctx, attributes)
	if err != nil {
		why = err.Error()
	}
	if err == nil && d.Verdict == auth.Allow {
		return nil
	}
	return invalid.New(registrationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), name, field.ErrorList{
		field.Forbidden(field.NewPath("spec", at), why),
	})
}

// formatUser formats a user as Kubernetes' messages do.
func formatUser(u *auth.User) string {
	return fmt.Sprintf("&{%s %s %v %v}", u.Name, u.UID, u.Groups, u.Extra)
}
