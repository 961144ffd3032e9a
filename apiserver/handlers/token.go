// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/apply"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/auth/authn"
)

// Tokens issues and verifies service-account tokens; *authn.Tokens implements it.
type Tokens interface {
	Issue(b authn.Bound, audiences []string, life time.Duration) (authn.Issued, error)
	// Longest is the maximum lifetime; 0: none.
	Longest() time.Duration
	Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error)
	Audiences() []string
}

const (
	defaultTokenSeconds = 3600
	minTokenSeconds     = 600
)

var tokenRequestGVK = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// tokenRequests serves serviceaccounts/token.
type tokenRequests struct {
	served    *resources.Served
	admission writes.Admitter
	tokens    Tokens
	owners    *apply.Manager
}

func newTokenRequests(served *resources.Served, admission writes.Admitter, tokens Tokens) *tokenRequests {
	owners := apply.New(kind.Spec[*authenticationv1.TokenRequest]{
		Names: kind.Names{
			Group:   tokenRequestGVK.Group,
			Version: tokenRequestGVK.Version,
			Kind:    tokenRequestGVK.Kind,
		},
		New:        func() *authenticationv1.TokenRequest { return &authenticationv1.TokenRequest{} },
		CreateOnly: true,
	}.Erase(), "token")
	return &tokenRequests{
		served:    served,
		admission: admission,
		tokens:    tokens,
		owners:    owners,
	}
}

func (t *tokenRequests) create(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
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
	if ask.Spec.ExpirationSeconds == nil {
		ask.Spec.ExpirationSeconds = new(int64(defaultTokenSeconds))
	}
	if err := t.owners.Update(nil, ask, manager(r, opts.FieldManager)); err != nil {
		return err
	}
	account, err := res.Storage.Get(r.Context(), rq.Namespace, rq.Name, "")
	if err != nil {
		return err
	}
	if err := t.issue(r.Context(), rq, ask, account.Object, opts); err != nil {
		return err
	}
	return writeObject(w, r, http.StatusCreated, ask, tokenRequestGVK)
}

// issue sets ask's status.
func (t *tokenRequests) issue(
	ctx context.Context, rq *pipeline.Request, ask *authenticationv1.TokenRequest, account kind.Object,
	opts *metav1.CreateOptions,
) error {
	if err := isFor(ask, account); err != nil {
		return err
	}
	ask.Name = account.GetName()
	ask.Namespace = account.GetNamespace()
	ask.UID = account.GetUID()
	ask.CreationTimestamp = metav1.Now().Rfc3339Copy()
	ask.Status = authenticationv1.TokenRequestStatus{}
	if errs := validateTokenRequest(&ask.Spec); len(errs) > 0 {
		return invalid.New(tokenRequestGVK.GroupKind(), "", errs)
	}
	res := t.served.BuiltIn(rq.GVR())
	ar := writes.AdmissionRequest(rq, res, admission.Create, ask, nil, opts, writes.IsDryRun(opts.DryRun))
	ar.Kind = tokenRequestGVK
	ar.Spec = nil
	if err := t.admission.Mutate(ctx, rq, ar, res, nil); err != nil {
		return err
	}
	if err := t.admission.Do(ctx, rq, ar, writes.NothingStored); err != nil { // a token is not stored
		return err
	}
	// not earlier: NodeRestriction compares the audiences with those of the pod's volumes
	if len(ask.Spec.Audiences) == 0 {
		ask.Spec.Audiences = t.tokens.Audiences()
	}
	bound := authn.Bound{
		Namespace: ask.Namespace,
		ServiceAccount: authn.Ref{
			Name: account.GetName(),
			UID:  string(account.GetUID()),
		},
	}
	if err := t.bind(ctx, ask, &bound); err != nil {
		return err
	}
	if longest := int64(t.tokens.Longest() / time.Second); longest > 0 && *ask.Spec.ExpirationSeconds > longest {
		rq.Warn(fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *ask.Spec.ExpirationSeconds,
			longest))
		ask.Spec.ExpirationSeconds = &longest
	}
	made, err := t.tokens.Issue(bound, ask.Spec.Audiences, time.Duration(*ask.Spec.ExpirationSeconds)*time.Second)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ask.Status = authenticationv1.TokenRequestStatus{Token: made.Token, ExpirationTimestamp: metav1.NewTime(made.End)}
	rq.Annotate("authentication.kubernetes.io/issued-credential-id", "JTI="+made.ID)
	return nil
}

