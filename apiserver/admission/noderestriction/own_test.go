// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

// csr is a certificate request for a common name, to a signer.
func csr(t *testing.T, signer, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName:   name,
		Organization: []string{auth.Nodes},
	}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer,
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// TestNodeWrites goes through what a kubelet may write, a row for each branch of the plugin. Without want it may.
func TestNodeWrites(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	base := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "node-1",
			Labels: map[string]string{"a": "b", "node-restriction.kubernetes.io/team": "x"},
		},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}},
		},
	}
	running := admissiontest.Pod()
	elsewhere := admissiontest.Pod()
	running.Name = "mine"
	running.Namespace = "default"
	running.Spec.NodeName = "node-1"
	elsewhere.Name = "theirs"
	elsewhere.Namespace = "default"
	elsewhere.Spec.NodeName = "node-2"
	restriction := Plugin{
		NodeName: authz.NodeName,
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Pods:  {running, elsewhere},
			admission.Nodes: {base},
		}),
	}
	node := func(op admission.Operation, sub, name string, edit func(*corev1.Node)) *admission.Request {
		obj := base.DeepCopy()
		obj.Name = name
		if op == admission.Create {
			obj.Labels = nil
		}
		edit(obj)
		req := &admission.Request{
			Operation:   op,
			Resource:    admission.Nodes,
			Subresource: sub,
			Name:        name,
			Object:      obj,
			OldObject:   base,
		}
		if op == admission.Create {
			req.OldObject = nil
			req.Name = ""
		}
		return req
	}
	label := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Labels = map[string]string{"a": "b", "node-restriction.kubernetes.io/team": "x", key: "1"}
		}
	}
	only := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{key: "1"} }
	}
	nothing := func(*corev1.Node) {}
	owner := func(n *corev1.Node) {
		n.OwnerReferences = []metav1.OwnerReference{{Kind: "ConfigMap", Name: "x", UID: "y"}}
	}
	source := func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} }
	of := func(group, version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
	}
	leases := of("coordination.k8s.io", "v1", "leases")
	csinodes := of("storage.k8s.io", "v1", "csinodes")
	slices := of("resource.k8s.io", "v1", "resourceslices")
	csrs := of("certificates.k8s.io", "v1", "certificatesigningrequests")
	lease := func(op admission.Operation, ns, name string) *admission.Request {
		r := &admission.Request{
			Operation: op,
			Resource:  leases,
			Namespace: ns,
			Name:      name,
			Object:    &coordinationv1.Lease{ObjectMeta: named(name)},
		}
		if op == admission.Create {
			r.Name = ""
		}
		return r
	}
	slice := func(op admission.Operation, on string) *admission.Request {
		resourceSlice := &resourcev1.ResourceSlice{ObjectMeta: named("s")}
		if on != "" {
			resourceSlice.Spec.NodeName = &on
		}
		if op == admission.Delete {
			return &admission.Request{
				Operation: op,
				Resource:  slices,
				Name:      "s",
				OldObject: resourceSlice,
			}
		}
		return &admission.Request{
			Operation: op,
			Resource:  slices,
			Name:      "s",
			Object:    resourceSlice,
			OldObject: resourceSlice,
		}
	}
	podOp := func(op admission.Operation, sub, name string) *admission.Request {
		r := &admission.Request{
			Operation:   op,
			Resource:    admission.Pods,
			Subresource: sub,
			Namespace:   "default",
			Name:        name,
		}
		switch {
		case sub == "eviction":
			r.Object = &policyv1.Eviction{ObjectMeta: named(name)}
		case name == "mine":
			r.Object = running.DeepCopy()
			r.OldObject = running
		default:
			r.Object = elsewhere.DeepCopy()
			r.OldObject = elsewhere
		}
		return r
	}
	const labels, others = "is not allowed to modify labels: ", `node "node-1" is not allowed to modify node "node-2"`
	for what, tt := range map[string]struct {
		r    *admission.Request
		want string
	}{
		"create itself":                     {node(admission.Create, "", "node-1", nothing), ""},
		"create itself, a label of its own": {node(admission.Create, "", "node-1", only("node.kubernetes.io/x")), ""},
		"create itself, a free label":       {node(admission.Create, "", "node-1", only("example.com/x")), ""},
		"create itself, a restricted label": {
			node(admission.Create, "", "node-1", only("node-restriction.kubernetes.io/x")),
			"is not allowed to set the following labels: node-restriction.kubernetes.io/x",
		},
		"create itself, a label of Kubernetes": {
			node(admission.Create, "", "node-1", only("kubernetes.io/x")),
			"is not allowed to set the following labels: kubernetes.io/x",
		},
		"create itself, a configuration": {node(admission.Create, "", "node-1", source), "non-nil configSource"},
		"create another":                 {node(admission.Create, "", "node-2", nothing), others},
		"update itself":                  {node(admission.Update, "", "node-1", label("example.com/x")), ""},
		"update another":                 {node(admission.Update, "", "node-2", nothing), others},
		"update another's status":        {node(admission.Update, "status", "node-2", nothing), others},
		"delete itself": {&admission.Request{
			Operation: admission.Delete,
			Resource:  admission.Nodes,
			Name:      "node-1",
			OldObject: base,
		}, ""},
		"delete another": {
			&admission.Request{Operation: admission.Delete, Resource: admission.Nodes, Name: "node-2"}, others,
		},
		"update, a restricted label": {
			node(admission.Update, "", "node-1", label("a.node-restriction.kubernetes.io/x")),
			labels + "a.node-restriction.kubernetes.io/x",
		},
		"status, a restricted label": {
			node(admission.Update, "status", "node-1", label("node-restriction.kubernetes.io/x")),
			labels + "node-restriction.kubernetes.io/x",
		},
		"status, a restricted label goes": {node(admission.Update, "status", "node-1", func(n *corev1.Node) {
			n.Labels = map[string]string{"a": "b"}
		}), labels + "node-restriction.kubernetes.io/team"},
		"status, a label of Kubernetes": {
			node(admission.Update, "status", "node-1", label("k8s.io/x")), labels + "k8s.io/x",
		},
		"status, a free label": {node(admission.Update, "status", "node-1", label("example.com/x")), ""},
		"update, owners": {
			node(admission.Update, "", "node-1", owner), "is not allowed to modify ownerReferences",
		},
		"status, owners": {
			node(admission.Update, "status", "node-1", owner), "is not allowed to modify ownerReferences",
		},
		"update, taints": {node(admission.Update, "", "node-1", func(n *corev1.Node) {
			n.Spec.Taints = nil
		}), "is not allowed to modify taints"},
		"update, the time of a taint": {node(admission.Update, "", "node-1", func(n *corev1.Node) {
			n.Spec.Taints[0].TimeAdded = nil
		}), "is not allowed to modify taints"},
		"status, taints": {node(admission.Update, "status", "node-1", func(n *corev1.Node) {
			n.Spec.Taints = nil
		}), "is not allowed to modify taints"},
		"update, a configuration": {
			node(admission.Update, "", "node-1", source), "configSource to a new non-nil configSource",
		},
		"its lease":        {lease(admission.Create, corev1.NamespaceNodeLease, "node-1"), ""},
		"its lease, later": {lease(admission.Update, corev1.NamespaceNodeLease, "node-1"), ""},
		"another's lease": {
			lease(admission.Create, corev1.NamespaceNodeLease, "node-2"), "can only access node lease with the same name",
		},
		"another's lease, later": {
			lease(admission.Update, corev1.NamespaceNodeLease, "node-2"), "can only access node lease with the same name",
		},
		"a lease elsewhere": {
			lease(admission.Create, "kube-system", "node-1"), "can only access leases in the",
		},
		"its CSINode": {&admission.Request{
			Operation: admission.Create,
			Resource:  csinodes,
			Object:    &storagev1.CSINode{ObjectMeta: named("node-1")},
		}, ""},
		"another's CSINode": {
			&admission.Request{Operation: admission.Create, Resource: csinodes, Object: &storagev1.CSINode{ObjectMeta: named("node-2")}},
			"can only access CSINode",
		},
		"another's CSINode, later": {
			&admission.Request{Operation: admission.Update, Resource: csinodes, Name: "node-2"}, "can only access CSINode",
		},
		"a slice of its own":      {slice(admission.Create, "node-1"), ""},
		"a slice of another":      {slice(admission.Create, "node-2"), "can only create ResourceSlice"},
		"a slice of no node":      {slice(admission.Create, ""), "can only create ResourceSlice"},
		"a slice of its own goes": {slice(admission.Delete, "node-1"), ""},
		"a slice of another goes": {slice(admission.Delete, "node-2"), "can only delete ResourceSlice"},
		"its client certificate": {
			&admission.Request{
				Operation: admission.Create,
				Resource:  csrs,
				Object:    csr(t, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:node-1"),
			}, "",
		},
		"its serving certificate": {
			&admission.Request{
				Operation: admission.Create,
				Resource:  csrs,
				Object: csr(t, certificatesv1.KubeletServingSignerName,
					"system:node:node-1"),
			}, "",
		},
		"another's client certificate": {
			&admission.Request{
				Operation: admission.Create,
				Resource:  csrs,
				Object:    csr(t, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:node-2"),
			}, "can only create a node CSR with CN=system:node:node-1",
		},
		"another's serving certificate": {
			&admission.Request{
				Operation: admission.Create,
				Resource:  csrs,
				Object: csr(t, certificatesv1.KubeletServingSignerName,
					"system:node:node-2"),
			}, "can only create a node CSR with CN=system:node:node-1",
		},
		"another signer, which decides by itself": {
			&admission.Request{Operation: admission.Create, Resource: csrs, Object: csr(t, "example.com/s", "anybody")}, "",
		},
		"a request that is none": {
			&admission.Request{
				Operation: admission.Create,
				Resource:  csrs,
				Object: &certificatesv1.CertificateSigningRequest{
					Spec: certificatesv1.CertificateSigningRequestSpec{
						SignerName: certificatesv1.KubeletServingSignerName,
					},
				},
			}, "unable to parse csr",
		},
		"a plain pod":          {podOp(admission.Create, "", "mine"), "can only create mirror pods"},
		"delete its pod":       {podOp(admission.Delete, "", "mine"), ""},
		"delete another's pod": {podOp(admission.Delete, "", "theirs"), "with spec.nodeName set to itself"},
		"evict its pod":        {podOp(admission.Create, "eviction", "mine"), ""},
		"evict another's pod": {
			podOp(admission.Create, "eviction", "theirs"), "with spec.nodeName set to itself",
		},
		"its pod's status": {podOp(admission.Update, "status", "mine"), ""},
		"another's pod's status": {
			podOp(admission.Update, "status", "theirs"), "with spec.nodeName set to itself",
		},
		"its pod":                        {podOp(admission.Update, "", "mine"), "cannot update pod"},
		"its pod's ephemeral containers": {podOp(admission.Update, "ephemeralcontainers", "mine"), "cannot update pod"},
		"its pod's size":                 {podOp(admission.Update, "resize", "mine"), "cannot update pod"},
		"bind a pod":                     {podOp(admission.Create, "binding", "theirs"), "unexpected pod subresource"},
	} {
		err := restriction.Validate(t.Context(), asNode(tt.r))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v, want it allowed", what, err)
			}
			continue
		}
		admissiontest.WantForbidden(t, what, err, tt.want)
	}
}

