// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	admissionconfig "keelson/apiserver/admission/config"
	"keelson/apiserver/admission/plugins"
	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// configured starts a server whose plugins read an AdmissionConfiguration with these plugins.
func configured(t *testing.T, text string, enable ...string) *servertest.Running {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(path,
		[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	f, err := admissionconfig.Load(path, plugins.Names())
	if err != nil {
		t.Fatal(err)
	}
	return servertest.Start(t, func(c *servertest.Setup) {
		servertest.WithChain(c, func(p *plugins.Config) {
			p.File = f
			p.Enable = enable
			p.Disable = []string{"ServiceAccount"}
		})
	})
}

func TestEventRateLimit(t *testing.T) {
	r := configured(t, `
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Namespace, qps: 1, burst: 3, cacheSize: 10}
`, "EventRateLimit")
	c := r.Clients(t)
	servertest.MakeNamespace(t, c, "dev", nil)
	servertest.MakeNamespace(t, c, "ops", nil)
	event := func(ns string, opts metav1.CreateOptions) error {
		_, err := c.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "e-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p"},
			Reason:         "R",
			Message:        "m",
		}, opts)
		return err
	}
	// However slow this is, events that come 16 at a time are soon more than 3 and one a second; dry ones do not count.
	var mu sync.Mutex
	var refusal error
	passed := 0
	for range 100 {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if err := event("dev", metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
					t.Errorf("dry run: %v", err)
				}
				err := event("dev", metav1.CreateOptions{})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refusal = err
				} else {
					passed++
				}
			})
		}
		if wg.Wait(); refusal != nil {
			break
		}
	}
	want := "Too many requests: limit reached on type Namespace for key dev"
	if !apierrors.IsTooManyRequests(refusal) || refusal.Error() != want || passed < 3 {
		t.Errorf("after %d events: got %v, want %s after 3 or more", passed, refusal, want)
	}
	var status *apierrors.StatusError
	if s, ok := refusal.(*apierrors.StatusError); ok { //nolint:errorlint // client-go's own
		status = s
	}
	if status == nil || status.ErrStatus.Code != http.StatusTooManyRequests ||
		status.ErrStatus.Reason != metav1.StatusReasonTooManyRequests {
		t.Errorf("status: got %+v", status)
	}
	if err := event("ops", metav1.CreateOptions{}); err != nil {
		t.Errorf("another namespace: %v", err)
	}
}

