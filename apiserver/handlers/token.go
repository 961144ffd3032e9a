// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/registry"
	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/auth/authn"
)

// Tokens issues and checks service-account tokens; *authn.Tokens does.
type Tokens interface {
	Issue(b authn.Bound, audiences []string, life time.Duration) (token string, end time.Time, err error)
	Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error)
	Audiences() []string
}

const (
	defaultTokenSeconds  = 3600
	shortestTokenSeconds = 600
)

var tokenRequestGVK = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// token serves serviceaccounts/token.
func (h *Handler) token(tokens Tokens) Special {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error {
		if rq.Verb != "create" {
			return wire.MethodNotAllowed()
		}
		opts, err := createOptions(r)
		if err != nil {
			return err
		}
		body, err := decodeAs(r, rq, tokenRequestGVK, &authenticationv1.TokenRequest{}, opts.FieldValidation)
		if err != nil {
			return err
		}
		ask, ok := body.(*authenticationv1.TokenRequest)
		if !ok {
			return apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", body))
		}
		account, err := res.Storage.Get(r.Context(), rq.Namespace, rq.Name, "")
		if err != nil {
			return err
		}
		if err := h.issue(r.Context(), rq, tokens, ask, account.Object, opts); err != nil {
			return err
		}
		return writeObject(w, r, http.StatusCreated, ask, tokenRequestGVK)
	}
}

// issue fills in ask's status.
func (h *Handler) issue(
	ctx context.Context, rq *pipeline.Request, tokens Tokens, ask *authenticationv1.TokenRequest, account kind.Object, opts *metav1.CreateOptions,
) error {
	if ask.Name != "" && ask.Name != account.GetName() {
		return apierrors.NewBadRequest(fmt.Sprintf("the service account name in the token request (%s) does not match the name on the URL (%s)", ask.Name, account.GetName()))
	}
	if ask.Namespace != "" && ask.Namespace != account.GetNamespace() {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	ask.Name, ask.Namespace = account.GetName(), account.GetNamespace()
	ask.CreationTimestamp = metav1.Now().Rfc3339Copy()
	if ask.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultTokenSeconds)
		ask.Spec.ExpirationSeconds = &seconds
	}
	if len(ask.Spec.Audiences) == 0 {
		ask.Spec.Audiences = tokens.Audiences()
	}
	if errs := validateTokenRequest(&ask.Spec); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: tokenRequestGVK.Group, Kind: tokenRequestGVK.Kind}, "", errs)
	}
	res := h.resources[rq.GVR()]
	ar := h.admissionRequest(rq, res, admission.Create, ask, nil, opts, isDryRun(opts.DryRun))
	ar.Kind, ar.Spec = tokenRequestGVK, nil
	if err := h.mutate(ctx, rq, ar, res, nil); err != nil {
		return err
	}
	if err := h.check(ctx, rq, ar); err != nil {
		return err
	}
	bound := authn.Bound{Namespace: ask.Namespace, ServiceAccount: authn.Ref{Name: account.GetName(), UID: string(account.GetUID())}}
	if err := h.bindToken(ctx, ask, &bound); err != nil {
		return err
	}
	token, end, err := tokens.Issue(bound, ask.Spec.Audiences, time.Duration(*ask.Spec.ExpirationSeconds)*time.Second)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ask.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(end)}
	return nil
}

func validateTokenRequest(s *authenticationv1.TokenRequestSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "expirationSeconds")
	if *s.ExpirationSeconds < shortestTokenSeconds {
		errs = append(errs, field.Invalid(path, *s.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
	}
	if *s.ExpirationSeconds > 1<<32 {
		errs = append(errs, field.Invalid(path, *s.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bindToken ties the token to the object that the request names: it ends with that object.
func (h *Handler) bindToken(ctx context.Context, ask *authenticationv1.TokenRequest, bound *authn.Bound) error {
	ref := ask.Spec.BoundObjectRef
	if ref == nil {
		return nil
	}
	gr := map[string]string{"v1/Pod": "pods", "v1/Secret": "secrets", "v1/Node": "nodes"}[ref.APIVersion+"/"+ref.Kind]
	if gr == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to object of type %s, Kind=%s", ask.Name, ref.APIVersion, ref.Kind))
	}
	ns := ask.Namespace
	if gr == "nodes" {
		ns = ""
	}
	obj, err := h.object(ctx, gr, ns, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != "" && ref.UID != obj.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: gr}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	to := &authn.Ref{Name: obj.GetName(), UID: string(obj.GetUID())}
	switch gr {
	case "pods":
		bound.Pod = to
		return h.bindTokenNode(ctx, ask, obj, bound)
	case "secrets":
		bound.Secret = to
	default:
		bound.Node = to
	}
	return nil
}

// bindTokenNode notes the node of the pod a token is bound to, whose service account must be the token's.
func (h *Handler) bindTokenNode(ctx context.Context, ask *authenticationv1.TokenRequest, obj kind.Object, bound *authn.Bound) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("pod %s is a %T", obj.GetName(), obj))
	}
	if pod.Spec.ServiceAccountName != ask.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", ask.Name))
	}
	if pod.Spec.NodeName == "" {
		return nil
	}
	bound.Node = &authn.Ref{Name: pod.Spec.NodeName}
	node, err := h.object(ctx, "nodes", "", pod.Spec.NodeName)
	if err == nil {
		bound.Node.UID = string(node.GetUID())
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// object returns a core object as it is now.
func (h *Handler) object(ctx context.Context, resource, namespace, name string) (kind.Object, error) {
	res := h.resources[corev1.SchemeGroupVersion.WithResource(resource)]
	if res == nil {
		return nil, apierrors.NewInternalError(errors.New("resource " + resource + " is not served"))
	}
	e, err := res.Storage.Get(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}
