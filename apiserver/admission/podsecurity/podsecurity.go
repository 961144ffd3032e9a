// SPDX-License-Identifier: Apache-2.0

// Package podsecurity is the PodSecurity admission plugin: it enforces the Pod Security level in a namespace's labels,
// warns about workloads whose pods would be rejected, and about existing pods when the level changes. The levels are
// implemented in k8s.io/pod-security-admission. It never modifies an object.
package podsecurity

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"keelson/api/invalid"
	"keelson/apiserver/admission"
)

// Exemptions are the users, namespaces and runtime classes without any level.
type Exemptions struct {
	Users          []string
	Namespaces     []string
	RuntimeClasses []string
}

// Config configures the plugin; the zero value is Kubernetes' default.
type Config struct {
	// Defaults apply to namespaces without labels; the zero value: privileged.
	Defaults   api.Policy
	Exemptions Exemptions
}

// Plugin is the admission plugin.
type Plugin struct {
	reader  admission.Reader
	config  Config
	metrics *admission.Metrics
	// checks are built for the first pod.
	checks func() (policy.Evaluator, error)
}

// New returns the plugin. metrics may be nil.
func New(reader admission.Reader, c Config, metrics *admission.Metrics) *Plugin {
	for _, lv := range []*api.LevelVersion{&c.Defaults.Enforce, &c.Defaults.Audit, &c.Defaults.Warn} {
		if lv.Level == "" {
			*lv = api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}
		}
	}
	return &Plugin{
		reader:  reader,
		config:  c,
		metrics: metrics,
		checks: sync.OnceValues(func() (policy.Evaluator, error) {
			return policy.NewEvaluator(policy.DefaultChecks(), nil)
		}),
	}
}

// Name is the plugin's name.
func (*Plugin) Name() string { return "PodSecurity" }

// exemptSubresources are subresources of pods that do not change what a pod may do.
var exemptSubresources = []string{"exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"}

// Validate checks pods, workloads and namespaces.
func (p *Plugin) Validate(ctx context.Context, req *admission.Request) error {
	if req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	switch obj := req.Object.(type) {
	case *corev1.Namespace:
		if req.Subresource == "" {
			return p.namespace(ctx, req, obj)
		}
	case *corev1.Pod:
		if slices.Contains(exemptSubresources, req.Subresource) {
			return nil
		}
		if old, ok := req.OldObject.(*corev1.Pod); ok && req.Operation == admission.Update &&
			!isSignificantUpdate(obj, old) {
			return nil
		}
		return p.evaluate(ctx, req, &obj.ObjectMeta, &obj.Spec, true)
	default:
		if req.Subresource != "" {
			return nil
		}
		if meta, spec := template(req.Object); spec != nil {
			return p.evaluate(ctx, req, meta, spec, false)
		}
	}
	return nil
}

// evaluate checks a pod, or a workload's template, against the levels of its namespace. Only pods are rejected.
func (p *Plugin) evaluate(
	ctx context.Context, req *admission.Request, meta *metav1.ObjectMeta, spec *corev1.PodSpec, enforce bool,
) error {
	if slices.Contains(p.config.Exemptions.Namespaces, req.Namespace) {
		p.exempt(req, "namespace")
		return nil
	}
	if req.User != nil && slices.Contains(p.config.Exemptions.Users, req.User.Name) {
		p.exempt(req, "user")
		return nil
	}
	ns, err := req.NamespaceObject(ctx, p.reader)
	if err != nil {
		p.metrics.PodSecurityError(req, true)
		if !enforce {
			return nil
		}
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", req.Namespace))
	}
	if ns == nil {
		return nil
	}
	levels, errs := api.PolicyToEvaluate(ns.Labels, p.config.Defaults)
	if len(errs) == 0 && levels.FullyPrivileged() {
		if enforce {
			p.metrics.PodSecurity(req, true, string(levels.Enforce.Level), api.VersionLatest, "enforce")
		}
		return nil
	}
	if c := spec.RuntimeClassName; c != nil && slices.Contains(p.config.Exemptions.RuntimeClasses, *c) {
		p.exempt(req, "runtimeClass")
		return nil
	}
	if len(errs) > 0 {
		p.metrics.PodSecurityError(req, false)
		req.AddAuditAnnotation(api.AuditAnnotationPrefix+"error",
			fmt.Sprintf("Failed to parse policy: %v", invalid.Error(errs)))
	}
	return p.apply(req, levels, meta, spec, enforce)
}