func TestPodSecurityDefaultsAndExemptions(t *testing.T) {
	running := configured(t, `
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: latest, warn: restricted}
    exemptions: {usernames: [trusted], runtimeClasses: [sandbox], namespaces: [open]}
`)
	clientset, warned := running.Warned(t)
	for _, ns := range []string{"dev", "open"} {
		servertest.MakeNamespace(t, clientset, ns, nil)
	}
	servertest.MakeNamespace(t, clientset, "free", map[string]string{
		"pod-security.kubernetes.io/enforce": "privileged",
		"pod-security.kubernetes.io/warn":    "privileged",
	})
	if _, err := clientset.NodeV1().RuntimeClasses().Create(t.Context(),
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "sandbox"}, Handler: "h"},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	host := func(ns, name string) *corev1.Pod {
		p := servertest.PodIn(ns, name)
		p.Spec.HostNetwork = true
		return p
	}
	try := func(c kubernetes.Interface, p *corev1.Pod) error {
		_, err := c.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
		return err
	}
	if err := try(clientset, host("dev", "a")); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `violates PodSecurity "baseline:latest"`) {
		t.Errorf("by default: got %v", err)
	}
	warned.Take()
	if err := try(clientset, servertest.PodIn("dev", "b")); err != nil {
		t.Fatal(err)
	}
	if got := warned.Take(); len(got) != 1 ||
		!strings.HasPrefix(got[0], `would violate PodSecurity "restricted:latest"`) {
		t.Errorf("default warnings: got %q", got)
	}
	for _, p := range []*corev1.Pod{host("open", "a"), host("free", "a")} {
		if err := try(clientset, p); err != nil {
			t.Errorf("in %s: %v", p.Namespace, err)
		}
	}
	sandboxed := host("dev", "c")
	class := "sandbox"
	sandboxed.Spec.RuntimeClassName = &class
	if err := try(clientset, sandboxed); err != nil {
		t.Errorf("runtime class: %v", err)
	}
	trusted, err := kubernetes.NewForConfig(running.User("trusted", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	if err := try(trusted, host("dev", "d")); err != nil {
		t.Errorf("user: %v", err)
	}
	if got := warned.Take(); len(got) != 0 {
		t.Errorf("the exempt were warned of: %q", got)
	}
	metrics := get(t, running, "/metrics")
	for _, want := range []string{
		`pod_security_evaluations_total{decision="deny",mode="enforce",policy_level="baseline",policy_version="latest",request_operation="create",resource="pod",subresource=""} 1`,
		`pod_security_evaluations_total{decision="deny",mode="warn",policy_level="restricted",policy_version="latest",request_operation="create",resource="pod",subresource=""} 1`,
		`pod_security_exemptions_total{request_operation="create",resource="pod",subresource=""} 3`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// get reads a path of the server.
func get(t *testing.T, r *servertest.Running, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.Rest.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return string(b)
}

// TestLimitedResources: what is limited by default may be used only where a quota covers the use.
func TestLimitedResources(t *testing.T) {
	running := configured(t, `
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: persistentvolumeclaims
      matchContains: [".storageclass.storage.k8s.io/requests.storage"]
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [vital]}
`)
	clientset := running.Clients(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, clientset, "dev", nil)
	if _, err := clientset.SchedulingV1().PriorityClasses().Create(ctx,
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "vital"}, Value: 9},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := func(name, class string) error {
		_, err := clientset.CoreV1().PersistentVolumeClaims("dev").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")},
				},
			},
		}, metav1.CreateOptions{})
		return err
	}
	vital := func(name, class string) error {
		p := servertest.PodIn("dev", name)
		p.Spec.PriorityClassName = class
		_, err := clientset.CoreV1().Pods("dev").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	want := `persistentvolumeclaims "a" is forbidden: insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage`
	if err := claim("a", "gold"); !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("claim without a quota: got %v, want %s", err, want)
	}
	if err := claim("b", ""); err != nil {
		t.Errorf("claim without a class: %v", err)
	}
	want = `pods "a" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [vital]}]`
	if err := vital("a", "vital"); !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("pod without a quota: got %v, want %s", err, want)
	}
	if err := vital("b", ""); err != nil {
		t.Errorf("pod of no class: %v", err)
	}
	quota := func(name string, spec corev1.ResourceQuotaSpec) {
		t.Helper()
		q, err := clientset.CoreV1().ResourceQuotas("dev").Create(ctx,
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q.Status.Hard = spec.Hard
		q.Status.Used = corev1.ResourceList{} // no controller runs here
		for n := range spec.Hard {
			q.Status.Used[n] = resource.MustParse("0")
		}
		if _, err := clientset.CoreV1().ResourceQuotas("dev").UpdateStatus(ctx, q, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	quota("gold", corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"gold.storageclass.storage.k8s.io/requests.storage": resource.MustParse("1Gi")},
	})
	quota("vital", corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"pods": resource.MustParse("1")},
		ScopeSelector: &corev1.ScopeSelector{
			MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{
					ScopeName: corev1.ResourceQuotaScopePriorityClass,
					Operator:  corev1.ScopeSelectorOpIn,
					Values:    []string{"vital"},
				},
			},
		},
	})
	waittest.Right(t, "a claim that a quota covers", func() string {
		if err := claim("c", "gold"); err != nil {
			return err.Error()
		}
		return ""
	})
	waittest.Right(t, "a pod that a quota covers", func() string {
		if err := vital("c", "vital"); err != nil {
			return err.Error()
		}
		return ""
	})
	if err := claim("d", "gold"); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "exceeded quota: gold") {
		t.Errorf("more than the quota: got %v", err)
	}
	if err := claim("d", "silver"); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "insufficient quota to consume: silver.storageclass") {
		t.Errorf("another class: got %v", err)
	}
}

