// SPDX-License-Identifier: Apache-2.0

// Package webhook holds the MutatingAdmissionWebhook and ValidatingAdmissionWebhook plugins: they send requests that
// match a webhook's rules to the HTTPS servers that users configure. The admission chain runs them. Their only state is
// connections and the configurations passed to Set.
//
// Invariants:
//  1. Webhooks are called in the order of their configurations' names, then as listed; validating ones all at once.
//  2. Requests for webhook configurations and policies are never sent to webhooks.
//  3. Where no webhook is configured, a write costs one atomic load.
package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apipatch "keelson/api/patch"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/matching"
	"keelson/apiserver/outbound"
	"keelson/auth"
)

// Resources that the plugins follow.
var (
	MutatingResource   = registrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations")
	ValidatingResource = registrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations")
)

// Config holds the dependencies of both plugins.
type Config struct {
	Reader     matching.Reader
	Authorizer auth.Authorizer // for match conditions
	Resolve    outbound.Resolver
	// Outbound connects to webhooks.
	Outbound *outbound.Egress
	// Credentials authenticate the server to webhooks; nil: none.
	Credentials *Credentials
	Metrics     *admission.Metrics
}

// plugin stores the configured webhooks.
type plugin struct {
	Config
	step string // for metrics

	mu      sync.Mutex
	configs map[string][]*hook
	// hooks are all webhooks in call order; nil: none.
	hooks atomic.Pointer[[]*hook]
}

func newPlugin(c Config, step string) plugin {
	return plugin{Config: c, step: step, configs: map[string][]*hook{}}
}

// set replaces the webhooks of a configuration; none for a deleted one.
func (p *plugin) set(config string, hooks []*hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.configs[config] {
		h.close()
	}
	if p.configs[config] = hooks; len(hooks) == 0 {
		delete(p.configs, config)
	}
	var all []*hook
	for _, list := range p.configs {
		all = append(all, list...)
	}
	// Stable: webhooks of one configuration keep their order.
	slices.SortStableFunc(all, func(a, b *hook) int { return cmp.Compare(a.config, b.config) })
	if len(all) == 0 {
		p.hooks.Store(nil)
		return
	}
	p.hooks.Store(&all)
}

// Mutating is the MutatingAdmissionWebhook plugin.
type Mutating struct{ plugin }

// NewMutating returns a plugin without webhooks. Set and Remove update it.
func NewMutating(c Config) *Mutating { return &Mutating{newPlugin(c, admission.StepAdmit)} }

// Name is the plugin's name.
func (*Mutating) Name() string { return "MutatingAdmissionWebhook" }

// Set adds or updates a configuration.
func (p *Mutating) Set(obj runtime.Object) {
	configuration, ok := obj.(*registrationv1.MutatingWebhookConfiguration)
	if !ok {
		return
	}
	var hooks []*hook
	for i := range configuration.Webhooks {
		webhook := &configuration.Webhooks[i]
		hooks = append(hooks, p.newHook(configuration.Name, i, settings{
			name:       webhook.Name,
			client:     webhook.ClientConfig,
			rules:      webhook.Rules,
			policy:     webhook.FailurePolicy,
			match:      webhook.MatchPolicy,
			namespaces: webhook.NamespaceSelector,
			objects:    webhook.ObjectSelector,
			effects:    webhook.SideEffects,
			timeout:    webhook.TimeoutSeconds,
			versions:   webhook.AdmissionReviewVersions,
			conditions: webhook.MatchConditions,
			reinvoke: webhook.ReinvocationPolicy != nil &&
				*webhook.ReinvocationPolicy == registrationv1.IfNeededReinvocationPolicy,
		}))
	}
	p.set(configuration.Name, hooks)
}

// Remove removes a deleted configuration.
func (p *Mutating) Remove(obj runtime.Object) {
	if c, ok := obj.(metav1.Object); ok {
		p.set(c.GetName(), nil)
	}
}

// reinvocation is the state that Admit keeps between the two rounds of a request.
type reinvocation struct {
	last     []byte          // the object after the last webhook
	called   map[string]bool // webhooks to call again if the object changes after them
	required map[string]bool // those that must be called again
}

