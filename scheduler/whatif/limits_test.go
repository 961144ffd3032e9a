// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/config"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

// asked is the answer to a question, as text: what becomes of each pod, who is lost, and the notes.
func asked(t *testing.T, c *fake.Clientset, manifest string, configure func(*whatif.Config)) string {
	t.Helper()
	wanted, err := whatif.ReadManifest(strings.NewReader(manifest), "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := whatif.Config{Client: &client.Client{Interface: client.Plain(c)}, Parallelism: 1}
	configure(&cfg)
	answer, err := whatif.Ask(t.Context(), cfg, &whatif.Question{Manifest: wanted})
	if err != nil {
		t.Fatal(err)
	}
	return inWords(answer)
}

// configured has the scheduler read a configuration, given in YAML.
func configured(text string) func(*whatif.Config) {
	return func(c *whatif.Config) {
		var err error
		if c.Configuration, err = config.Read("test", []byte("apiVersion: kubescheduler.config.k8s.io/v1\n"+
			"kind: KubeSchedulerConfiguration\n"+text), nil); err != nil {
			panic(err)
		}
	}
}

// inWords is an answer as text.
func inWords(answer *whatif.Answer) string {
	var out []string
	for _, o := range answer.Outcomes {
		text := o.Name + ": " + o.Why + " -> " + o.Node
		if o.Node == "" {
			text += o.Reason
		}
		out = append(out, text)
	}
	for _, l := range answer.Lost {
		out = append(out, "lost "+l.Name+": "+l.Why)
	}
	slices.Sort(out)
	return strings.Join(append(out, answer.Notes...), "\n")
}

func deployment(replicas int, more string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]%s}}
`, replicas, more)
}

func cpu(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceRequestsCPU: schedtest.Quantity(text)}
}

// TestWhatIfLetsIn: pods that a namespace's quotas and limit ranges refuse are not made; defaults that they set count.
func TestWhatIfLetsIn(t *testing.T) {
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "few"}}
	quota.Status = corev1.ResourceQuotaStatus{Hard: cpu("3"), Used: cpu("500m")}
	lr := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
			{
				Type:           corev1.LimitTypeContainer,
				DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: schedtest.Quantity("1")},
			},
		}},
	}
	node := schedtest.Node("a", schedtest.Allocatable(corev1.ResourceCPU, "8"))
	none := func(*whatif.Config) {}
	want := "web-0: new -> a\nweb-1: new -> a\nweb-2: new -> is not created: exceeded quota: few, requested: " +
		"requests.cpu=1, used: requests.cpu=2500m, limited: requests.cpu=3"
	if got := asked(t, clienttest.New(node, quota, lr), deployment(3, ""), none); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	want = "web-0: new -> is not created: failed quota: few: must specify requests.cpu for: c"
	if got := asked(t, clienttest.New(node, quota), deployment(1, ""), none); got != want {
		t.Errorf("without defaults: got\n%s\nwant\n%s", got, want)
	}
	lr.Spec.Limits[0].Min = corev1.ResourceList{corev1.ResourceCPU: schedtest.Quantity("2")}
	want = "web-0: new -> is not created: minimum cpu usage per Container is 2, but request is 1"
	if got := asked(t, clienttest.New(node, lr), deployment(1, ""), none); got != want {
		t.Errorf("out of bounds: got\n%s\nwant\n%s", got, want)
	}
	// Only where a DaemonSet wants its pods they count.
	daemon := strings.Replace(strings.Replace(deployment(0, ", nodeSelector: {pool: x}"), "Deployment", "DaemonSet",
		1), "  replicas: 0\n", "", 1)
	one := quota.DeepCopy()
	one.Status.Hard = corev1.ResourceList{corev1.ResourcePods: schedtest.Quantity("1")}
	one.Status.Used = corev1.ResourceList{corev1.ResourcePods: schedtest.Quantity("0")}
	nodes := []runtime.Object{one, node, schedtest.Node("x", schedtest.Labels("pool", "x")), schedtest.Node("y",
		schedtest.Labels("pool", "x"))}
	want = "web-x: new -> x\nweb-y: new -> is not created: exceeded quota: few, requested: pods=1, used: pods=1, " +
		"limited: pods=1"
	if got := asked(t, clienttest.New(nodes...), daemon, none); got != want {
		t.Errorf("DaemonSet: got\n%s\nwant\n%s", got, want)
	}
	c := clienttest.New(node, quota)
	c.PrependReactor("list", "resourcequotas", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("resourcequotas"), "", nil)
	})
	want = "web-0: new -> a\nquotas do not count: resourcequotas is forbidden"
	if got := asked(t, c, deployment(1, ""), none); !strings.HasPrefix(got, want) {
		t.Errorf("forbidden: got\n%s\nwant\n%s", got, want)
	}
}

// TestWhatIfPreempts: a DaemonSet's pod that has to go comes again to its node and no other; a profile without
// preemption preempts no pod.
func TestWhatIfPreempts(t *testing.T) {
	daemon := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", Controller: new(true)}}
	}
	static := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	objs := []runtime.Object{
		schedtest.Node("a", schedtest.Labels("pool", "a")), schedtest.Node("b"),
		schedtest.Pod("agent-a", schedtest.On("a"), schedtest.Requests("2", ""), daemon),
		schedtest.Pod("static-a", schedtest.On("a"), schedtest.Requests("1", ""), static),
	}
	manifest := deployment(1, ", nodeSelector: {pool: a}, priority: 100")
	manifest = strings.Replace(manifest, "image: i", "image: i, resources: {requests: {cpu: 4}}", 1)
	got := asked(t, clienttest.New(objs...), manifest, func(*whatif.Config) {})
	want := "agent-a: preempted on a by default/web-0 -> 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) " +
		"didn't satisfy plugin(s) [NodeAffinity]."
	if !strings.HasPrefix(got, want) ||
		!strings.Contains(got, "lost static-a: preempted on a by default/web-0, and its kubelet recreates it: it is "+
			"a static pod\nweb-0: new -> a") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	got = asked(t, clienttest.New(objs...), manifest,
		configured("profiles: [{plugins: {postFilter: {disabled: [{name: '*'}]}}}]"))
	want = "web-0: new -> 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node " +
		"affinity/selector."
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
