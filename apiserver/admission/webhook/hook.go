// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/expression"
	"keelson/apiserver/admission/matching"
)

// hook is one configured webhook.
type hook struct {
	config, name string
	uid          string // unique among all configurations
	criteria     *matching.Criteria
	configErr    error // why the configuration is invalid; the failure policy then decides about every request
	policy       *registrationv1.FailurePolicyType
	sideEffects  *registrationv1.SideEffectClass
	timeout      time.Duration
	reinvoke     bool
	version      string // of AdmissionReview: the first supported one of its list; empty: none

	conditions func() *expression.Conditions // compiled on first use
	client     func() (*webhookClient, error)
	// cached is the client after its first use; close closes its connections.
	mu     sync.Mutex
	cached *webhookClient
}

// settings are the common fields of both kinds of webhooks.
type settings struct {
	name       string
	client     registrationv1.WebhookClientConfig
	rules      []registrationv1.RuleWithOperations
	policy     *registrationv1.FailurePolicyType
	match      *registrationv1.MatchPolicyType
	namespaces *metav1.LabelSelector
	objects    *metav1.LabelSelector
	effects    *registrationv1.SideEffectClass
	timeout    *int32
	versions   []string
	conditions []registrationv1.MatchCondition
	reinvoke   bool
}

func (p *plugin) newHook(config string, index int, s settings) *hook {
	h := &hook{
		config:      config,
		name:        s.name,
		uid:         fmt.Sprintf("%s/%s/%d", config, s.name, index),
		policy:      s.policy,
		sideEffects: s.effects,
		reinvoke:    s.reinvoke,
	}
	if i := slices.IndexFunc(s.versions, func(v string) bool { return slices.Contains(versions, v) }); i >= 0 {
		h.version = s.versions[i]
	}
	if s.timeout != nil {
		h.timeout = time.Duration(*s.timeout) * time.Second
	}
	h.criteria, h.configErr = matching.New(matching.Named(s.rules), nil, s.match, s.namespaces, s.objects)
	h.conditions = sync.OnceValue(func() *expression.Conditions {
		return expression.Compile(s.conditions, s.policy, func(
			op admission.Operation, took time.Duration, failed int, excluded bool,
		) {
			p.Metrics.Conditions(s.name, "webhook", p.step, op, took, failed, excluded)
		})
	})
	h.client = sync.OnceValues(func() (*webhookClient, error) {
		c, err := newWebhookClient(&s.client, p.Resolve, p.Outbound, p.Credentials)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.cached = c
		return c, err
	})
	return h
}

func (h *hook) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cached != nil {
		h.cached.close()
	}
}

func (h *hook) ignoresFailure() bool { return h.policy != nil && *h.policy == registrationv1.Ignore }

// invocation is a request to be sent to a hook.
type invocation struct {
	hook   *hook
	target *matching.Target
	// obj and old are the request's objects in the version of the hook's rule; nil if there are none.
	obj, old runtime.Object
}

