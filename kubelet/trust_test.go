// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/waittest"
)

func pemOf(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

// TestTrustArrivesLateAndChanges: a pod waits for a signer's bundle and for its own certificate, and gets what becomes
// of both.
func TestTrustArrivesLateAndChanges(t *testing.T) {
	harness := newHarness(t)
	// the fake API makes no names
	harness.api.PrependReactor("create", "podcertificaterequests", func(
		a k8stesting.Action,
	) (bool, runtime.Object, error) {
		if r, ok := a.(k8stesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest); ok { // a create
			r.Name = r.GenerateName + "1"
		}
		return false, nil, nil
	})
	harness.run()
	ctx := t.Context()
	certs := harness.api.CertificatesV1()
	if _, err := harness.api.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "a-uid"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	signer := "example.com/s"
	yes := true
	harness.create(testPod("trust", func(pod *corev1.Pod) {
		pod.Spec.ServiceAccountName = "web"
		pod.Spec.Volumes = []corev1.Volume{{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{
						SignerName:    &signer,
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
						Path:          "trust.pem",
						Optional:      &yes,
					}},
					{
						PodCertificate: &corev1.PodCertificateProjection{
							SignerName:           signer,
							KeyType:              "ED25519",
							CredentialBundlePath: "cert.pem",
						},
					},
				}},
			},
		}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/trust"}}
	}))
	var req *certificatesv1.PodCertificateRequest
	waittest.Until(t, "the pod's certificate is asked for", func() bool {
		l, err := certs.PodCertificateRequests("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(l.Items) == 0 {
			return false
		}
		req = &l.Items[0]
		return true
	})
	if s := req.Spec; s.PodName != "trust" || s.PodUID == "" || s.ServiceAccountName != "web" ||
		s.ServiceAccountUID != "a-uid" || s.NodeName != nodeName || s.SignerName != signer {
		t.Errorf("the request: %+v", s)
	}
	harness.waitEvent("FailedMount", "is not issued yet")
	req = req.DeepCopy()
	req.Status.Conditions = []metav1.Condition{
		{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue},
	}
	req.Status.CertificateChain = pemOf("chain")
	req.Status.BeginRefreshAt = &metav1.Time{Time: time.Now().Add(time.Hour)}
	if _, err := certs.PodCertificateRequests("default").UpdateStatus(ctx, req, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.until("trust", "ready", ready)
	mounts := harness.rt.Config(harness.rt.Containers("c")[0]).GetMounts()
	i := slices.IndexFunc(mounts, func(m *runtimeapi.Mount) bool { return m.GetContainerPath() == "/trust" })
	if i < 0 {
		t.Fatalf("mounts: %v, want /trust", mounts)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(mounts[i].GetHostPath(), name))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	if got := read("cert.pem"); !strings.HasPrefix(got, "-----BEGIN PRIVATE KEY-----") ||
		!strings.HasSuffix(got, pemOf("chain")) || read("trust.pem") != "" {
		t.Errorf("certificate %s, trust %s", got, read("trust.pem"))
	}
	bundle := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "example.com:s:1", Labels: map[string]string{"a": "b"}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pemOf("one")},
	}
	if _, err := certs.ClusterTrustBundles().Create(ctx, bundle, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the bundle is there", func() bool { return read("trust.pem") == pemOf("one") })
	bundle = bundle.DeepCopy()
	bundle.Spec.TrustBundle = pemOf("two")
	if _, err := certs.ClusterTrustBundles().Update(ctx, bundle, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the bundle has changed", func() bool { return read("trust.pem") == pemOf("two") })
}
