// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are Kubernetes' admission metrics. A nil *Metrics records nothing.
type Metrics struct {
	step         *prometheus.HistogramVec
	stepSummary  *prometheus.SummaryVec
	plugin       *prometheus.HistogramVec
	webhook      *prometheus.HistogramVec
	requests     *prometheus.CounterVec
	rejections   *prometheus.CounterVec
	failOpen     *prometheus.CounterVec
	conditions   *prometheus.HistogramVec
	conditionErr *prometheus.CounterVec
	exclusions   *prometheus.CounterVec
	validations  *prometheus.CounterVec
	validated    *prometheus.HistogramVec
	mutations    *prometheus.CounterVec
	mutated      *prometheus.HistogramVec
	evaluations  *prometheus.CounterVec
	exemptions   *prometheus.CounterVec
	podErrors    *prometheus.CounterVec
}

// Values of the label "type". For validating webhooks it is "validating", for historical reasons.
const (
	StepAdmit      = "admit"
	StepValidate   = "validate"
	StepValidating = "validating"
)

// Error types of a webhook rejection or of an expression.
const (
	NoError        = "no_error"
	CallingError   = "calling_webhook_error"
	InternalError  = "apiserver_internal_error"
	CompileError   = "compile_error"
	InvalidError   = "invalid_error"
	OutOfBudget    = "out_of_budget"
	kindOfWebhooks = "webhook"
)

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	steps := []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5}
	checks := []float64{0.0000005, 0.001, 0.01, 0.1, 1}
	const p = "apiserver_admission_"
	return &Metrics{
		step: histogram(p+"step_admission_duration_seconds", "Admission sub-step latency histogram in seconds, "+
			"broken out for each operation and step type (validate or admit).",
			steps, "type", "operation", "rejected"),
		stepSummary: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name:   p + "step_admission_duration_seconds_summary",
			MaxAge: 5 * time.Hour,
			Help: "Admission sub-step latency summary in seconds, broken out for each operation and step type " +
				"(validate or admit).",
		}, []string{"type", "operation", "rejected"}),
		plugin: histogram(p+"controller_admission_duration_seconds", "Admission controller latency histogram in "+
			"seconds, identified by name and broken out for each operation and type (validate or admit).",
			steps, "name", "type", "operation", "rejected"),
		webhook: histogram(p+"webhook_admission_duration_seconds", "Admission webhook latency histogram in seconds, "+
			"identified by name and broken out for each operation and type.",
			[]float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 25}, "name", "type", "operation", "rejected"),
		requests: counter(p+"webhook_request_total", "Admission webhook requests, identified by name and broken out "+
			"for each type, operation, HTTP status code (at most 600) and whether the request was rejected.",
			"name", "type", "operation", "code", "rejected"),
		rejections: counter(p+"webhook_rejection_count", "Admission webhook rejections, identified by name and "+
			"broken out for each type, operation, kind of error and rejection code (at most 600).",
			"name", "type", "operation", "error_type", "rejection_code"),
		failOpen: counter(p+"webhook_fail_open_count", "Admission webhooks that could not be asked and were passed "+
			"over, identified by name and type.", "name", "type"),
		conditions: histogram(p+"match_condition_evaluation_seconds", "Admission match condition evaluation time in "+
			"seconds, identified by name and broken out for each kind (webhook or policy), operation and type.",
			[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, "name", "kind", "type", "operation"),
		conditionErr: counter(p+"match_condition_evaluation_errors_total",
			"Admission match condition evaluation errors, identified by name and broken out for each kind (webhook "+
				"or policy), operation and type.",
			"name", "kind", "type", "operation"),
		exclusions: counter(p+"match_condition_exclusions_total", "Webhooks and policies not applied for their match "+
			"conditions, identified by name and broken out for each kind, operation and type.",
			"name", "kind", "type", "operation"),
		validations: counter("apiserver_validating_admission_policy_check_total",
			"Validation admission policy checks, labeled by policy and further identified by binding and enforcement "+
				"action taken.",
			"policy", "policy_binding", "error_type", "enforcement_action"),
		validated: histogram("apiserver_validating_admission_policy_check_duration_seconds",
			"Validation admission latency for individual validation expressions in seconds, labeled by policy and "+
				"further including binding and enforcement action taken.",
			checks, "policy", "policy_binding", "error_type", "enforcement_action"),
		mutations: counter("apiserver_mutating_admission_policy_check_total",
			"Mutation admission policy checks, labeled by policy and further identified by binding.",
			"policy", "policy_binding", "error_type"),
		mutated: histogram("apiserver_mutating_admission_policy_check_duration_seconds",
			"Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
			checks, "policy", "policy_binding", "error_type"),
		evaluations: counter("pod_security_evaluations_total",
			"Number of policy evaluations that occurred, not counting ignored or exempt requests.",
			"decision", "policy_level", "policy_version", "mode", "request_operation", "resource", "subresource"),
		exemptions: counter("pod_security_exemptions_total", "Number of exempt requests, not counting ignored or out "+
			"of scope requests.", "request_operation", "resource", "subresource"),
		podErrors: counter("pod_security_errors_total", "Number of errors preventing normal evaluation. Non-fatal "+
			"errors may result in the latest restricted profile being used for evaluation.",
			"fatal", "request_operation", "resource", "subresource"),
	}
}

