// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/auth"
)

// reads allows to get what is listed as "group/resource/namespace/name".
type reads []string

func (r reads) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	for _, may := range r {
		if a.Verb == "get" && may == a.Group+"/"+a.Resource+"/"+a.Namespace+"/"+a.Name {
			return auth.Decision{Verdict: auth.Allow}, nil
		}
	}
	return auth.Decision{}, nil
}

// known is world with one policy, "p", whose parameters are config maps.
type known struct{ world }

func (k known) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (runtime.Object, error) {
	kind := &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	switch {
	case gvr == ValidatingResource && name == "p":
		return &registrationv1.ValidatingAdmissionPolicy{Spec: registrationv1.ValidatingAdmissionPolicySpec{
			ParamKind: kind,
		}}, nil
	case gvr == MutatingResource && name == "p":
		return &registrationv1.MutatingAdmissionPolicy{
			Spec: registrationv1.MutatingAdmissionPolicySpec{ParamKind: kind},
		}, nil
	}
	return k.world.Get(ctx, gvr, namespace, name)
}

func TestAccess(t *testing.T) {
	all := reads{"/configmaps/*/*"}
	one := reads{"/configmaps/dev/limits"}
	ann := &auth.User{Name: "ann", Groups: []string{auth.Authenticated}}
	meta := metav1.ObjectMeta{Name: "x"}
	policy := func(kind string) runtime.Object {
		p := &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta}
		if kind != "" {
			p.Spec.ParamKind = &registrationv1.ParamKind{APIVersion: "v1", Kind: kind}
		}
		return p
	}
	binding := func(policy, name string) runtime.Object {
		b := &registrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec:       registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy},
		}
		if name != "" {
			b.Spec.ParamRef = &registrationv1.ParamRef{Name: name, Namespace: "dev"}
		}
		return b
	}
	mutating := &registrationv1.MutatingAdmissionPolicy{
		ObjectMeta: meta,
		Spec: registrationv1.MutatingAdmissionPolicySpec{ParamKind: &registrationv1.ParamKind{
			APIVersion: "v1",
			Kind:       "ConfigMap",
		}},
	}
	also := &registrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta,
		Spec: registrationv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: "p",
			ParamRef:   &registrationv1.ParamRef{Name: "limits", Namespace: "dev"},
		},
	}
	const noKind = `spec.paramKind: Forbidden: user &{ann  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)`
	const noRef = `spec.paramRef: Forbidden: user &{ann  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef`
	for _, tt := range []struct {
		what     string
		u        *auth.User
		may      reads
		obj, old runtime.Object
		want     string
	}{
		{"no parameters", ann, nil, policy(""), nil, ""},
		{"parameters of all", ann, all, policy("ConfigMap"), nil, ""},
		{"parameters of one", ann, one, policy("ConfigMap"), nil, noKind},
		{"an unknown kind", ann, all, policy("Riddle"), nil, "must have \"get\" permission"},
		{
			"an administrator", &auth.User{Name: "root", Groups: []string{auth.Masters}}, nil, policy("ConfigMap"),
			nil, "",
		},
		{"the same as before", ann, nil, policy("ConfigMap"), policy("ConfigMap"), ""},
		{"others than before", ann, nil, policy("ConfigMap"), policy("Node"), noKind},
		{"a mutating policy", ann, one, mutating, nil, noKind},
		{"a binding without", ann, nil, binding("p", ""), nil, ""},
		{"a binding to one", ann, one, binding("p", "limits"), nil, ""},
		{"a binding to another", ann, one, binding("p", "others"), nil, noRef},
		{"a binding to a policy that is not there", ann, one, binding("q", "limits"), nil, noRef},
		{"a binding that may read everything", ann, reads{"*/*/dev/limits"}, binding("q", "limits"), nil, ""},
		{"a binding as before", ann, nil, binding("p", "limits"), binding("p", "limits"), ""},
		{"a binding of another policy", ann, nil, binding("p", "limits"), binding("q", "limits"), noRef},
		{"a mutating binding", ann, one, also, nil, ""},
		{"a mutating binding refused", ann, nil, also, nil, noRef},
	} {
		check(t, tt.what, Access{Reader: known{}, Authorizer: tt.may}.Check(t.Context(), &auth.Attributes{User: tt.u},
			tt.obj, tt.old), tt.want)
	}
}