// exempt records why a request is exempt.
func (p *Plugin) exempt(r *admission.Request, why string) {
	r.AddAuditAnnotation(api.AuditAnnotationPrefix+api.ExemptionReasonAnnotationKey, why)
	p.metrics.PodSecurityExemption(r)
}

func (p *Plugin) apply(
	req *admission.Request, levels api.Policy, meta *metav1.ObjectMeta, spec *corev1.PodSpec, enforce bool,
) error {
	checks, err := p.checks()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	seen := map[api.LevelVersion]policy.AggregateCheckResult{}
	verdict := func(mode string, lv api.LevelVersion) (bool, string) {
		result, ok := seen[lv]
		if !ok {
			result = policy.AggregateCheckResults(checks.EvaluatePod(lv, meta, spec))
			seen[lv] = result
		}
		if mode == "enforce" || !result.Allowed {
			p.metrics.PodSecurity(req, result.Allowed, string(lv.Level), versionLabel(lv), mode)
		}
		return result.Allowed, fmt.Sprintf("violate PodSecurity %q: %s", lv.String(), result.ForbiddenDetail())
	}
	var refused error
	if enforce {
		req.AddAuditAnnotation(api.AuditAnnotationPrefix+api.EnforcedPolicyAnnotationKey, levels.Enforce.String())
		if ok, _ := verdict("enforce", levels.Enforce); !ok {
			result := seen[levels.Enforce]
			refused = admission.Forbidden(req, "violates PodSecurity %q: %s", levels.Enforce.String(),
				result.ForbiddenDetail())
		}
	}
	if ok, text := verdict("audit", levels.Audit); !ok {
		req.AddAuditAnnotation(api.AuditAnnotationPrefix+api.AuditViolationsAnnotationKey, "would "+text)
	}
	if refused != nil {
		return refused
	}
	if ok, text := verdict("warn", levels.Warn); !ok {
		req.Warn("would " + text)
	}
	return nil
}

// versionLabel is the metrics label of a level's version.
func versionLabel(lv api.LevelVersion) string {
	if lv.Latest() || lv.Level == api.LevelPrivileged {
		return api.VersionLatest
	}
	return lv.Version.String()
}

// namespace validates the labels of a namespace, and warns about its pods that violate a stricter level.
func (p *Plugin) namespace(ctx context.Context, req *admission.Request, ns *corev1.Namespace) error {
	levels, errs := api.PolicyToEvaluate(ns.Labels, p.config.Defaults)
	old, update := req.OldObject.(*corev1.Namespace)
	if !update {
		return refuse(req, errs)
	}
	before, oldErrs := api.PolicyToEvaluate(old.Labels, p.config.Defaults)
	if len(errs) > 0 && !reflect.DeepEqual(errs, oldErrs) {
		return refuse(req, errs)
	}
	switch {
	case levels.Enforce == before.Enforce, levels.Enforce.Level == api.LevelPrivileged,
		slices.Contains(p.config.Exemptions.Namespaces, ns.Name):
		return nil
	case levels.Enforce.Version == before.Enforce.Version && api.CompareLevels(levels.Enforce.Level,
		before.Enforce.Level) < 1:
		return nil // the level is not stricter
	}
	for _, text := range p.violations(ctx, ns.Name, levels.Enforce) {
		req.Warn(text)
	}
	return nil
}

func refuse(r *admission.Request, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid.New(r.Kind.GroupKind(), r.Name, errs)
}
