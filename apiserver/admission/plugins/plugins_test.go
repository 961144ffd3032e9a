// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/auth"
	"keelson/auth/authz"
)

// bare is Objects that knows one namespace; what is not asked for is not there.
type bare struct{ Objects }

func (bare) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	if gvr.Resource == "namespaces" {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}}, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (bare) Resolve(context.Context, string, string, int32) (string, error) { return "", nil }

func build(t *testing.T, c Config) admission.Chain {
	t.Helper()
	c.Objects, c.NodeName = bare{}, authz.NodeName
	chain, _, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// TestNothingConfiguredCostsNothing: plugins that users configure allocate nothing where they did not.
func TestNothingConfiguredCostsNothing(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	r := &admission.Request{
		Operation: admission.Create, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace: "dev", Name: "p", Object: pod, User: &auth.User{Name: "ann"}, Warn: func(string) {},
	}
	ctx := t.Context()
	if _, err := r.NamespaceObject(ctx, bare{}); err != nil {
		t.Fatal(err)
	}
	free := []string{
		"PodSecurity", "DefaultStorageClass", "PersistentVolumeClaimResize", "RuntimeClass", "CertificateApproval", "CertificateSigning",
		"ClusterTrustBundleAttest", "CertificateSubjectRestriction", "DefaultIngressClass", "PodTopologyLabels", "MutatingAdmissionPolicy",
		"MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota",
	}
	for _, p := range build(t, Config{}) {
		if !slices.Contains(free, p.Name()) {
			continue
		}
		n := testing.AllocsPerRun(100, func() {
			if m, ok := p.(admission.Mutator); ok {
				if err := m.Admit(ctx, r); err != nil {
					t.Error(err)
				}
			}
			if v, ok := p.(admission.Validator); ok {
				if err := v.Validate(ctx, r); err != nil {
					t.Error(err)
				}
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations, want none", p.Name(), n)
		}
		free = slices.DeleteFunc(free, func(name string) bool { return name == p.Name() })
	}
	if len(free) > 0 {
		t.Errorf("not in the chain: %v", free)
	}
}

func TestEnableAndDisable(t *testing.T) {
	has := func(c admission.Chain, name string) bool {
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
	if _, _, err := New(Config{Enable: []string{"Nonsense"}}); err == nil || !strings.Contains(err.Error(), `admission plugin "Nonsense" is unknown`) {
		t.Errorf("unknown plugin: got %v", err)
	}
	for i, p := range plain {
		if p.Name() == "ResourceQuota" && i != len(plain)-1 {
			t.Error("quota is not charged last")
		}
	}
	for _, r := range table {
		p, _, err := r.make(&Config{Objects: bare{}})
		if err != nil || p.Name() != r.name {
			t.Errorf("row %s makes %v, %v", r.name, p, err)
		}
	}
}
