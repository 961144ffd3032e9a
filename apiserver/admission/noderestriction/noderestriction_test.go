// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

func asNode(r *admission.Request) *admission.Request {
	r.User = &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}}
	return r
}

// TestMirrorPods: a kubelet's mirror pods refer to nothing that it could read by them.
func TestMirrorPods(t *testing.T) {
	restriction := Plugin{
		NodeName: authz.NodeName,
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u"}}},
		}),
	}
	yes := true
	own := metav1.OwnerReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       "node-1",
		UID:        "u",
		Controller: &yes,
	}
	try := func(edit func(*corev1.Pod)) error {
		obj := admissiontest.Pod()
		obj.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		obj.Spec.NodeName = "node-1"
		obj.OwnerReferences = []metav1.OwnerReference{own}
		edit(obj)
		return restriction.Validate(t.Context(), asNode(admissiontest.Creation(obj)))
	}
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	projected := func(s corev1.VolumeProjection) func(*corev1.Pod) {
		return volume(corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{s}},
		})
	}
	env := func(v corev1.EnvVarSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E", ValueFrom: &v}} }
	}
	from := func(f corev1.EnvFromSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{f} }
	}
	owner := func(edit func(*metav1.OwnerReference)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { edit(&p.OwnerReferences[0]) }
	}
	for what, edit := range map[string]func(*corev1.Pod){
		"plain":     func(*corev1.Pod) {},
		"host path": volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}),
		"downward":  env(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}),
	} {
		if err := try(edit); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	const secrets, maps = `node "node-1" can not create pods that reference secrets`,
		`node "node-1" can not create pods that reference configmaps`
	for _, tt := range []struct {
		what string
		edit func(*corev1.Pod)
		want string
	}{
		{
			"another node", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" },
			"can only create pods with spec.nodeName set to itself",
		},
		{"no owner", func(p *corev1.Pod) { p.OwnerReferences = nil }, "with an owner reference set to itself"},
		{
			"two owners", func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, own) },
			"with a single owner reference set to itself",
		},
		{
			"another's", owner(func(o *metav1.OwnerReference) { o.Name = "node-2" }),
			"with an owner reference set to itself",
		},
		{
			"no controller", owner(func(o *metav1.OwnerReference) { o.Controller = nil }),
			"with a controller owner reference set to itself",
		},
		{
			"blocking", owner(func(o *metav1.OwnerReference) { o.BlockOwnerDeletion = &yes }),
			"must not set blockOwnerDeletion on an owner reference",
		},
		{
			"an older node's", owner(func(o *metav1.OwnerReference) { o.UID = "old" }),
			"node node-1 UID mismatch: expected old got u",
		},
		{
			"account", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" },
			"can not create pods that reference a service account",
		},
		{
			"pull secret", func(p *corev1.Pod) {
				p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
			}, secrets,
		},
		{"secret volume", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), secrets},
		{"projected secret", projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}), secrets},
		{
			"secret in the environment", env(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}),
			secrets,
		},
		{"secret as the environment", from(corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{}}), secrets},
		{
			"CSI secret", volume(corev1.VolumeSource{
				CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s"}},
			}), secrets,
		},
		{"config map volume", volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), maps},
		{"projected config map", projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}), maps},
		{
			"config map in the environment",
			env(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "k"}}), maps,
		},
		{"config map as the environment", from(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{}}), maps},
		{
			"trust bundle",
			projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}),
			"can not create pods that reference clustertrustbundles",
		},
		{
			"claim", volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: "c",
			}}), "can not create pods that reference persistentvolumeclaims",
		},
		{
			"ephemeral claim", volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
			"can not create pods that reference persistentvolumeclaims",
		},
		{"resource claim", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &own.Name}}
		}, "can not create pods that reference resourceclaims"},
		{
			"token", projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "t",
			}}), "can not create pods that reference a service account",
		},
		{
			"certificate", projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}),
			"can not create pods that reference a service account",
		},
	} {
		admissiontest.WantForbidden(t, tt.what, try(tt.edit), tt.want)
	}
}