// Admit calls the webhooks one after another; each gets the object as changed by those before.
func (p *Mutating) Admit(ctx context.Context, req *admission.Request) error {
	hooks := p.hooks.Load()
	if hooks == nil || matching.Exempt(req) {
		return nil
	}
	state, _ := req.PluginState(p.Name()).(*reinvocation)
	if state == nil {
		state = &reinvocation{called: map[string]bool{}, required: map[string]bool{}}
		req.SetPluginState(p.Name(), state)
	}
	if req.Reinvocation {
		if now, err := admission.Document(req.Object, req.Kind); err == nil && string(now) != string(state.last) {
			state.requireAll()
		}
	}
	for i, hook := range *hooks {
		v, err := p.invoke(ctx, hook, req)
		if err != nil {
			return err
		}
		if v == nil || req.Reinvocation && !state.required[hook.uid] {
			continue
		}
		begin := time.Now()
		changed, err := p.call(ctx, v, req, i)
		p.measure(hook, req, begin, err)
		if changed {
			state.requireAll()
			req.Reinvoke()
		}
		if hook.reinvoke {
			state.called[hook.uid] = true
		}
		if err = p.handleFailure(ctx, hook, req, err, mutationAnnotationKey(req, i)); err != nil {
			return err
		}
	}
	if len(state.called) > 0 && !req.Reinvocation {
		state.last, _ = admission.Document(req.Object, req.Kind) // it was encoded for the webhooks before
	}
	return nil
}

// requireAll requests another call of all reinvocable webhooks.
func (s *reinvocation) requireAll() {
	for uid := range s.called {
		s.required[uid] = true
		delete(s.called, uid)
	}
}

// handleFailure applies the failure policy to a failed call.
func (p *plugin) handleFailure(ctx context.Context, h *hook, req *admission.Request, err error, note string) error {
	if d, ok := errors.AsType[*denied](err); ok {
		return d.StatusError
	}
	if _, ok := errors.AsType[*failure](err); !ok {
		return err
	}
	if !h.ignoresFailure() {
		return apierrors.NewInternalError(err)
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	req.AddAuditAnnotation("failed-open."+note, h.name)
	p.Metrics.FailOpen(h.name, p.step)
	return nil
}

// measure records the call that started at begin.
func (p *plugin) measure(h *hook, req *admission.Request, begin time.Time, err error) {
	rejected := err != nil
	code := http.StatusOK
	_, broken := errors.AsType[*failure](err)
	req.Waited(h.name, time.Since(begin), broken)
	if failed, ok := errors.AsType[*failure](err); ok {
		rejected = !h.ignoresFailure()
		code = failed.code()
		if rejected && !errors.Is(failed.err, context.Canceled) {
			p.Metrics.WebhookRejection(h.name, p.step, req.Operation, admission.CallingError, code)
		}
	} else if d, ok := errors.AsType[*denied](err); ok {
		code = int(d.ErrStatus.Code)
		p.Metrics.WebhookRejection(h.name, p.step, req.Operation, admission.NoError, code)
	} else if err != nil {
		code = 0
		p.Metrics.WebhookRejection(h.name, p.step, req.Operation, admission.InternalError, code)
	}
	p.Metrics.Webhook(h.name, p.step, req.Operation, time.Since(begin), rejected, code)
}

// mutationAnnotationKey is the audit annotation key for a mutating webhook; "" if the request is not recorded.
func mutationAnnotationKey(r *admission.Request, index int) string {
	if r.Annotate == nil {
		return ""
	}
	return "mutation.webhook.admission.k8s.io/" + annotationSuffix(r, index)
}

// patchAnnotationKey is the audit annotation key for the webhook's patch.
func patchAnnotationKey(r *admission.Request, index int) string {
	return "patch.webhook.admission.k8s.io/" + annotationSuffix(r, index)
}

func annotationSuffix(r *admission.Request, index int) string {
	round := 0
	if r.Reinvocation {
		round = 1
	}
	return fmt.Sprintf("round_%d_index_%d", round, index)
}

// mutationAnnotation and patchAnnotation are the audit annotations of a mutating webhook, in Kubernetes' field order.
type mutationAnnotation struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	Mutated       bool   `json:"mutated"`
}

type patchAnnotation struct {
	Configuration string                `json:"configuration"`
	Webhook       string                `json:"webhook"`
	Patch         jsonpatch.Patch       `json:"patch"`
	PatchType     admissionv1.PatchType `json:"patchType"`
}

