// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/storage"
	"keelson/auth"
	"keelson/auth/authz"
)

func TestRuntimeClass(t *testing.T) {
	p := RuntimeClass{cacheOf(map[schema.GroupVersionResource][]runtime.Object{runtimeClasses: {&nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Overhead: &nodev1.Overhead{PodFixed: quantities("cpu", "250m")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm"}}},
	}}})}
	named := func(class string) *corev1.Pod {
		o := pod()
		o.Spec.RuntimeClassName = &class
		return o
	}
	got := named("vm")
	for range 2 { // twice changes nothing more
		if err := p.Admit(t.Context(), creation(got)); err != nil {
			t.Fatal(err)
		}
	}
	if got.Spec.Overhead.Cpu().String() != "250m" || got.Spec.NodeSelector["vm"] != "yes" || len(got.Spec.Tolerations) != 1 {
		t.Errorf("got overhead %v, selector %v, tolerations %v", got.Spec.Overhead, got.Spec.NodeSelector, got.Spec.Tolerations)
	}
	if err := p.Validate(t.Context(), creation(got)); err != nil {
		t.Error(err)
	}
	wantForbidden(t, "unknown class", p.Admit(t.Context(), creation(named("gone"))), `pod rejected: RuntimeClass "gone" not found`)
	own := pod()
	own.Spec.Overhead = quantities("cpu", "1")
	wantForbidden(t, "overhead without a class", p.Validate(t.Context(), creation(own)), "Pod Overhead set without corresponding RuntimeClass defined Overhead")
	other := named("vm")
	other.Spec.NodeSelector = map[string]string{"vm": "no"}
	wantForbidden(t, "selectors in conflict", p.Admit(t.Context(), creation(other)), "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no")
}

func TestDefaultClasses(t *testing.T) {
	at := func(minute int, name, annotation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)), Annotations: map[string]string{annotation: "true"},
		}
	}
	yes := true
	c := cacheOf(map[schema.GroupVersionResource][]runtime.Object{
		storageClasses: {
			&storagev1.StorageClass{ObjectMeta: at(1, "old", storage.DefaultClassAnnotation)}, &storagev1.StorageClass{ObjectMeta: at(2, "new", "storageclass.beta.kubernetes.io/is-default-class"), AllowVolumeExpansion: &yes},
			&storagev1.StorageClass{ObjectMeta: at(3, "other", "x")},
		},
		ingressClasses: {&networkingv1.IngressClass{ObjectMeta: at(1, "b", networkingv1.AnnotationIsDefaultIngressClass)}, &networkingv1.IngressClass{ObjectMeta: at(1, "a", networkingv1.AnnotationIsDefaultIngressClass)}},
	})
	claim := &corev1.PersistentVolumeClaim{}
	if err := (DefaultStorageClass{c}).Admit(t.Context(), &Request{Operation: Create, Object: claim}); err != nil || *claim.Spec.StorageClassName != "new" {
		t.Errorf("claim: got %v, %v, want new", claim.Spec.StorageClassName, err)
	}
	none := ""
	own := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &none}}
	if err := (DefaultStorageClass{c}).Admit(t.Context(), &Request{Operation: Create, Object: own}); err != nil || *own.Spec.StorageClassName != "" {
		t.Errorf("claim that wants no class: got %q, %v", *own.Spec.StorageClassName, err)
	}
	ingress := &networkingv1.Ingress{}
	if err := (DefaultIngressClass{c}).Admit(t.Context(), &Request{Operation: Create, Object: ingress}); err != nil || *ingress.Spec.IngressClassName != "a" {
		t.Errorf("ingress: got %v, %v, want a", ingress.Spec.IngressClassName, err)
	}
	sized := func(class, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: quantities("storage", size)},
		}}
	}
	resize := PersistentVolumeClaimResize{c}
	grow := func(class string) error {
		return resize.Validate(t.Context(), &Request{Operation: Update, Object: sized(class, "2Gi"), OldObject: sized(class, "1Gi")})
	}
	if err := grow("new"); err != nil {
		t.Errorf("class that allows it: %v", err)
	}
	wantForbidden(t, "class that does not", grow("old"), "the storageclass that provisions the pvc must support resize")
}