// invoke returns the invocation of h for req; nil if h does not match req.
func (p *plugin) invoke(ctx context.Context, h *hook, req *admission.Request) (*invocation, error) {
	if h.configErr != nil {
		return nil, apierrors.NewInternalError(h.configErr)
	}
	target, err := h.criteria.Match(ctx, req, p.Reader)
	if err != nil || target == nil {
		return nil, err
	}
	v := &invocation{
		hook:   h,
		target: target,
		obj:    req.Object,
		old:    req.OldObject,
	}
	if v.obj, err = matching.ToTarget(ctx, p.Reader, req.Object, req, target); err == nil {
		v.old, err = matching.ToTarget(ctx, p.Reader, req.OldObject, req, target)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	c := h.conditions()
	if c == nil {
		return v, nil
	}
	in := expression.NewInput(req, target.Resource, target.Kind, v.obj, v.old, nil, p.Authorizer)
	ok, err := c.Match(ctx, in)
	if err != nil {
		return nil, admission.Forbidden(req, "%w", err)
	}
	if !ok {
		return nil, nil
	}
	return v, nil
}

// failure is a failed webhook call; the failure policy decides about the request.
type failure struct {
	name string
	err  error
}

func (f *failure) Error() string { return fmt.Sprintf("failed calling webhook %q: %v", f.name, f.err) }

func (f *failure) Unwrap() error { return f.err }

// code is the HTTP status of the failure.
func (f *failure) code() int {
	if s, ok := errors.AsType[*apierrors.StatusError](f.err); ok {
		return int(s.ErrStatus.Code)
	}
	return http.StatusServiceUnavailable
}

// denied is a rejection by a webhook.
type denied struct{ *apierrors.StatusError }

// call calls the webhook. The error is a *failure, or the error of the request.
func (v *invocation) call(
	ctx context.Context, req *admission.Request, mutating bool,
) (*admissionv1.AdmissionResponse, error) {
	hook := v.hook
	fail := func(err error) error { return &failure{hook.name, err} }
	if req.DryRun {
		switch {
		case hook.sideEffects == nil:
			return nil, fail(errors.New("Webhook SideEffects is nil")) //nolint:staticcheck // Kubernetes' message
		case *hook.sideEffects != registrationv1.SideEffectClassNone &&
			*hook.sideEffects != registrationv1.SideEffectClassNoneOnDryRun:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", hook.name))
		}
	}
	if hook.version == "" {
		return nil,
			fail(errors.New("could not create admission objects: webhook does not accept known AdmissionReview " +
				"versions (v1, v1beta1)"))
	}
	uid := types.UID(uuid.NewString())
	review, err := v.review(req, uid)
	if err != nil {
		return nil, fail(fmt.Errorf("could not create admission objects: %w", err))
	}
	c, err := hook.client()
	if err != nil {
		return nil, fail(fmt.Errorf("could not get REST client: %w", err))
	}
	if hook.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hook.timeout)
		defer cancel()
	}
	answer, err := c.post(ctx, review)
	if err != nil {
		return nil, fail(fmt.Errorf("failed to call webhook: %w", err))
	}
	resp, err := responseOf(answer, hook.version, uid, mutating)
	if err != nil {
		return nil, fail(fmt.Errorf("received invalid webhook response: %w", err))
	}
	for key, value := range resp.AuditAnnotations {
		req.AddAuditAnnotation(hook.name+"/"+key, value)
	}
	for _, text := range resp.Warnings {
		req.Warn(text)
	}
	if !resp.Allowed {
		return nil, denial(hook.name, resp.Result)
	}
	return resp, nil
}

// review is the encoded AdmissionReview.
func (v *invocation) review(req *admission.Request, uid types.UID) ([]byte, error) {
	obj, err := admission.Document(v.obj, v.target.Kind)
	if err != nil {
		return nil, err
	}
	old, err := admission.Document(v.old, v.target.Kind)
	if err != nil {
		return nil, err
	}
	requestKind := metav1.GroupVersionKind(req.Kind)
	requestResource := metav1.GroupVersionResource(req.Resource)
	request := &admissionv1.AdmissionRequest{
		UID:                uid,
		Kind:               metav1.GroupVersionKind(v.target.Kind),
		Resource:           metav1.GroupVersionResource(v.target.Resource),
		SubResource:        req.Subresource,
		RequestKind:        &requestKind,
		RequestResource:    &requestResource,
		RequestSubResource: req.Subresource,
		Name:               req.Name,
		Namespace:          req.Namespace,
		Operation:          admissionv1.Operation(req.Operation),
		UserInfo:           userOf(req),
		Object:             runtime.RawExtension{Raw: obj},
		OldObject:          runtime.RawExtension{Raw: old},
		DryRun:             &req.DryRun,
	}
	if req.Options != nil && req.Operation != admission.Connect {
		request.Options = runtime.RawExtension{Object: req.Options}
	}
	return encode(&admissionv1.AdmissionReview{Request: request}, v.hook.version)
}

func userOf(r *admission.Request) authenticationv1.UserInfo {
	if r.User == nil {
		return authenticationv1.UserInfo{}
	}
	u := authenticationv1.UserInfo{Username: r.User.Name, UID: r.User.UID, Groups: r.User.Groups}
	for key, values := range r.User.Extra {
		if u.Extra == nil {
			u.Extra = map[string]authenticationv1.ExtraValue{}
		}
		u.Extra[key] = values
	}
	return u
}

// denial is a webhook's rejection with its own message.
func denial(name string, result *metav1.Status) *denied {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	status.Code = max(status.Code, http.StatusBadRequest)
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	by := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		status.Message = by + ": " + status.Message
	case status.Reason != "":
		status.Message = by + ": " + string(status.Reason)
	default:
		status.Message = by + " without explanation"
	}
	return &denied{&apierrors.StatusError{ErrStatus: status}}
}
