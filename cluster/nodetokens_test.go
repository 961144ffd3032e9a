// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/cluster"
	"keelson/lib/waittest"
)

// TestNodeAsksForAPodsToken: with all of admission, a kubelet gets the token of the API server's own audience that
// every pod has and that it asks for without naming the audience; of another audience only when a volume asks for it.
func TestNodeAsksForAPodsToken(t *testing.T) {
	cfg := controlPlaneOf(t, func(*cluster.Config) {})
	ctx := t.Context()
	core := kubernetes.NewForConfigOrDie(cfg).CoreV1()
	if _, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	waittest.Right(t, "a pod", func() string {
		var err error
		pod, err = core.Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "runner"},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err.Error() // its service account is not there yet
		}
		return ""
	})
	node := rest.CopyConfig(cfg)
	node.Impersonate = rest.ImpersonationConfig{UserName: "system:node:n1", Groups: []string{"system:nodes"}}
	kubelet := kubernetes.NewForConfigOrDie(node).CoreV1()
	ask := func(audiences ...string) error {
		_, err := kubelet.ServiceAccounts("default").CreateToken(ctx,
			"default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences: audiences,
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind:       "Pod",
					APIVersion: "v1",
					Name:       pod.Name,
					UID:        pod.UID,
				},
			}}, metav1.CreateOptions{})
		return err
	}
	waittest.Right(t, "the token", func() string {
		if err := ask(); err != nil {
			return err.Error()
		}
		return ""
	})
	if err := ask("bank"); !apierrors.IsForbidden(err) {
		t.Errorf("token of an audience that no volume asks for: %v, want forbidden", err)
	}
}