// permits is an authorizer that allows what is listed as "verb name".
type permits []string

func (p permits) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	if slices.Contains(p, a.Verb+" "+a.Name) {
		return auth.Decision{Verdict: auth.Allow}, nil
	}
	return auth.Decision{}, nil
}

func TestCertificatePlugins(t *testing.T) {
	csr := func(signer string, cert string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}, Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(cert)}}
	}
	write := func(sub, signer string) *Request {
		return &Request{Operation: Update, Subresource: sub, Object: csr(signer, "new"), OldObject: csr(signer, ""), User: &auth.User{Name: "ann"}}
	}
	may := permits{"approve example.com/*", "sign example.com/one"}
	if err := (CertificateApproval{may}).Validate(t.Context(), write("approval", "example.com/any")); err != nil {
		t.Errorf("approve by domain: %v", err)
	}
	wantForbidden(t, "approve", CertificateApproval{may}.Validate(t.Context(), write("approval", "other.com/any")), `user not permitted to approve requests with signerName "other.com/any"`)
	if err := (CertificateSigning{may}).Validate(t.Context(), write("status", "example.com/one")); err != nil {
		t.Errorf("sign: %v", err)
	}
	wantForbidden(t, "sign", CertificateSigning{may}.Validate(t.Context(), write("status", "example.com/two")), `user not permitted to sign requests with signerName "example.com/two"`)
}

func TestTopologyLabels(t *testing.T) {
	p := PodTopologyLabels{cacheOf(map[schema.GroupVersionResource][]runtime.Object{nodes: {&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelHostname: "n"},
	}}}})}
	b := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := p.Admit(t.Context(), &Request{Operation: Create, Resource: pods, Subresource: "binding", Object: b}); err != nil || len(b.Labels) != 1 || b.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("got %v, %v", b.Labels, err)
	}
}

func TestNodeLabels(t *testing.T) {
	p := NodeRestriction{Reader: cache{}, NodeName: authz.NodeName}
	node := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels}}
	}
	kubelet := &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}}
	try := func(op Operation, labels, old map[string]string) error {
		r := &Request{Operation: op, Resource: nodes, Name: "node-1", Object: node(labels), User: kubelet}
		if op == Update {
			r.OldObject = node(old)
		}
		return p.Validate(t.Context(), r)
	}
	if err := try(Create, map[string]string{corev1.LabelHostname: "h", "example.com/x": "y", "node.kubernetes.io/y": "z"}, nil); err != nil {
		t.Errorf("its own labels: %v", err)
	}
	wantForbidden(t, "create", try(Create, map[string]string{"node-role.kubernetes.io/master": "", "node-restriction.kubernetes.io/x": ""}, nil),
		`node "node-1" is not allowed to set the following labels: node-restriction.kubernetes.io/x, node-role.kubernetes.io/master`)
	wantForbidden(t, "update", try(Update, nil, map[string]string{"node-restriction.kubernetes.io/x": ""}), "is not allowed to modify labels: node-restriction.kubernetes.io/x")
}

func TestSecondRound(t *testing.T) {
	p := ServiceAccount{Reader: cacheOf(map[schema.GroupVersionResource][]runtime.Object{serviceAccounts: {
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "default"}},
	}})}
	obj := pod()
	if err := p.Admit(t.Context(), creation(obj)); err != nil {
		t.Fatal(err)
	}
	obj.Spec.Containers = append(obj.Spec.Containers, corev1.Container{Name: "side"}) // by a webhook
	if err := p.Admit(t.Context(), creation(obj)); err != nil {
		t.Fatal(err)
	}
	if len(obj.Spec.Volumes) != 1 || len(obj.Spec.Containers[1].VolumeMounts) != 1 || obj.Spec.Containers[1].VolumeMounts[0].Name != obj.Spec.Volumes[0].Name {
		t.Errorf("got volumes %v, mounts %v", obj.Spec.Volumes, obj.Spec.Containers[1].VolumeMounts)
	}
}
