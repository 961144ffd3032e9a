// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind/kindtest"
)

func TestImmutableConfigMapAndSecret(t *testing.T) {
	cm := &corev1.ConfigMap{Immutable: new(true), Data: map[string]string{"a": "b"}}
	changed := cm.DeepCopy()
	changed.Immutable = nil
	changed.Data["a"] = "c"
	changed.BinaryData = map[string][]byte{"x": nil}
	kindtest.Same(t, "config map", ConfigMap().ValidateUpdate(changed, cm), []string{
		"immutable: Forbidden: field is immutable when `immutable` is set",
		"data: Forbidden: field is immutable when `immutable` is set",
		"binaryData: Forbidden: field is immutable when `immutable` is set",
	})
	s := &corev1.Secret{Immutable: new(true), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"a": []byte("b")}}
	other := s.DeepCopy()
	other.Type = "example.com/x"
	other.Data = nil
	kindtest.Same(t, "secret", Secret().ValidateUpdate(other, s), []string{
		`type: Invalid value: "example.com/x": field is immutable`,
		"data: Forbidden: field is immutable when `immutable` is set",
	})
}

func TestSizes(t *testing.T) {
	big := strings.Repeat("x", corev1.MaxSecretSize/2+1)
	kindtest.Same(t, "config map", ConfigMap().Validate(&corev1.ConfigMap{
		Data:       map[string]string{"a": big},
		BinaryData: map[string][]byte{"b": []byte(big)},
	}),
		[]string{"[]: Too long: may not be more than 1048576 bytes"})
	kindtest.Same(t, "secret",
		Secret().Validate(&corev1.Secret{Data: map[string][]byte{"a": []byte(big), "b": []byte(big)}}),
		[]string{"data: Too long: may not be more than 1048576 bytes"})
}

func TestSecretTypes(t *testing.T) {
	tests := map[corev1.SecretType][]string{
		corev1.SecretTypeTLS:       {"data[tls.crt]: Required value", "data[tls.key]: Required value"},
		corev1.SecretTypeBasicAuth: {"data[username]: Required value", "data[password]: Required value"},
		corev1.SecretTypeSSHAuth:   {"data[ssh-privatekey]: Required value"},
		corev1.SecretTypeDockercfg: {"data[.dockercfg]: Required value"},
		corev1.SecretTypeServiceAccountToken: {
			"metadata.annotations[kubernetes.io/service-account.name]: Required value",
		},
		corev1.SecretTypeOpaque: nil,
		"example.com/own":       nil,
	}
	for typ, want := range tests {
		kindtest.Same(t, string(typ), Secret().Validate(&corev1.Secret{Type: typ}), want)
	}
	bad := &corev1.Secret{
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"tls.crt": []byte("x"),
			"tls.key": []byte("y"),
		},
	}
	if w := Secret().Warnings(bad, nil); len(w) != 1 || !strings.Contains(w[0], "failed to find any PEM data") {
		t.Errorf("warnings: %q", w)
	}
}

func TestNamespaceStatus(t *testing.T) {
	sub := Namespace().Subs["status"]
	namespace := &corev1.Namespace{Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	kindtest.Same(t, "terminating", sub.ValidateUpdate(namespace, namespace), []string{
		"status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
	})
	namespace.DeletionTimestamp = new(metav1.Now())
	kindtest.Same(t, "deleted", sub.ValidateUpdate(namespace, namespace), nil)
	old := namespace.DeepCopy()
	old.Spec.Finalizers = []corev1.FinalizerName{"kubernetes"}
	Namespace().PrepareUpdate(namespace, old)
	if len(namespace.Spec.Finalizers) != 1 {
		t.Error("a plain update removed the finalizer")
	}
	finalize := Namespace().Subs["finalize"]
	namespace.Spec.Finalizers = []corev1.FinalizerName{"mine"}
	kindtest.Same(t, "finalize", finalize.ValidateUpdate(namespace, old), []string{
		`spec.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`,
	})
}

func TestNodeUpdate(t *testing.T) {
	old := &corev1.Node{
		Spec: corev1.NodeSpec{PodCIDR: "10.42.0.0/24", PodCIDRs: []string{"10.42.0.0/24"}, ProviderID: "a"},
	}
	n := old.DeepCopy()
	n.Spec.PodCIDR = "10.42.1.0/24"
	n.Spec.PodCIDRs = []string{"10.42.1.0/24"}
	n.Spec.ProviderID = "b"
	n.Spec.DoNotUseExternalID = "x"
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: "InternalIP", Address: "1.1.1.1"},
		{Type: "InternalIP", Address: "1.1.1.1"},
	}
	kindtest.Same(t, "node", Node().ValidateUpdate(n, old), []string{
		`status.addresses[1]: Duplicate value: {"type":"InternalIP","address":"1.1.1.1"}`,
		`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`,
		`spec.providerID: Forbidden: node updates may not change providerID except from "" to valid`,
		"spec.externalID: Forbidden: may not be updated",
	})
	fresh := &corev1.Node{}
	kindtest.Same(t, "first assignment",
		Node().ValidateUpdate(&corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}}}, fresh), nil)
}

func TestNodeRow(t *testing.T) {
	n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
	n.Labels = map[string]string{"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "db"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	if d := cmp.Diff([]any{"NotReady,SchedulingDisabled", "db,worker"}, nodeRow(n)[1:3]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestComponentStatusRow: what is not known to be healthy is Unhealthy in the table, whatever else the object says.
func TestComponentStatusRow(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]string{
		corev1.ConditionTrue:    "Healthy",
		corev1.ConditionFalse:   "Unhealthy",
		corev1.ConditionUnknown: "Unhealthy",
	} {
		c := &corev1.ComponentStatus{
			Conditions: []corev1.ComponentCondition{{Type: corev1.ComponentHealthy, Status: status, Message: "m"}},
		}
		row := ComponentStatus().Row(c)
		if row[1] != want || row[2] != "m" {
			t.Errorf("%s: row %v, want %s", status, row, want)
		}
	}
}
