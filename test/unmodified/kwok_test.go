// SPDX-License-Identifier: Apache-2.0

package unmodified

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster"
)

const fakeDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 12
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers: [{name: c, image: fake}]
`

// TestKwok lets kwok be the nodes of a cluster without kubelets: its stages are custom resources, its nodes get Ready
// and keep their leases, pods run there, get evicted and end.
func TestKwok(t *testing.T) {
	kwok := tool(t, "kwok")
	dir := module(t, "sigs.k8s.io/kwok")
	running := start(t, func(c *cluster.Config) { c.NoNode = true })
	running.must(t, "", "apply", "--server-side", "-f", filepath.Join(dir, "kustomize/crd/bases"))
	running.must(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/stages.kwok.x-k8s.io",
		"crd/clusterexecs.kwok.x-k8s.io")
	for _, stage := range []string{
		"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready",
		"pod/fast/pod-complete", "pod/fast/pod-delete",
	} {
		running.must(t, "", "apply", "-f", filepath.Join(dir, "kustomize/stage", stage+".yaml"))
	}
	launch(t, kwok, "--kubeconfig", running.kubeconfig, "--manage-all-nodes=true", "--node-lease-duration-seconds",
		"40",
		"--enable-crds", "Stage")

	ctx := t.Context()
	for i := range 4 {
		name := fmt.Sprintf("fake-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{corev1.LabelHostname: name, "type": "kwok"},
		}}
		if _, err := running.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	running.must(t, "", "wait", "--for=condition=Ready", "node", "-l", "type=kwok", "--timeout=90s")
	eventually(t, "leases of the nodes", func() string {
		l, err := running.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err != nil || len(l.Items) != 4 {
			return fmt.Sprintf("%d leases, %v", len(l.Items), err)
		}
		return ""
	})
	running.must(t, fakeDeployment, "apply", "-f", "-")
	running.must(t, "", "rollout", "status", "deployment/web", "--timeout=90s")
	pods, err := running.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for i := range pods.Items {
		p := &pods.Items[i]
		on[p.Spec.NodeName]++
		if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || len(p.Status.ContainerStatuses) != 1 {
			t.Errorf("pod %s: %+v", p.Name, p.Status)
		}
	}
	if len(pods.Items) != 12 || len(on) != 4 || on["fake-0"] != 3 {
		t.Errorf("12 pods on 4 nodes are spread as %v", on)
	}
	drainAndEnd(t, running)
}

// drainAndEnd empties a node, then deletes all there is; everything must go although no kubelet confirms it.
func drainAndEnd(t *testing.T, r *running) {
	t.Helper()
	ctx := t.Context()
	r.must(t, "", "patch", "deployment", "web", "--type=json", "-p",
		`[{"op":"remove","path":"/spec/template/spec/topologySpreadConstraints"}]`)
	r.must(t, "", "rollout", "status", "deployment/web", "--timeout=90s")
	r.must(t, "", "drain", "fake-0", "--timeout=90s")
	r.must(t, "", "rollout", "status", "deployment/web", "--timeout=90s")
	left, err := r.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=fake-0"})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d pods are left on the drained node, %v", len(left.Items), err)
	}
	r.must(t, "", "delete", "deployment", "web", "--cascade=foreground", "--timeout=90s")
	if out := r.must(t, "", "get", "pods,rs", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("left after the deployment:\n%s", out)
	}
	r.must(t, "", "delete", "node", "-l", "type=kwok", "--timeout=90s")
	if _, err := r.CoreV1().Nodes().Get(ctx, "fake-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node after its deletion: %v", err)
	}
	r.must(t, "", "delete", "crd", "stages.kwok.x-k8s.io", "--timeout=90s")
	if out, err := r.kubectl(t, "", "get", "stages"); err == nil ||
		!strings.Contains(out, `the server doesn't have a resource type "stages"`) {
		t.Errorf("stages after their definition: %v, %s", err, out)
	}
}