// TestWebhookCredentials: the server shows a webhook's server the user that the kubeconfig has for it.
func TestWebhookCredentials(t *testing.T) {
	h := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return allow() })
	host := strings.TrimPrefix(h.URL, "https://")
	kubeconfig := filepath.Join(t.TempDir(), "webhooks.kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
users:
- name: %q
  user: {token: for-that-host}
- name: '*'
  user: {username: any, password: body}
`, host)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := configured(t, fmt.Sprintf(`
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s}
`, kubeconfig))
	c := r.Clients(t)
	servertest.MakeNamespace(t, c, "hooked", map[string]string{"hooked": "yes"})
	other := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return allow() })
	validate(t, c, "v", validating("known.example.com", h.client("/"), rule("CREATE", "secrets")),
		validating("other.example.com", other.client("/"), rule("CREATE", "secrets")))
	mutate(t, c, "m", mutating("mutating.example.com", h.client("/"), rule("CREATE", "configmaps")))
	if _, err := c.CoreV1().Secrets("hooked").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	shown := func(h *hookServer) []string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Compact(slices.Sorted(slices.Values(h.auth)))
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("any:body"))
	if got := shown(other); !slices.Equal(got, []string{basic}) {
		t.Errorf("other host: got %q, want %q", got, basic)
	}
	// The mutating plugin has no configuration: it shows nothing.
	if got := shown(h); !slices.Equal(got, []string{"", "Bearer for-that-host"}) {
		t.Errorf("known host: got %q, want the token from one plugin and nothing from the other", got)
	}
}

// TestAdmissionMetrics: dashboards find what they look for.
func TestAdmissionMetrics(t *testing.T) {
	running, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch q.Name {
		case "refused":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: 418, Message: "no"}}
		case "broken":
			return nil
		}
		return allow()
	})
	open := registrationv1.Ignore
	skipping := validating("skip.example.com", hookServer.client("/"), rule("CREATE", "secrets"))
	skipping.MatchConditions = []registrationv1.MatchCondition{{Name: "no", Expression: "false"}}
	ignored := validating("open.example.com", hookServer.client("/"), rule("CREATE", "secrets"))
	ignored.FailurePolicy = &open
	validate(t, clientset, "v", validating("judge.example.com", hookServer.client("/"), rule("CREATE", "secrets")),
		skipping, ignored)
	enforce(t, clientset, "odd", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchRules("CREATE", "serviceaccounts"),
		Validations: []registrationv1.Validation{
			{Expression: "object.metadata.name != 'odd'"},
			{Expression: "object.metadata.name != 'worse' || object.nothing == 1"},
		},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{
		registrationv1.Deny, registrationv1.Audit,
	}})
	ctx := t.Context()
	for _, name := range []string{"fine", "refused", "broken"} {
		// the metrics show the outcome
		_, _ = clientset.CoreV1().Secrets("hooked").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
	}
	for _, name := range []string{"odd", "worse"} {
		// the same
		_, _ = clientset.CoreV1().ServiceAccounts("hooked").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	metrics := get(t, running, "/metrics")
	for _, want := range []string{
		`apiserver_admission_webhook_admission_duration_seconds_count{name="judge.example.com",operation="CREATE",rejected="false",type="validating"} 1`,
		`apiserver_admission_webhook_admission_duration_seconds_count{name="judge.example.com",operation="CREATE",rejected="true",type="validating"} 2`,
		`apiserver_admission_webhook_rejection_count{error_type="no_error",name="judge.example.com",operation="CREATE",rejection_code="418",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="judge.example.com",operation="CREATE",rejection_code="418",type="validating"} 1`,
		`apiserver_admission_webhook_request_total{code="200",name="judge.example.com",operation="CREATE",rejected="false",type="validating"} 1`,
		`apiserver_admission_webhook_fail_open_count{name="open.example.com",type="validating"} 1`,
		`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="skip.example.com",operation="CREATE",type="validating"} 3`,
		`apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="skip.example.com",operation="CREATE",type="validating"} 3`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="odd",policy_binding="odd-binding"} `,
		`apiserver_validating_admission_policy_check_total{enforcement_action="audit",error_type="invalid_error",policy="odd",policy_binding="odd-binding"} `,
		`apiserver_validating_admission_policy_check_duration_seconds_count{enforcement_action="deny",error_type="invalid_error",policy="odd",policy_binding="odd-binding"} `,
		`apiserver_admission_controller_admission_duration_seconds_count{name="ValidatingAdmissionWebhook",operation="CREATE",rejected="true",type="validate"} `,
		`apiserver_admission_controller_admission_duration_seconds_count{name="DefaultStorageClass",operation="CREATE",rejected="false",type="admit"} `,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="false",type="admit"} `,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="true",type="validate"} `,
		`apiserver_admission_step_admission_duration_seconds_summary_count{operation="CREATE",rejected="false",type="validate"} `,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}