// call calls one mutating webhook and applies its patch.
func (p *Mutating) call(
	ctx context.Context, v *invocation, req *admission.Request, index int,
) (changed bool, err error) {
	resp, err := v.call(ctx, req, true)
	if req.Annotate != nil {
		defer func() {
			note, _ := json.Marshal(mutationAnnotation{v.hook.config, v.hook.name, changed})
			req.AddAuditAnnotation(mutationAnnotationKey(req, index), string(note))
		}()
	}
	if err != nil || len(resp.Patch) == 0 {
		return false, err
	}
	patch, err := jsonpatch.DecodePatch(resp.Patch)
	if err != nil {
		return false, &failure{v.hook.name, fmt.Errorf("received undecodable patch in webhook response: %w", err)}
	}
	if len(patch) == 0 {
		return false, nil
	}
	if req.Object == nil {
		return false,
			apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not "+
				"supported for this operation", v.hook.name))
	}
	if *resp.PatchType != admissionv1.PatchTypeJSONPatch {
		return false, &failure{v.hook.name, fmt.Errorf("unsupported patch type %q", *resp.PatchType)}
	}
	doc, err := admission.Document(v.obj, v.target.Kind)
	if err == nil {
		doc, err = apipatch.ApplyOperations(ctx, patch, doc)
	}
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	next, err := matching.FromTarget(ctx, p.Reader, req, v.target, v.obj, doc)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	changed = !apiequality.Semantic.DeepEqual(next, req.Object)
	if req.AuditBodies {
		note, _ := json.Marshal(patchAnnotation{v.hook.config, v.hook.name, patch, *resp.PatchType})
		req.AddAuditAnnotation(patchAnnotationKey(req, index), string(note))
	}
	if changed {
		req.ChangedBy("webhook "+v.hook.name, admission.ChangedFields(req.Object, next)...)
	}
	return changed, req.SetObject(next)
}

// Validating is the ValidatingAdmissionWebhook plugin.
type Validating struct{ plugin }

// NewValidating returns a plugin without webhooks. Set and Remove update it.
func NewValidating(c Config) *Validating { return &Validating{newPlugin(c, admission.StepValidating)} }

// Name is the plugin's name.
func (*Validating) Name() string { return "ValidatingAdmissionWebhook" }

// Set adds or updates a configuration.
func (p *Validating) Set(obj runtime.Object) {
	configuration, ok := obj.(*registrationv1.ValidatingWebhookConfiguration)
	if !ok {
		return
	}
	var hooks []*hook
	for i := range configuration.Webhooks {
		webhook := &configuration.Webhooks[i]
		hooks = append(hooks, p.newHook(configuration.Name, i, settings{
			name:       webhook.Name,
			client:     webhook.ClientConfig,
			rules:      webhook.Rules,
			policy:     webhook.FailurePolicy,
			match:      webhook.MatchPolicy,
			namespaces: webhook.NamespaceSelector,
			objects:    webhook.ObjectSelector,
			effects:    webhook.SideEffects,
			timeout:    webhook.TimeoutSeconds,
			versions:   webhook.AdmissionReviewVersions,
			conditions: webhook.MatchConditions,
		}))
	}
	p.set(configuration.Name, hooks)
}

// Remove removes a deleted configuration.
func (p *Validating) Remove(obj runtime.Object) {
	if c, ok := obj.(metav1.Object); ok {
		p.set(c.GetName(), nil)
	}
}

// Validate calls all webhooks in parallel; the first rejection in order is the error.
func (p *Validating) Validate(ctx context.Context, req *admission.Request) error {
	hooks := p.hooks.Load()
	if hooks == nil || matching.Exempt(req) {
		return nil
	}
	var calls []*invocation
	for _, h := range *hooks {
		v, err := p.invoke(ctx, h, req)
		if err != nil {
			return err
		}
		if v != nil {
			calls = append(calls, v)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, v := range calls {
		wg.Go(func() {
			begin := time.Now()
			_, err := v.call(ctx, req, false)
			p.measure(v.hook, req, begin, err)
			errs[i] = p.handleFailure(ctx, v.hook, req, err,
				fmt.Sprintf("validation.webhook.admission.k8s.io/round_0_index_%d", i))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
