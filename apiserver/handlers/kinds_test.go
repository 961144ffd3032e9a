// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"

	scalingv1 "k8s.io/api/autoscaling/v1"
	scalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/metrics"
	"keelson/apiserver/servertest"
)

// TestTwoVersions: one stored autoscaler, read and written in either version.
func TestTwoVersions(t *testing.T) {
	r := servertest.Start(t, nil)
	clientset := r.Clients(t)
	ctx := t.Context()
	made, err := clientset.AutoscalingV2().HorizontalPodAutoscalers("default").Create(
		ctx, &scalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: scalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: scalingv2.CrossVersionObjectReference{
					Kind:       "Deployment",
					Name:       "web",
					APIVersion: "apps/v1",
				},
				MaxReplicas: 5,
				Behavior:    &scalingv2.HorizontalPodAutoscalerBehavior{},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := clientset.AutoscalingV1().HorizontalPodAutoscalers("default")
	list, err := old.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list of v1: %v, %d items, want 1", err, len(list.Items))
	}
	h := list.Items[0]
	if n := h.Spec.TargetCPUUtilizationPercentage; h.UID != made.UID || n == nil || *n != 80 {
		t.Errorf("v1: got uid %s, cpu target %v, want %s and 80", h.UID, n, made.UID)
	}
	h.Spec.MaxReplicas = 7
	if _, err := old.Update(ctx, &h, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := clientset.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || got.Spec.MaxReplicas != 7 || got.Spec.Behavior == nil || len(got.Annotations) != 0 {
		t.Errorf("v2 after an update in v1: %v, %+v", err, got)
	}
	fresh := &scalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: scalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: scalingv1.CrossVersionObjectReference{
				Kind:       "Deployment",
				Name:       "db",
				APIVersion: "apps/v1",
			},
			MaxReplicas: 2,
		},
	}
	if _, err := old.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		t.Errorf("create in v1: %v", err)
	}
}

// TestRequesterOfACertificate: the requester is the authenticated user, whatever the request says.
func TestRequesterOfACertificate(t *testing.T) {
	running := servertest.Start(t, nil)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	csrs := running.Clients(t).CertificatesV1().CertificateSigningRequests()
	ctx := t.Context()
	made, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: "example.com/signer",
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			Username:   "forged",
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Spec.Username == "forged" || made.Spec.Username == "" ||
		!slices.Contains(made.Spec.Groups, "system:authenticated") {
		t.Errorf("requester: got %q of %v", made.Spec.Username, made.Spec.Groups)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"},
	}
	approved, err := csrs.UpdateApproval(ctx, "ann", made, metav1.UpdateOptions{})
	if err != nil || len(approved.Status.Conditions) != 1 || approved.Status.Conditions[0].LastUpdateTime.IsZero() {
		t.Errorf("approval: %v, %+v", err, approved.Status)
	}
	got := running.Call(t, "GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests/ann/approval", "")
	got.Wants(t, "get of the approval", 200, `"type":"Approved"`)
	got = running.Call(t, "PATCH", "/apis/certificates.k8s.io/v1/certificatesigningrequests/ann/approval",
		`{"metadata":{"annotations":{"patched":"true"}}}`, "Content-Type", servertest.MergePatch)
	got.Wants(t, "patch of the approval", 200, `"patched":"true"`)
}

func TestNotices(t *testing.T) {
	running := servertest.Start(t, nil)
	reply := running.Call(t, "GET", "/api/v1/componentstatuses", "")
	reply.Wants(t, "list of component statuses", 200, "controller-manager")
	if want := []string{"v1 ComponentStatus is deprecated in v1.19+"}; !slices.Equal(reply.Warnings(), want) {
		t.Errorf("component statuses: got warnings %q, want %q", reply.Warnings(), want)
	}
	running.Call(t, "GET", "/api/v1/componentstatuses/none", "").Wants(t, "no such component", 404, "not found")
	running.Call(t, "DELETE", "/api/v1/componentstatuses/scheduler", "").Wants(t, "delete of a component", 405, "")
	jobs := running.Clients(t).BatchV1().Jobs("default")
	ctx := t.Context()
	if _, err := jobs.Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi"},
		Spec: batchv1.JobSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "c", Image: "busybox"}},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := running.Call(t, "DELETE", "/apis/batch/v1/namespaces/default/jobs/pi", "")
	if w := gone.Warnings(); len(w) != 1 ||
		!strings.HasPrefix(w[0], "child pods are preserved by default when jobs are deleted") {
		t.Errorf("delete of a job: got warnings %q", w)
	}
}

// TestMetricsInTwoVersions: v1 and v1beta1 of metrics.k8s.io have the same figures, each in its own kind and list, and
// v1 is what discovery prefers.
func TestMetricsInTwoVersions(t *testing.T) {
	running := servertest.Start(t, nil)
	if _, err := running.Clients(t).CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "fake-0",
			Annotations: map[string]string{
				metrics.AnnotationCPU:    "4",
				metrics.AnnotationMemory: "1Gi",
			},
		},
		Spec: corev1.NodeSpec{ProviderID: "fake://fake-0"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1", "v1beta1"} {
		path := "/apis/metrics.k8s.io/" + version
		kind := func(name string) string {
			return fmt.Sprintf(`{"kind":%q,"apiVersion":"metrics.k8s.io/%s"`, name, version)
		}
		node := running.Call(t, "GET", path+"/nodes/fake-0", "")
		node.Wants(t, version+" of a node", 200, kind("NodeMetrics"))
		node.Wants(t, version+" of a node", 200, `"usage":{"cpu":"4","memory":"1Gi"}`)
		nodes := running.Call(t, "GET", path+"/nodes", "")
		nodes.Wants(t, version+" of nodes", 200, kind("NodeMetricsList"))
		nodes.Wants(t, version+" of nodes", 200, `"usage":{"cpu":"4","memory":"1Gi"}`)
		running.Call(t, "GET", path+"/pods", "").Wants(t, version+" of pods", 200, kind("PodMetricsList"))
	}
	running.Call(t, "GET", "/apis/metrics.k8s.io", "").Wants(t, "group", 200,
		`"preferredVersion":{"groupVersion":"metrics.k8s.io/v1","version":"v1"}`)
}