// oneAudience allows one audience.
type oneAudience string

func (a oneAudience) Authorize(_ context.Context, q *auth.Attributes) (auth.Decision, error) {
	if q.Verb == audienceVerb && q.Resource == string(a) && q.Name == "web" && q.Namespace == "default" {
		return auth.Decision{Verdict: auth.Allow}, nil
	}
	return auth.Decision{}, nil
}

// TestNodeTokens: a kubelet asks for tokens of its own pods, of audiences that their volumes want or a rule allows.
func TestNodeTokens(t *testing.T) {
	token := func(audience string) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, Path: "t"}},
		}}}
	}
	mine := admissiontest.Pod()
	theirs := admissiontest.Pod()
	for _, o := range []*corev1.Pod{mine, theirs} {
		o.Namespace = "default"
		o.UID = "u"
		o.Spec.ServiceAccountName = "web"
		o.Spec.NodeName = "node-1"
		o.Spec.Volumes = []corev1.Volume{
			{Name: "own", VolumeSource: token("")},
			{Name: "vault", VolumeSource: token("vault")},
			{
				Name:         "inline",
				VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "secrets.example.com"}},
			},
			{
				Name: "claim",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: "c",
				}},
			},
		}
	}
	mine.Name = "mine"
	theirs.Name = "theirs"
	theirs.Spec.NodeName = "node-2"
	driver := func(name, audience string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{
			ObjectMeta: named(name),
			Spec: storagev1.CSIDriverSpec{
				TokenRequests: []storagev1.TokenRequest{{Audience: audience}},
			},
		}
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "c",
			Namespace: "default",
		},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"},
	}
	volume := &corev1.PersistentVolume{ObjectMeta: named("v")}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com"}
	restriction := Plugin{
		NodeName:   authz.NodeName,
		Authorizer: oneAudience("registry"),
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Pods: {mine, theirs},
			csiDrivers: {driver("secrets.example.com", "inline-wants"), driver("disk.example.com",
				"claim-wants"), driver("other", "other-wants")},
			corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"): {claim},
			corev1.SchemeGroupVersion.WithResource("persistentvolumes"):      {volume},
		}),
	}
	for what, tt := range map[string]struct {
		pod, uid  string
		audiences []string
		want      string
	}{
		"the API server's":           {"mine", "u", nil, ""},
		"a projected volume's":       {"mine", "u", []string{"vault"}, ""},
		"an inline volume's":         {"mine", "u", []string{"inline-wants"}, ""},
		"a claim's":                  {"mine", "u", []string{"claim-wants"}, ""},
		"one that a rule allows":     {"mine", "u", []string{"registry"}, ""},
		"none's":                     {"mine", "u", []string{"bank"}, `audience "bank" not found in pod spec volume`},
		"a driver's that is not its": {"mine", "u", []string{"other-wants"}, "not found in pod spec volume"},
		"two":                        {"mine", "u", []string{"vault", ""}, "node may only request 0 or 1 audiences"},
		"another node's pod":         {"theirs", "u", nil, "scheduled on a different node"},
		"a pod that was":             {"mine", "old", nil, "does not match the UID in record"},
		"no uid":                     {"mine", "", nil, "without a uid"},
		"no pod":                     {"", "u", nil, "not bound to a pod"},
	} {
		tr := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: tt.audiences,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Pod",
				Name:       tt.pod,
				UID:        types.UID(tt.uid),
			},
		}}
		err := restriction.Validate(t.Context(), asNode(&admission.Request{
			Operation:   admission.Create,
			Resource:    admission.ServiceAccounts,
			Subresource: "token",
			Namespace:   "default",
			Name:        "web",
			Object:      tr,
		}))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v, want it allowed", what, err)
			}
			continue
		}
		admissiontest.WantForbidden(t, what, err, tt.want)
	}
}
