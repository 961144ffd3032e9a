// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
)

func TestPodSecurity(t *testing.T) {
	r := servertest.StartAdmitting(t)
	clientset, warned := r.Warned(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, clientset, "strict", map[string]string{
		"pod-security.kubernetes.io/enforce": "baseline",
		"pod-security.kubernetes.io/warn":    "restricted",
	})
	plain := servertest.MakeNamespace(t, clientset, "plain", nil)

	host := servertest.PodIn("strict", "host")
	host.Spec.HostNetwork = true
	_, err := clientset.CoreV1().Pods("strict").Create(ctx, host, metav1.CreateOptions{})
	want := `pods "host" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true), hostPort (container "main" uses hostPort 80)`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("host network: got %v, want %s", err, want)
	}
	if got := warned.Take(); len(got) != 0 {
		t.Errorf("a refused pod also warned: %q", got)
	}
	if _, err := clientset.CoreV1().Pods("strict").Create(ctx, servertest.PodIn("strict", "usual"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := warned.Take()
	if len(got) != 1 ||
		!strings.HasPrefix(got[0],
			`would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "main" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "main" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true`) {
		t.Errorf("usual pod: got warnings %q", got)
	}
	labels := map[string]string{"a": "b"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: host.Spec},
		},
	}
	if _, err := clientset.AppsV1().Deployments("strict").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatalf("deployments are warned of, never refused: %v", err)
	}
	if got := warned.Take(); len(got) != 1 || !strings.HasPrefix(got[0],
		`would violate PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`) {
		t.Errorf("deployment: got warnings %q", got)
	}

	for _, name := range []string{"b", "a"} {
		p := servertest.PodIn("plain", name)
		p.Spec.HostPID = true
		if _, err := clientset.CoreV1().Pods("plain").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	plain.Labels["pod-security.kubernetes.io/enforce"] = "baseline"
	if _, err := clientset.CoreV1().Namespaces().Update(ctx, plain,
		metav1.UpdateOptions{DryRun: []string{"All"}}); err != nil {
		t.Fatal(err)
	}
	wantAll := []string{
		`existing pods in namespace "plain" violate the new PodSecurity enforce level "baseline:latest"`,
		`a (and 1 other pod): host namespaces`,
	}
	if got := warned.Take(); !slices.Equal(got, wantAll) {
		t.Errorf("stricter level: got warnings %q, want %q", got, wantAll)
	}
	plain.Labels["pod-security.kubernetes.io/enforce"] = "cosy"
	_, err = clientset.CoreV1().Namespaces().Update(ctx, plain, metav1.UpdateOptions{})
	want = `Namespace "plain" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "cosy": must be one of privileged, baseline, restricted`
	if !apierrors.IsInvalid(err) || err.Error() != want {
		t.Errorf("unknown level: got %v, want %s", err, want)
	}
}
