// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/nacl/secretbox"
	"google.golang.org/protobuf/encoding/protowire"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/store"
	"keelson/store/etcd"
	"keelson/store/etcd/etcdtest"
)

// envelope is an object as Kubernetes stores it: the four bytes k8s\0, then the message runtime.Unknown by hand: a
// TypeMeta (apiVersion 1, kind 2) in field 1, the object's own message in field 2, and the empty fields 3 and 4.
func envelope(t *testing.T, apiVersion, kind string, o interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	field := func(b []byte, n protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
	}
	typ := field(field(nil, 1, []byte(apiVersion)), 2, []byte(kind))
	return field(field(field(field([]byte("k8s\x00"), 1, typ), 2, raw), 3, nil), 4, nil)
}

// encrypted is a value as Kubernetes stores it with the provider secretbox: the prefix names provider and key, 24 bytes
// of nonce follow, then the box.
func encrypted(t *testing.T, name string, key [32]byte, value []byte) []byte {
	t.Helper()
	var nonce [24]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		t.Fatal(err)
	}
	return secretbox.Seal(append([]byte("k8s:enc:secretbox:v1:"+name+":"), nonce[:]...), value, &nonce, &key)
}

// dataSet is what an etcd of a Kubernetes cluster holds: objects in protobuf, custom resources and their definitions in
// JSON, a secret that is encrypted and one from before it was.
func dataSet(t *testing.T, key [32]byte) map[string][]byte {
	t.Helper()
	meta := func(ns, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name:       name,
			Namespace:  ns,
			UID:        "8d4ad0b7-7c5e-4a8b-9d8c-0c5d5a3b2a11",
			Generation: 1,
		}
	}
	labels := map[string]string{"app": "web"}
	replicas := int32(0)
	web := &appsv1.Deployment{
		ObjectMeta: meta("team", "web"),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/web:1"}},
				},
			},
		},
	}
	secret := func(name string) []byte {
		return envelope(t, "v1", "Secret", &corev1.Secret{
			ObjectMeta: meta("team", name),
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{"password": []byte("hunter2")},
		})
	}
	var crd bytes.Buffer
	fmt.Fprintf(&crd,
		`%s, "status": {"conditions": [{"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "lastTransitionTime": "2024-01-01T00:00:00Z"},
{"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "lastTransitionTime": "2024-01-01T00:00:00Z"}],
"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}, "storedVersions": ["v1"]}}`,
		strings.TrimSuffix(widgetCRD, "}"))
	return map[string][]byte{
		"/registry/namespaces/team": envelope(t, "v1", "Namespace", &corev1.Namespace{
			ObjectMeta: meta("", "team"),
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}),
		"/registry/deployments/team/web": envelope(t, "apps/v1", "Deployment", web),
		"/registry/services/specs/team/web": envelope(t, "v1", "Service", &corev1.Service{
			ObjectMeta: meta("team", "web"),
			Spec: corev1.ServiceSpec{
				Selector:   labels,
				ClusterIP:  "10.96.7.7",
				ClusterIPs: []string{"10.96.7.7"},
				Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		}),
		"/registry/minions/n1":       envelope(t, "v1", "Node", &corev1.Node{ObjectMeta: meta("", "n1")}),
		"/registry/secrets/team/new": encrypted(t, "key1", key, secret("new")),
		"/registry/secrets/team/old": secret("old"),
		"/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com": crd.Bytes(),
		"/registry/example.com/widgets/team/w": []byte(
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"team",` +
				`"uid":"0d1f9a1e-6f53-4c39-8b58-2f6a9bb8a3c3","generation":1,"creationTimestamp":"2024-01-01T00:00:00Z"},"spec":{"size":3}}`),
	}
}

// TestServesKubernetesDataSet starts a server on an etcd that a stock Kubernetes has filled.
func TestServesKubernetesDataSet(t *testing.T) {
	servers := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	st, err := etcd.Open(t.Context(), etcd.Options{Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	key := [32]byte([]byte("0123456789abcdef0123456789abcdef"))
	for k, v := range dataSet(t, key) {
		if _, err := st.Create(t.Context(), k, v); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(t.TempDir(), "encryption.yaml")
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: key1, secret: %s}]}
  - identity: {}
`, base64.StdEncoding.EncodeToString(key[:]))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, kube := serve(t, func(c *Config) {
		c.Etcd.Servers = servers
		c.API.Encryption.ConfigFile = config
	})
	readDataSet(t, kube)
	changeDataSet(t, c, kube, st)
}