// TestNodeStatuses: what a kubelet may write of pods and claims is their status, and not all of that.
func TestNodeStatuses(t *testing.T) {
	restriction := Plugin{NodeName: authz.NodeName, Reader: admissiontest.Reader{}}
	old := admissiontest.Pod()
	old.Spec.NodeName = "node-1"
	status := func(edit func(*corev1.Pod)) error {
		next := old.DeepCopy()
		edit(next)
		return restriction.Validate(t.Context(), asNode(&admission.Request{
			Operation:   admission.Update,
			Resource:    admission.Pods,
			Subresource: "status",
			Name:        "p",
			Object:      next,
			OldObject:   old,
		}))
	}
	if err := status(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }); err != nil {
		t.Errorf("phase: %v", err)
	}
	admissiontest.WantForbidden(t, "labels", status(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }),
		`node "node-1" cannot update labels through pod status`)
	name := "c"
	admissiontest.WantForbidden(t, "claims", status(func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "n", ResourceClaimName: &name}}
	}), "cannot update resource claim statues")
	admissiontest.WantForbidden(t, "claims for extended resources", status(func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: name}
	}), "cannot update extended resource claim status")

	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	before := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: "1"}}
	claim := func(sub string, edit func(*corev1.PersistentVolumeClaim)) error {
		next := before.DeepCopy()
		next.ResourceVersion = "2"
		edit(next)
		return restriction.Validate(t.Context(), asNode(&admission.Request{
			Operation:   admission.Update,
			Resource:    claims,
			Subresource: sub,
			Name:        "c",
			Object:      next,
			OldObject:   before,
		}))
	}
	if err := claim("status", func(c *corev1.PersistentVolumeClaim) {
		c.Kind = "PersistentVolumeClaim"
		c.APIVersion = "v1"
		c.Status.Capacity = admissiontest.Quantities("storage", "1Gi") // as patches are decoded
	}); err != nil {
		t.Errorf("capacity: %v", err)
	}
	admissiontest.WantForbidden(t, "phase", claim("status", func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase = corev1.ClaimBound
	}), "is not allowed to update fields other than status.capacity and status.conditions")
	admissiontest.WantForbidden(t, "the claim itself", claim("", func(*corev1.PersistentVolumeClaim) {}),
		"may only update PVC status")
}

// TestNodeCertificates: a kubelet asks for certificates of its own pods that mount one, and of those as they are.
func TestNodeCertificates(t *testing.T) {
	running := admissiontest.Pod()
	running.Namespace = "default"
	running.UID = "p-uid"
	running.Spec.NodeName = "node-1"
	running.Spec.ServiceAccountName = "web"
	running.Spec.Volumes = []corev1.Volume{{
		Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/s"}},
			},
		}},
	}}
	mirror := running.DeepCopy()
	elsewhere := running.DeepCopy()
	mirror.Name = "mirror"
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	elsewhere.Name = "elsewhere"
	elsewhere.Spec.NodeName = "node-2"
	restriction := Plugin{
		NodeName: authz.NodeName,
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n-uid"}}},
			admission.Pods:  {running, mirror, elsewhere},
			admission.ServiceAccounts: {
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "a-uid"}},
			},
		}),
	}
	try := func(edit func(*admission.Request, *certificatesv1.PodCertificateRequestSpec)) error {
		obj := &certificatesv1.PodCertificateRequest{Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName:         "example.com/s",
			PodName:            running.Name,
			PodUID:             "p-uid",
			NodeName:           "node-1",
			NodeUID:            "n-uid",
			ServiceAccountName: "web",
			ServiceAccountUID:  "a-uid",
		}}
		r := &admission.Request{
			Operation: admission.Create,
			Resource:  certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"),
			Namespace: "default",
			Object:    obj,
		}
		edit(r, &obj.Spec)
		return restriction.Validate(t.Context(), asNode(r))
	}
	if err := try(func(*admission.Request, *certificatesv1.PodCertificateRequestSpec) {}); err != nil {
		t.Errorf("of its pod: %v", err)
	}
	for _, c := range []struct {
		what      string
		edit      func(*admission.Request, *certificatesv1.PodCertificateRequestSpec)
		forbidden bool
		want      string
	}{
		{"an update", func(r *admission.Request, _ *certificatesv1.PodCertificateRequestSpec) {
			r.Operation = admission.Update
		}, true, "unexpected operation UPDATE"},
		{"a status", func(r *admission.Request, _ *certificatesv1.PodCertificateRequestSpec) {
			r.Subresource = "status"
		}, true, "unexpected subresource status"},
		{"another node", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.NodeName = "node-2"
		}, true, `Spec.NodeName="node-2", which is not the requesting node "node-1"`},
		{"an older node", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.NodeUID = "x"
		}, false, `names node UID "x", inconsistent with the running node ("n-uid")`},
		{"no such pod", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.PodName = "none"
		}, false, `while retrieving pod "default/none" named in the PodCertificateRequest`},
		{"an older pod", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.PodUID = "x"
		}, false, `contains pod UID ("x") which differs from running pod "p-uid"`},
		{"a pod elsewhere", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.PodName = "elsewhere"
		}, true, `pod "default/elsewhere" is not running on node "node-1"`},
		{"a mirror pod", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
			s.PodName = "mirror"
		}, true, `pod "default/mirror" is a mirror pod`},
		{
			"another account", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
				s.ServiceAccountName = "x"
			}, true, `contains serviceAccountName ("x") that differs from running pod ("web")`,
		},
		{
			"an older account", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
				s.ServiceAccountUID = "x"
			}, false, `names service account UID "x", which differs from the running service account ("a-uid")`,
		},
		{
			"another signer", func(_ *admission.Request, s *certificatesv1.PodCertificateRequestSpec) {
				s.SignerName = "example.com/t"
			}, true, `does not mount a podCertificate projected volume for signer "example.com/t"`,
		},
	} {
		err := try(c.edit)
		if err == nil || apierrors.IsForbidden(err) != c.forbidden || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want forbidden %v, %q", c.what, err, c.forbidden, c.want)
		}
	}
}

