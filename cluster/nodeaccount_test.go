// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/client"
	"keelson/cluster/membership"
	"keelson/cluster/noderoles"
)

// hostile is a cluster with nodes one and two; somebody has the key of one.
type hostile struct {
	c     *Cluster
	admin kubernetes.Interface
	node  *client.Client
	roles membership.NodeAccounts
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{}
	h.c, h.admin = serve(t, func(*Config) {})
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(h.admin.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	for _, name := range []string{"one", "two"} {
		must(h.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}))
		must(h.admin.CoordinationV1().Leases("kube-node-lease").Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
		must(h.admin.CoreV1().Secrets("default").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret-" + name}}, metav1.CreateOptions{}))
		must(h.admin.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-" + name}}, metav1.CreateOptions{}))
		must(h.admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod-" + name},
			Spec: corev1.PodSpec{
				NodeName:   name,
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Volumes: []corev1.Volume{
					{
						Name: "s",
						VolumeSource: corev1.VolumeSource{
							Secret: &corev1.SecretVolumeSource{SecretName: "secret-" + name},
						},
					},
					{
						Name: "c",
						VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: "config-" + name},
						}},
					},
				},
			},
		}, metav1.CreateOptions{}))
	}
	must(h.admin.DiscoveryV1().EndpointSlices("kube-system").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "kube-dns-two",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, metav1.CreateOptions{}))
	as := h.c.clientOf(t, "system:node:one", auth.Nodes)
	var err error
	if h.node, err = client.Remote(as, "test"); err != nil {
		t.Fatal(err)
	}
	h.roles = membership.NodeAccounts{
		Node:      h.node,
		Anonymous: rest.AnonymousClientConfig(as),
		Name:      "one",
		Accounts:  rightsOf(table()).AccountsBeside(),
		Log:       slog.New(slog.DiscardHandler),
	}
	return h
}

// attempts are what somebody would do with a client, and may not.
func (h *hostile) attempts(t *testing.T, cs kubernetes.Interface) map[string]error {
	t.Helper()
	ctx := t.Context()
	out := map[string]error{}
	try := func(what string) func(any, error) { return func(_ any, err error) { out[what] = err } }
	try("all secrets")(cs.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}))
	try("the secret of another node's pod")(cs.CoreV1().Secrets("default").Get(ctx, "secret-two", metav1.GetOptions{}))
	try("all config maps")(cs.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}))
	try("the config map of another node's pod")(cs.CoreV1().ConfigMaps("default").Get(ctx, "config-two",
		metav1.GetOptions{}))
	try("another node's lease")(cs.CoordinationV1().Leases("kube-node-lease").Get(ctx, "two", metav1.GetOptions{}))
	try("all leases")(cs.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{}))
	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	try("a patch of another node's lease")(cs.CoordinationV1().Leases("kube-node-lease").Patch(ctx, "two",
		types.MergePatchType, patch, metav1.PatchOptions{}))
	try("another node's labels")(cs.CoreV1().Nodes().Patch(ctx, "two", types.MergePatchType, patch,
		metav1.PatchOptions{}))
	try("another node's status")(cs.CoreV1().Nodes().Patch(ctx, "two", types.MergePatchType,
		[]byte(`{"status":{"phase":"x"}}`), metav1.PatchOptions{}, "status"))
	out["deleting another node"] = cs.CoreV1().Nodes().Delete(ctx, "two", metav1.DeleteOptions{})
	try("another node's pod's status")(cs.CoreV1().Pods("default").Patch(ctx, "pod-two", types.MergePatchType,
		[]byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status"))
	out["deleting another node's pod"] = cs.CoreV1().Pods("default").Delete(ctx, "pod-two", metav1.DeleteOptions{})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bank"},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	try("a service")(cs.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}))
	try("a change of a service")(cs.CoreV1().Services("default").Patch(ctx, "kubernetes", types.MergePatchType, patch,
		metav1.PatchOptions{}))
	out["the names of another node"] = cs.DiscoveryV1().EndpointSlices("kube-system").Delete(ctx, "kube-dns-two",
		metav1.DeleteOptions{})
	try("endpoints of another service")(
		cs.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "bank-x",
				Labels: map[string]string{discoveryv1.LabelServiceName: "bank"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}, metav1.CreateOptions{}))
	token := func(namespace, account string, ref *authenticationv1.BoundObjectReference) error {
		_, err := cs.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref}},
			metav1.CreateOptions{})
		return err
	}
	out["a token of a role that is bound to nothing"] = token("kube-system", "keelson-dns", nil)
	out["a token of a role that is bound to another node"] = token("kube-system", "keelson-dns",
		&authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: "two"})
	out["a token of another account"] = token("default", "default", &authenticationv1.BoundObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       "one",
	})
	try("a new service account")(cs.CoreV1().ServiceAccounts("kube-system").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
	try("role bindings")(cs.RbacV1().ClusterRoleBindings().Create(ctx, nil, metav1.CreateOptions{}))
	return out
}

// TestHostileNode: the key of a node, or a token of a role next to its kubelet, gives no right to read or write
// anything of other nodes.
func TestHostileNode(t *testing.T) {
	hostile := newHostile(t)
	ctx := t.Context()
	refused := func(who string, c kubernetes.Interface) {
		t.Helper()
		for what, err := range hostile.attempts(t, c) {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s: %s: %v, want it forbidden", who, what, err)
			}
		}
	}
	refused("node", hostile.node)
	for what, list := range map[string]func() error{
		"all pods": func() error {
			_, err := hostile.node.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			return err
		},
		"another's pods": func() error {
			_, err := hostile.node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=two"})
			return err
		},
		"another's pod": func() error {
			_, err := hostile.node.CoreV1().Pods("default").Get(ctx, "pod-two", metav1.GetOptions{})
			return err
		},
		"network policies": func() error {
			_, err := hostile.node.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
			return err
		},
		"endpoint slices": func() error {
			_, err := hostile.node.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
			return err
		},
		"all nodes": func() error {
			_, err := hostile.node.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		},
		"namespaces": func() error {
			_, err := hostile.node.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			return err
		},
	} {
		if err := list(); !apierrors.IsForbidden(err) {
			t.Errorf("node: %s: %v, want it forbidden", what, err)
		}
	}
	if got, err := hostile.node.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=one"}); err != nil || len(got.Items) != 1 {
		t.Errorf("its own pods: %v, %v", got, err)
	}
	for _, r := range table() {
		if r.account != "" {
			refused(r.name, hostile.roles.Connect(r.user(Config{}), r.agent))
		}
	}
	policies := hostile.roles.Connect(roleNamed(noderoles.PolicyName).user(Config{}), "test")
	if got, err := policies.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil || len(got.Items) != 2 {
		t.Errorf("network policies need all pods: %v, %v", got, err)
	}
	if err := hostile.admin.CoreV1().Nodes().Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the token of a node that is gone is refused", func() (bool, error) {
		_, err := policies.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		return apierrors.IsUnauthorized(err), err
	})
}