func readDataSet(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	if ns, err := kube.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{}); err != nil ||
		ns.Status.Phase != corev1.NamespaceActive {
		t.Errorf("namespace: %v, %v", ns, err)
	}
	if n, err := kube.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("node: %v, %v", n, err)
	}
	if s, err := kube.CoreV1().Services("team").Get(ctx, "web", metav1.GetOptions{}); err != nil ||
		s.Spec.ClusterIP != "10.96.7.7" {
		t.Errorf("service: %v, %v", s, err)
	}
	for _, name := range []string{"old", "new"} {
		if s, err := kube.CoreV1().Secrets("team").Get(ctx, name, metav1.GetOptions{}); err != nil ||
			string(s.Data["password"]) != "hunter2" {
			t.Errorf("secret %s: %v, %v", name, s, err)
		}
	}
	list, err := kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 ||
		list.Items[0].Spec.Template.Spec.Containers[0].Image != "registry.example.com/web:1" {
		t.Errorf("deployments: %v, %v", list, err)
	}
}

// changeDataSet changes objects through the API: what is stored then is of the same form.
func changeDataSet(t *testing.T, cluster *Cluster, kube kubernetes.Interface, st store.Store) {
	t.Helper()
	ctx := t.Context()
	stored := func(key, prefix string, holds ...string) {
		t.Helper()
		kv, _, err := st.Get(ctx, key, 0)
		if err != nil || !bytes.HasPrefix(kv.Value, []byte(prefix)) {
			t.Errorf("%s: stored as %.60q, %v; want %q first", key, kv.Value, err, prefix)
		}
		for _, part := range holds {
			if !bytes.Contains(kv.Value, []byte(part)) {
				t.Errorf("%s: stored without %q", key, part)
			}
		}
	}
	merge := []byte(`{"metadata":{"labels":{"changed":"yes"}}}`)
	if _, err := kube.AppsV1().Deployments("team").Patch(ctx, "web", "application/merge-patch+json", merge,
		metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	stored("/registry/deployments/team/web", "k8s\x00\x0a\x15\x0a\x07apps/v1\x12\x0aDeployment", "changed",
		"registry.example.com/web:1")
	if _, err := kube.CoreV1().Secrets("team").Patch(ctx, "old", "application/merge-patch+json", merge,
		metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	stored("/registry/secrets/team/old", "k8s:enc:secretbox:v1:key1:")
	rest, err := clientcmd.BuildConfigFromFlags("", cluster.DataDir().Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	widgets := dynamic.NewForConfigOrDie(rest).Resource(schema.GroupVersionResource{
		Group:    "example.com",
		Version:  "v1",
		Resource: "widgets",
	}).Namespace("team")
	var w *unstructured.Unstructured
	soon(t, "the custom resource", func() (bool, error) {
		var err error
		w, err = widgets.Get(ctx, "w", metav1.GetOptions{})
		return err == nil, err
	})
	if size, _, err := unstructured.NestedInt64(w.Object, "spec", "size"); err != nil || size != 3 {
		t.Errorf("custom resource: %v, %v", w.Object, err)
	}
	if _, err := widgets.Patch(ctx, "w", "application/merge-patch+json", merge, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	stored("/registry/example.com/widgets/team/w", "{", `"changed":"yes"`,
		`"uid":"0d1f9a1e-6f53-4c39-8b58-2f6a9bb8a3c3"`)
	if err := kube.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := kube.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node after it was deleted: %v", err)
	}
}