func TestNodeRestriction(t *testing.T) {
	mine := admissiontest.Pod()
	other := admissiontest.Pod()
	mine.Spec.NodeName = "node-1"
	mine.UID = types.UID("u1")
	mine.Spec.Volumes = []corev1.Volume{{
		Name: "token",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			},
		}},
	}}
	other.Name = "q"
	other.Spec.NodeName = "node-2"
	restriction := Plugin{
		Reader:   admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{admission.Pods: {mine, other}}),
		NodeName: authz.NodeName,
	}
	kubelet := &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}}
	run := func(r *admission.Request) error {
		r.User = kubelet
		if r.Namespace == "" {
			r.Namespace = "dev"
		}
		return restriction.Validate(t.Context(), r)
	}
	status := func(pod *corev1.Pod) *admission.Request {
		return &admission.Request{
			Operation:   admission.Update,
			Resource:    admission.Pods,
			Subresource: "status",
			Name:        pod.Name,
			Object:      pod,
			OldObject:   pod,
		}
	}
	if err := run(status(mine)); err != nil {
		t.Errorf("status of its pod: %v", err)
	}
	admissiontest.WantForbidden(t, "status of another's pod", run(status(other)),
		`node "node-1" can only update pods with spec.nodeName set to itself`)
	admissiontest.WantForbidden(t, "creating a pod", run(&admission.Request{Operation: admission.Create, Resource: admission.Pods, Object: mine}),
		"can only create mirror pods")
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	admissiontest.WantForbidden(t, "another node", run(&admission.Request{
		Operation: admission.Update,
		Resource:  nodes,
		Name:      "node-2",
		Object:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}},
	}),
		`node "node-1" is not allowed to modify node "node-2"`)
	token := func(uid types.UID) *admission.Request {
		return &admission.Request{
			Operation:   admission.Create,
			Resource:    admission.ServiceAccounts,
			Subresource: "token",
			Name:        "default",
			Object: &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
					APIVersion: "v1",
					Kind:       "Pod",
					Name:       "p",
					UID:        uid,
				}},
			},
		}
	}
	if err := run(token("u1")); err != nil {
		t.Errorf("token for its pod: %v", err)
	}
	admissiontest.WantForbidden(t, "token for a pod made again", run(token("old")), "does not match the UID in record")
	if err := restriction.Validate(t.Context(), &admission.Request{
		Operation: admission.Create,
		Resource:  admission.Pods,
		Object:    other,
		User:      &auth.User{Name: "ann"},
	}); err != nil {
		t.Errorf("a user who is no kubelet: %v", err)
	}
}
