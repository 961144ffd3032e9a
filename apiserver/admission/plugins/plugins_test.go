// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
	"keelson/auth"
	"keelson/auth/authz"
)

// bare is Objects that knows one namespace; what is not asked for is not there.
type bare struct{ Objects }

func (bare) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	if gvr.Resource == "namespaces" {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"kubernetes.io/metadata.name": name},
		}}, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (bare) Resolve(context.Context, string, string, int32) (string, error) { return "", nil }

func build(t *testing.T, c Config) []admission.Plugin {
	t.Helper()
	c.Objects = bare{}
	c.NodeName = authz.NodeName
	chain, _, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return chain.Plugins()
}

// TestNothingConfiguredCostsNothing: plugins that users configure allocate nothing where they did not.
func TestNothingConfiguredCostsNothing(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main"}},
		},
	}
	req := &admission.Request{
		Operation: admission.Create,
		Resource:  corev1.SchemeGroupVersion.WithResource("pods"),
		Kind:      corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace: "dev",
		Name:      "p",
		Object:    pod,
		User:      &auth.User{Name: "ann"},
		Warn:      func(string) {},
	}
	ctx := t.Context()
	if _, err := req.NamespaceObject(ctx, bare{}); err != nil {
		t.Fatal(err)
	}
	free := []string{
		"PodSecurity", "DefaultStorageClass", "PersistentVolumeClaimResize", "RuntimeClass", "CertificateApproval",
		"CertificateSigning",
		"ClusterTrustBundleAttest", "CertificateSubjectRestriction", "DefaultIngressClass", "PodTopologyLabels",
		"NodeDeclaredFeatureValidator", "PodResizeValidator",
		"MutatingAdmissionPolicy",
		"MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota",
	}
	for _, plugin := range build(t, Config{}) {
		if !slices.Contains(free, plugin.Name()) {
			continue
		}
		n := testing.AllocsPerRun(100, func() {
			if m, ok := plugin.(admission.Mutator); ok {
				if err := m.Admit(ctx, req); err != nil {
					t.Error(err)
				}
			}
			if v, ok := plugin.(admission.Validator); ok {
				if err := v.Validate(ctx, req); err != nil {
					t.Error(err)
				}
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations, want none", plugin.Name(), n)
		}
		free = slices.DeleteFunc(free, func(name string) bool { return name == plugin.Name() })
	}
	if len(free) > 0 {
		t.Errorf("not in the chain: %v", free)
	}
}

// TestOrder: the table has Kubernetes' plugins in the order of its AllOrderedPlugins, and those of its own at their
// places. See docs/checklists/admission-plugin.md.
func TestOrder(t *testing.T) {
	want := strings.Fields(`
AlwaysAdmit NamespaceAutoProvision NamespaceLifecycle NamespaceExists LimitPodHardAntiAffinityTopology LimitRanger
ServiceAccount NodeRestriction TaintNodesByCondition AlwaysPullImages ImagePolicyWebhook PodSecurity PodNodeSelector
Priority DefaultTolerationSeconds PodTolerationRestriction EventRateLimit ExtendedResourceToleration DefaultStorageClass
StorageObjectInUseProtection PodGroupProtection OwnerReferencesPermissionEnforcement PersistentVolumeClaimResize
RuntimeClass CertificateApproval CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction
DefaultIngressClass DenyServiceExternalIPs ServiceExternalIPs PodTopologyLabels NodeDeclaredFeatureValidator
PodResizeValidator MutatingAdmissionPolicy MutatingAdmissionWebhook ValidatingAdmissionPolicy
ValidatingAdmissionWebhook ResourceQuota AlwaysDeny`)
	if diff := cmp.Diff(want, Names()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEnableAndDisable(t *testing.T) {
	has := func(c []admission.Plugin, name string) bool {
		return slices.ContainsFunc(c, func(p admission.Plugin) bool { return p.Name() == name })
	}
	plain := build(t, Config{})
	if has(plain, "AlwaysPullImages") || !has(plain, "Priority") {
		t.Error("the default chain is not the default")
	}
	other := build(t, Config{Enable: []string{"AlwaysPullImages"}, Disable: []string{"Priority"}})
	if !has(other, "AlwaysPullImages") || has(other, "Priority") {
		t.Error("enable and disable have no effect")
	}
	for _, tt := range []struct {
		enable, disable []string
		want            string
	}{
		{[]string{"Nonsense"}, nil, `enable-admission-plugins plugin "Nonsense" is unknown`},
		{[]string{"priority"}, nil, `enable-admission-plugins plugin "priority" is unknown`},
		{[]string{"PodGroupProtection"}, nil, ""},
		{nil, []string{"Nonsense"}, `disable-admission-plugins plugin "Nonsense" is unknown`},
		{
			[]string{"Priority", "LimitRanger"},
			[]string{"LimitRanger", "Priority"},
			`[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped`,
		},
		{[]string{"Priority"}, []string{"ImagePolicyWebhook", "NodeRestriction"}, ""},
		{
			[]string{
				"a", "b",
			}, nil, "enable-admission-plugins plugin \"a\" is unknown\nenable-admission-plugins plugin \"b\" is " +
				"unknown",
		},
	} {
		if err := Check(tt.enable, tt.disable); tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("enable %v, disable %v: got %v, want %s", tt.enable, tt.disable, err, tt.want)
		}
	}
	for i, p := range plain {
		if p.Name() == "ResourceQuota" && i != len(plain)-1 { // AlwaysDeny is off
			t.Error("quota is not charged last")
		}
	}
	for _, r := range table {
		if r.name == "EventRateLimit" || r.name == "ImagePolicyWebhook" {
			continue // they cannot be without a document: TestConfigured, and the package of its own
		}
		p, _, err := r.build(&Config{Objects: bare{}})
		if err != nil || p.Name() != r.name {
			t.Errorf("row %s makes %v, %v", r.name, p, err)
		}
	}
}

// TestConfigured: each plugin takes its own document and refuses another's.
func TestConfigured(t *testing.T) {
	parse := func(text string) *config.File {
		t.Helper()
		f, err := config.Parse([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: "+
			"AdmissionConfiguration\nplugins:\n"+text), Names(), func(string) ([]byte, error) {
			return nil, errors.New("no files here")
		})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	good := `- name: EventRateLimit
  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: 1, burst: 1}]}
- name: PodSecurity
  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: baseline}}
- name: ResourceQuota
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods, matchContains: [pods]}]}
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration}
`
	if _, _, err := New(Config{Objects: bare{}, File: parse(good), Enable: []string{"EventRateLimit"}}); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"- name: EventRateLimit\n  configuration: {apiVersion: v1, kind: Limits}\n": `couldn't init admission plugin "EventRateLimit": plugins[0] (EventRateLimit): it is a "Limits" of "v1", not a Configuration of eventratelimit.admission.k8s.io/v1alpha1`,
		"- name: EventRateLimit\n": `couldn't init admission plugin "EventRateLimit": limits: Invalid value: []: must not be empty`,
		"- name: EventRateLimit\n  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: " +
			"Configuration, limits: [{type: Host, qps: 0, burst: 1}, {type: User, qps: 1, burst: 1, cacheSize: " +
			"-1}]}\n": `plugins[0] (EventRateLimit): [limits[0].type: Unsupported value: "Host": supported values: "Namespace", "Server", "SourceAndObject", "User", limits[0].qps: Invalid value: 0: must be positive, limits[1].cacheSize: Invalid value: -1: must not be negative]`,
		"- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: " +
			"PodSecurityConfiguration, defaults: {enforce: cosy, warn-version: v0}, exemptions: {namespaces: [a, a, " +
			"B], usernames: ['']}}\n": `couldn't init admission plugin "PodSecurity": plugins[0] (PodSecurity): [defaults.enforce: Invalid value: "cosy": must be one of privileged, baseline, restricted`,
		"- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: " +
			"PodSecurityConfiguration, default: {}}\n": `plugins[0] (PodSecurity): strict decoding error: unknown field "default"`,
		"- name: ResourceQuota\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: " +
			"ResourceQuotaConfiguration, limitedResources: [{apiGroup: apps}]}\n": `plugins[0] (ResourceQuota): limitedResources[0].resource: Required value`,
		"- name: MutatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: " +
			"WebhookAdmissionConfiguration, kubeConfigFile: here}\n": `plugins[0] (MutatingAdmissionWebhook): kubeConfigFile: Invalid value: "here": must be an absolute file path`,
		"- name: MutatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: " +
			"WebhookAdmissionConfiguration, kubeConfigFile: /does/not/exist}\n": `no such file or directory`,
		"- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: " +
			"WebhookAdmissionConfiguration, staticManifestsDir: /x}\n": `staticManifestsDir: webhooks from files are not supported`,
	} {
		_, _, err := New(Config{Objects: bare{}, File: parse(text), Enable: enabledFor(text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// enabledFor is the plugin that is off by default, where text is about it.
func enabledFor(text string) []string {
	if strings.Contains(text, "EventRateLimit") {
		return []string{"EventRateLimit"}
	}
	return nil
}