// Collectors are the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.step, m.stepSummary, m.plugin, m.webhook, m.requests, m.rejections, m.failOpen, m.conditions, m.conditionErr,
		m.exclusions,
		m.validations, m.validated, m.mutations, m.mutated, m.evaluations, m.exemptions, m.podErrors,
	}
}

// Webhook records a call. code is the HTTP status of a failed request, else 200.
func (m *Metrics) Webhook(name, step string, op Operation, took time.Duration, rejected bool, code int) {
	if m == nil {
		return
	}
	no := strconv.FormatBool(rejected)
	m.requests.WithLabelValues(name, step, string(op), strconv.Itoa(min(code, 600)), no).Inc()
	m.webhook.WithLabelValues(name, step, string(op), no).Observe(took.Seconds())
}

// WebhookRejection records that a request failed because of a webhook.
func (m *Metrics) WebhookRejection(name, step string, op Operation, errorType string, code int) {
	if m != nil {
		m.rejections.WithLabelValues(name, step, string(op), errorType, strconv.Itoa(min(code, 600))).Inc()
	}
}

// FailOpen records that a request was accepted although a webhook call failed.
func (m *Metrics) FailOpen(name, step string) {
	if m != nil {
		m.failOpen.WithLabelValues(name, step).Inc()
	}
}

// Conditions records an evaluation of match conditions: the number of errors, and whether a condition was false.
func (m *Metrics) Conditions(name, kind, step string, op Operation, took time.Duration, failed int, excluded bool) {
	if m == nil {
		return
	}
	m.conditions.WithLabelValues(name, kind, step, string(op)).Observe(took.Seconds())
	if failed > 0 {
		m.conditionErr.WithLabelValues(name, kind, step, string(op)).Add(float64(failed))
	}
	if excluded && kind == kindOfWebhooks {
		m.exclusions.WithLabelValues(name, kind, step, string(op)).Inc()
	}
}

// Validation records the action on a policy's result: "allow", "deny", "audit" or "warn".
func (m *Metrics) Validation(policy, binding, errorType, action string, took time.Duration) {
	if m == nil {
		return
	}
	m.validations.WithLabelValues(policy, binding, errorType, action).Inc()
	m.validated.WithLabelValues(policy, binding, errorType, action).Observe(took.Seconds())
}

// Mutation records that a policy was applied.
func (m *Metrics) Mutation(policy, binding, errorType string, took time.Duration) {
	if m == nil {
		return
	}
	m.mutations.WithLabelValues(policy, binding, errorType).Inc()
	m.mutated.WithLabelValues(policy, binding, errorType).Observe(took.Seconds())
}

// PodSecurity records the check of a pod, or a workload's template, against a level: mode is "enforce", "audit" or
// "warn".
func (m *Metrics) PodSecurity(r *Request, allowed bool, level, version, mode string) {
	if m == nil {
		return
	}
	decision := "deny"
	if allowed {
		decision = "allow"
	}
	op, resource := podSecurityLabels(r)
	m.evaluations.WithLabelValues(decision, level, version, mode, op, resource, r.Subresource).Inc()
}

// PodSecurityExemption records an exempt request.
func (m *Metrics) PodSecurityExemption(r *Request) {
	if m != nil {
		op, resource := podSecurityLabels(r)
		m.exemptions.WithLabelValues(op, resource, r.Subresource).Inc()
	}
}

// PodSecurityError records that a request, or its namespace's labels, could not be evaluated.
func (m *Metrics) PodSecurityError(r *Request, fatal bool) {
	if m != nil {
		op, resource := podSecurityLabels(r)
		m.podErrors.WithLabelValues(strconv.FormatBool(fatal), op, resource, r.Subresource).Inc()
	}
}

func podSecurityLabels(r *Request) (op, resource string) {
	op = "update"
	resource = "controller"
	if r.Operation == Create {
		op = "create"
	}
	switch {
	case r.Resource.Group == "" && r.Resource.Resource == "pods":
		resource = "pod"
	case r.Resource.Group == "" && r.Resource.Resource == "namespaces":
		resource = "namespace"
	}
	return op, resource
}
