// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

var webhookColumns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{
		Name:        "Webhooks",
		Type:        "integer",
		Description: "Webhooks indicates the number of webhooks registered in this configuration",
	},
	kind.AgeColumn,
}

// ValidatingWebhookConfiguration describes admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration.
func ValidatingWebhookConfiguration() *kind.Kind {
	type config = admissionv1.ValidatingWebhookConfiguration
	return kind.Spec[*config]{
		Names: names("ValidatingWebhookConfiguration", "validatingwebhookconfigurations",
			"validatingwebhookconfiguration"),
		New:     func() *config { return &config{} },
		NewList: func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} },
		Default: func(c *config) {
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				m := fromValidating(w)
				defaultWebhook(&m)
				w.FailurePolicy = m.FailurePolicy
				w.MatchPolicy = m.MatchPolicy
				w.TimeoutSeconds = m.TimeoutSeconds
				w.NamespaceSelector = m.NamespaceSelector
				w.ObjectSelector = m.ObjectSelector
				defaultClient(&w.ClientConfig)
				defaultRules(w.Rules)
			}
		},
		PrepareCreate: func(c *config) { c.Generation = 1 },
		PrepareUpdate: func(c, old *config) { keepGeneration(c, old, c.Webhooks, old.Webhooks) },
		Validate: func(c *config) field.ErrorList {
			return append(validateWebhooks(allValidating(c), nil), validateReserved(c)...)
		},
		Warnings: func(c, old *config) []string {
			return append(warnReserved(c, old), warnUnseen(allValidating(c))...)
		},
		ValidateUpdate: func(c, old *config) field.ErrorList {
			before := allValidating(old)
			return validateWebhooks(allValidating(c), before)
		},
		NoUnconditionalUpdate: true,
		Columns:               webhookColumns,
		Row: func(c *config) []any {
			return []any{c.Name, int64(len(c.Webhooks)), kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

// MutatingWebhookConfiguration describes admissionregistration.k8s.io/v1 MutatingWebhookConfiguration.
func MutatingWebhookConfiguration() *kind.Kind {
	type config = admissionv1.MutatingWebhookConfiguration
	return kind.Spec[*config]{
		Names:   names("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration"),
		New:     func() *config { return &config{} },
		NewList: func() runtime.Object { return &admissionv1.MutatingWebhookConfigurationList{} },
		Default: func(c *config) {
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				defaultWebhook(w)
				kind.Fill(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
				defaultClient(&w.ClientConfig)
				defaultRules(w.Rules)
			}
		},
		PrepareCreate: func(c *config) { c.Generation = 1 },
		PrepareUpdate: func(c, old *config) { keepGeneration(c, old, c.Webhooks, old.Webhooks) },
		Validate: func(c *config) field.ErrorList {
			return append(validateWebhooks(c.Webhooks, nil), validateReserved(c)...)
		},
		Warnings: func(c, old *config) []string { return append(warnReserved(c, old), warnUnseen(c.Webhooks)...) },
		ValidateUpdate: func(c, old *config) field.ErrorList {
			return validateWebhooks(c.Webhooks, append([]admissionv1.MutatingWebhook{}, old.Webhooks...))
		},
		NoUnconditionalUpdate: true,
		Columns:               webhookColumns,
		Row: func(c *config) []any {
			return []any{c.Name, int64(len(c.Webhooks)), kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

// fromValidating is webhook as the larger of the two types, which has one field more; rules are written once.
func fromValidating(webhook *admissionv1.ValidatingWebhook) admissionv1.MutatingWebhook {
	return admissionv1.MutatingWebhook{
		Name:                    webhook.Name,
		ClientConfig:            webhook.ClientConfig,
		Rules:                   webhook.Rules,
		FailurePolicy:           webhook.FailurePolicy,
		MatchPolicy:             webhook.MatchPolicy,
		NamespaceSelector:       webhook.NamespaceSelector,
		ObjectSelector:          webhook.ObjectSelector,
		SideEffects:             webhook.SideEffects,
		TimeoutSeconds:          webhook.TimeoutSeconds,
		AdmissionReviewVersions: webhook.AdmissionReviewVersions,
		MatchConditions:         webhook.MatchConditions,
	}
}

func allValidating(c *admissionv1.ValidatingWebhookConfiguration) []admissionv1.MutatingWebhook {
	out := make([]admissionv1.MutatingWebhook, 0, len(c.Webhooks))
	for i := range c.Webhooks {
		out = append(out, fromValidating(&c.Webhooks[i]))
	}
	return out
}

func defaultWebhook(w *admissionv1.MutatingWebhook) {
	kind.Fill(&w.FailurePolicy, admissionv1.Fail)
	kind.Fill(&w.MatchPolicy, admissionv1.Equivalent)
	kind.Fill(&w.NamespaceSelector, metav1.LabelSelector{})
	kind.Fill(&w.ObjectSelector, metav1.LabelSelector{})
	kind.Fill(&w.TimeoutSeconds, defaultTimeout)
}

// lenience names the rules that an update may violate if the stored object did: they came after it was stored.
type lenience struct {
	conditions, versions, sideEffects, names bool
	stored                                   []string // expressions that were there before
}

func lenienceOf(hooks, old []admissionv1.MutatingWebhook) lenience {
	var l lenience
	l.conditions = len(hooks) == len(old)
	var seen check.Set
	for i := range old {
		if l.conditions && !equality.Semantic.DeepEqual(hooks[i].MatchConditions, old[i].MatchConditions) {
			l.conditions = false
		}
		v := old[i].AdmissionReviewVersions
		l.versions = l.versions || len(v) > 0 && !slices.ContainsFunc(v, understood)
		l.sideEffects = l.sideEffects || old[i].SideEffects == nil || !slices.Contains(harmless, *old[i].SideEffects)
		l.names = l.names || !seen.Add(old[i].Name)
		for _, c := range old[i].MatchConditions {
			l.stored = append(l.stored, c.Expression)
		}
	}
	return l
}

var (
	harmless = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun}
	effects  = []admissionv1.SideEffectClass{
		admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun, admissionv1.SideEffectClassSome,
		admissionv1.SideEffectClassUnknown,
	}
	// reviewVersions are the versions of AdmissionReview that a webhook must be able to speak one of.
	reviewVersions = []string{"v1", "v1beta1"}
)

func understood(v string) bool { return slices.Contains(reviewVersions, v) }

// validateWebhooks checks the webhooks of a configuration; old is nil on create.
func validateWebhooks(hooks, old []admissionv1.MutatingWebhook) field.ErrorList {
	may := lenience{}
	if old != nil {
		may = lenienceOf(hooks, old)
	}
	return run(func(l *check.List) {
		var seen check.Set
		check.Each(l, "webhooks", hooks, func(_ int, w *admissionv1.MutatingWebhook) {
			validateWebhook(l, w, may)
			validateReviewVersions(l, w.AdmissionReviewVersions, may.versions)
			if !may.names && w.Name != "" && !seen.Add(w.Name) {
				l.Duplicate("name", w.Name)
			}
		})
	})
}

func validateReviewVersions(errs *check.List, versions []string, may bool) {
	const child = "admissionReviewVersions"
	if len(versions) == 0 {
		errs.Required(child, "must specify one of "+strings.Join(reviewVersions, ", "))
		return
	}
	var seen check.Set
	check.Each(errs, child, versions, func(_ int, v *string) {
		if !seen.Add(*v) {
			errs.Invalid("", *v, "duplicate version")
			return
		}
		for _, msg := range validation.IsDNS1035Label(*v) {
			errs.Invalid("", *v, msg)
		}
	})
	if !may && !slices.ContainsFunc(versions, understood) {
		errs.Invalid(child, versions, "must include at least one of "+strings.Join(reviewVersions, ", "))
	}
}

func validateWebhook(errs *check.List, webhook *admissionv1.MutatingWebhook, may lenience) {
	errs.Add(validation.IsFullyQualifiedName(errs.Path("name"), webhook.Name)...)
	check.Each(errs, "rules", webhook.Rules, func(_ int, r *admissionv1.RuleWithOperations) { validateRule(errs, r) })
	check.Pointer(errs, "failurePolicy", webhook.FailurePolicy, failurePolicies...)
	check.Pointer(errs, "matchPolicy", webhook.MatchPolicy, matchPolicies...)
	allowed := harmless
	if may.sideEffects {
		allowed = effects
	}
	if webhook.SideEffects == nil {
		list := []string{}
		for _, e := range allowed {
			list = append(list, string(e))
		}
		errs.Required("sideEffects", "must specify one of "+strings.Join(list, ", "))
	}
	check.Pointer(errs, "sideEffects", webhook.SideEffects, allowed...)
	if t := webhook.TimeoutSeconds; t != nil && (*t > 30 || *t < 1) {
		errs.Invalid("timeoutSeconds", *t, "the timeout value must be between 1 and 30 seconds")
	}
	errs.Selector("namespaceSelector", webhook.NamespaceSelector)
	errs.Selector("objectSelector", webhook.ObjectSelector)
	check.Pointer(errs, "reinvocationPolicy", webhook.ReinvocationPolicy, reinvocations...)
	validateClient(errs, &webhook.ClientConfig)
	if !may.conditions {
		validateConditions(errs, webhook.MatchConditions, expressions{stored: may.stored})
	}
}

func validateClient(l *check.List, c *admissionv1.WebhookClientConfig) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		l.Required("clientConfig", "exactly one of url or service is required")
	case c.URL != nil:
		l.Within("clientConfig", func() { validateURL(l, *c.URL) })
	default:
		l.Within("clientConfig", func() { l.Within("service", func() { validateService(l, c.Service) }) })
	}
}

func validateURL(errs *check.List, raw string) {
	const form, child = "; desired format: https://host[/path]", "url"
	target, err := url.Parse(raw)
	if err != nil {
		errs.Required(child, "url must be a valid URL: "+err.Error()+form)
		return
	}
	if target.Scheme != "https" {
		errs.Invalid(child, target.Scheme, "'https' is the only allowed URL scheme"+form)
	}
	if target.Host == "" {
		errs.Invalid(child, target.Host, "host must be specified"+form)
	}
	if target.User != nil {
		errs.Invalid(child, target.User.String(), "user information is not permitted in the URL")
	}
	if target.Fragment != "" {
		errs.Invalid(child, target.Fragment, "fragments are not permitted in the URL")
	}
	if target.RawQuery != "" {
		errs.Invalid(child, target.RawQuery, "query parameters are not permitted in the URL")
	}
}

func validateService(errs *check.List, reference *admissionv1.ServiceReference) {
	// Kubernetes takes the one for the other.
	check.Needs(errs, "name", reference.Namespace)
	check.Needs(errs, "namespace", reference.Name)
	port := kind.Value(reference.Port)
	if msgs := validation.IsValidPortNum(int(port)); len(msgs) > 0 {
		errs.Invalid("port", port, "port is not valid: "+strings.Join(msgs, ", "))
	}
	path := kind.Value(reference.Path)
	switch path {
	case "", "/":
		return
	case "//":
		errs.Invalid("path", path, "segment[0] may not be empty")
		return
	}
	if !strings.HasPrefix(path, "/") {
		errs.Invalid("path", path, "must start with a '/'")
	}
	for i, step := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if step == "" {
			errs.Invalid("path", path, fmt.Sprintf("segment[%d] may not be empty", i))
			continue
		}
		for _, msg := range validation.IsDNS1123Subdomain(step) {
			errs.Invalid("path", path, fmt.Sprintf("segment[%d]: %v", i, msg))
		}
	}
}
