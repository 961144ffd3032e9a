// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/auth"
	"keelson/lib/waittest"
)

// TestServiceAccountAdmission: a pod gets its namespace's account, that account's pull secrets and a token, or is
// refused without one.
func TestServiceAccountAdmission(t *testing.T) {
	clientset := servertest.Start(t, func(c *servertest.Setup) { servertest.WithPlugins(c) }).Clients(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, clientset, "dev", nil)
	_, err := clientset.CoreV1().Pods("dev").Create(ctx, servertest.PodIn("dev", "early"), metav1.CreateOptions{})
	if want := `error looking up service account dev/default: serviceaccount "default" not found`; !apierrors.IsForbidden(
		err) ||
		!strings.Contains(err.Error(), "error looking up service account dev/default: ") {
		t.Errorf("without an account: got %v, want %s", err, want)
	}
	no := false
	for _, sa := range []*corev1.ServiceAccount{
		{
			ObjectMeta:       metav1.ObjectMeta{Name: "default"},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}, AutomountServiceAccountToken: &no},
	} {
		if _, err := clientset.CoreV1().ServiceAccounts("dev").Create(ctx, sa, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string, edit func(*corev1.PodSpec)) *corev1.Pod {
		t.Helper()
		p := servertest.PodIn("dev", name)
		edit(&p.Spec)
		var made *corev1.Pod
		waittest.Right(t, "pod "+name, func() string {
			var err error
			if made, err = clientset.CoreV1().Pods("dev").Create(ctx, p, metav1.CreateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
		return made
	}
	p := create("usual", func(*corev1.PodSpec) {})
	mounts := p.Spec.Containers[0].VolumeMounts
	if p.Spec.ServiceAccountName != "default" || len(p.Spec.ImagePullSecrets) != 1 || len(p.Spec.Volumes) != 1 ||
		!strings.HasPrefix(p.Spec.Volumes[0].Name, "kube-api-access-") ||
		len(mounts) != 1 || mounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" ||
		!mounts[0].ReadOnly {
		t.Errorf("usual pod: got %+v", p.Spec)
	}
	for name, edit := range map[string]func(*corev1.PodSpec){
		"pod-says-no":     func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = &no },
		"account-says-no": func(s *corev1.PodSpec) { s.ServiceAccountName = "quiet" },
	} {
		if p := create(name, edit); len(p.Spec.Volumes) != 0 {
			t.Errorf("%s: got volumes %v", name, p.Spec.Volumes)
		}
	}
}

// TestNodeRestrictionAdmission: a kubelet writes its own node, its own lease and its own pods, and nothing else by way
// of them.
func TestNodeRestrictionAdmission(t *testing.T) {
	r := servertest.StartAdmitting(t)
	admin := r.Clients(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, admin, "dev", nil)
	// It may do everything, so that what is refused is refused by admission.
	kubelet, err := kubernetes.NewForConfig(r.User("system:node:one", auth.Nodes, auth.Masters))
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, labels map[string]string) error {
		_, err := kubelet.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: labels,
		}}, metav1.CreateOptions{})
		return err
	}
	lease := func(namespace, name string) error {
		_, err := kubelet.CoordinationV1().Leases(namespace).Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	pod := func(edit func(*corev1.Pod)) error {
		p := servertest.PodIn("dev", "mirror")
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.Spec.NodeName = "one"
		if own, err := kubelet.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{}); err == nil {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       "one",
				UID:        own.UID,
				Controller: &yes,
			}}
		}
		edit(p)
		_, err := kubelet.CoreV1().Pods("dev").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	accepted := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a label of others'", node("one", map[string]string{"node-restriction.kubernetes.io/x": "y"}),
		`node "one" is not allowed to set the following labels: node-restriction.kubernetes.io/x`)
	accepted("its own node", node("one", map[string]string{"kubernetes.io/hostname": "one"}))
	refused("another node", node("two", nil), `node "one" is not allowed to modify node "two"`)
	for what, c := range map[string]struct{ patch, want string }{
		"a label of others' by way of the status": {
			`{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`,
			"is not allowed to modify labels: node-restriction.kubernetes.io/x",
		},
		"owners by way of the status": {
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"y"}]}}`,
			`node "one" is not allowed to modify ownerReferences`,
		},
	} {
		_, err := kubelet.CoreV1().Nodes().Patch(ctx, "one", types.StrategicMergePatchType, []byte(c.patch),
			metav1.PatchOptions{}, "status")
		refused(what, err, c.want)
	}
	_, err = kubelet.CoreV1().Nodes().Patch(ctx, "one", types.StrategicMergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
	refused("its taints", err, `node "one" is not allowed to modify taints`)
	accepted("its lease", lease("kube-node-lease", "one"))
	refused("another's lease", lease("kube-node-lease", "two"),
		"can only access node lease with the same name as the requesting node")
	refused("another lease", lease("dev", "one"), `can only access leases in the "kube-node-lease" system namespace`)
	refused("a pod that is no mirror", pod(func(p *corev1.Pod) { p.Annotations = nil }), `can only create mirror pods`)
	refused("another's mirror pod", pod(func(p *corev1.Pod) { p.Spec.NodeName = "two" }),
		"can only create pods with spec.nodeName set to itself")
	refused("a mirror pod with a secret", pod(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		}
	}), `node "one" can not create pods that reference secrets`)
	accepted("its mirror pod", pod(func(*corev1.Pod) {}))
	_, err = kubelet.CoreV1().Pods("dev").Patch(ctx, "mirror", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}, "status")
	refused("labels by way of the status", err, `node "one" cannot update labels through pod status`)
	_, err = kubelet.CoreV1().Pods("dev").Patch(ctx, "mirror", types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
	accepted("the status of its pod", err)
}