// isFor returns an error if a request names another service account than that of its path. What it does not name is not
// compared.
func isFor(ask *authenticationv1.TokenRequest, account kind.Object) error {
	kindOf := tokenRequestGVK.GroupKind()
	metadata := field.NewPath("metadata")
	if ask.Name != "" && ask.Name != account.GetName() {
		wrong := field.Invalid(metadata.Child("name"), ask.Name, "must match the service account name if specified")
		return invalid.New(kindOf, account.GetName(), field.ErrorList{wrong})
	}
	if ask.Namespace != "" && ask.Namespace != account.GetNamespace() {
		wrong := field.Invalid(metadata.Child("namespace"), ask.Namespace,
			"must match the service account namespace if specified")
		return invalid.New(kindOf, account.GetName(), field.ErrorList{wrong})
	}
	if ask.UID != "" && ask.UID != account.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Group: kindOf.Group, Resource: kindOf.Kind},
			account.GetName(), fmt.Errorf(
				"the UID in the token request (%s) does not match the UID of the service account (%s)", ask.UID,
				account.GetUID()))
	}
	return nil
}

func validateTokenRequest(s *authenticationv1.TokenRequestSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "expirationSeconds")
	if *s.ExpirationSeconds < minTokenSeconds {
		errs = append(errs,
			field.Invalid(path, *s.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
	}
	if *s.ExpirationSeconds > 1<<32 {
		errs = append(errs,
			field.Invalid(path, *s.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bind binds the token to the object that the request names; the token is valid as long as that object exists.
func (t *tokenRequests) bind(ctx context.Context, ask *authenticationv1.TokenRequest, bound *authn.Bound) error {
	ref := ask.Spec.BoundObjectRef
	if ref == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	gr := map[string]string{"Pod": "pods", "Secret": "secrets", "Node": "nodes"}[gvk.Kind]
	switch {
	case gvk.GroupVersion() == admissionregistrationv1.SchemeGroupVersion &&
		strings.HasSuffix(gvk.Kind, "atingWebhookConfiguration"):
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s (feature gate "+
			"APIServerWebhookAuthenticationToken is disabled)", gvk))
	case gr == "" || gvk.Group != "":
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	ns := ask.Namespace
	if gr == "nodes" {
		ns = ""
	}
	obj, err := t.served.Object(ctx, gr, ns, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != "" && ref.UID != obj.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object "+
				"might have been deleted and then recreated", ref.UID))
	}
	to := &authn.Ref{Name: obj.GetName(), UID: string(obj.GetUID())}
	switch gr {
	case "pods":
		bound.Pod = to
		return t.bindNode(ctx, ask, obj, bound)
	case "secrets":
		bound.Secret = to
	default:
		bound.Node = to
	}
	return nil
}

// bindNode adds the node of the pod to which a token is bound. The pod's service account must be the token's.
func (t *tokenRequests) bindNode(
	ctx context.Context, ask *authenticationv1.TokenRequest, obj kind.Object, bound *authn.Bound,
) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("pod %s is a %T", obj.GetName(), obj))
	}
	if pod.Spec.ServiceAccountName != ask.Name {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", ask.Name))
	}
	if pod.Spec.NodeName == "" {
		return nil
	}
	bound.Node = &authn.Ref{Name: pod.Spec.NodeName}
	node, err := t.served.Object(ctx, "nodes", "", pod.Spec.NodeName)
	if err == nil {
		bound.Node.UID = string(node.GetUID())
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
