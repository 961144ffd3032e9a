// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"
)

// object reads what a test describes.
func object[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

// says checks that the answer has each of these words, and prints it where it has not.
func says(t *testing.T, what string, a *Answer, words ...string) {
	t.Helper()
	var b strings.Builder
	Render(&b, a, false, 0)
	for _, w := range words {
		if !strings.Contains(b.String(), w) {
			t.Errorf("%s: no %q in\n%s", what, w, b.String())
		}
	}
}

func TestClaim(t *testing.T) {
	class := func(name, provisioner, mode string) storagev1.StorageClass {
		return *object[storagev1.StorageClass](t, `{metadata: {name: `+name+`}, provisioner: `+provisioner+
			`, volumeBindingMode: `+mode+`}`)
	}
	classes := []storagev1.StorageClass{
		class("late", "keelson.dev/local-volume", "WaitForFirstConsumer"),
		class("cloud", "ebs.csi.aws.com", "Immediate"),
		class("hand", "kubernetes.io/no-provisioner", "Immediate"), class("old", "kubernetes.io/aws-ebs", "Immediate"),
	}
	volumes := []corev1.PersistentVolume{
		*object[corev1.PersistentVolume](t,
			`{metadata: {name: small}, spec: {storageClassName: hand, capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce]}}`),
		*object[corev1.PersistentVolume](t,
			`{metadata: {name: taken}, spec: {storageClassName: hand, claimRef: {namespace: b, name: other}}, status: {phase: Bound}}`),
		*object[corev1.PersistentVolume](t,
			`{metadata: {name: left}, spec: {storageClassName: hand, claimRef: {namespace: b, name: gone}}, status: {phase: Released}}`),
	}
	pod := *object[corev1.Pod](t,
		`{metadata: {name: p}, spec: {containers: [], volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}`)
	const spec = `resources: {requests: {storage: 1Gi}}, accessModes: [ReadWriteOnce]`
	for what, c := range map[string]struct {
		claim string
		pods  []corev1.Pod
		want  []string
	}{
		"no class": {
			`spec: {` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"names no StorageClass, and none is the default", "late, cloud, hand, old"},
		},
		"empty class": {
			`spec: {storageClassName: "", ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{`storageClassName is ""`, `no PersistentVolume is of its class ""`},
		},
		"missing class": {
			`spec: {storageClassName: fast, ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"there is no StorageClass fast", "late, cloud, hand, old"},
		},
		"no consumer": {
			`spec: {storageClassName: late, ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"WaitForFirstConsumer, and no pod uses the claim yet"},
		},
		"consumer without a node": {
			`spec: {storageClassName: late, ` + spec + `}, status: {phase: Pending}`,
			[]corev1.Pod{pod},
			[]string{"has not found a node for the pod that uses it: p", "keelson why pod/p -n a"},
		},
		"on its node": {
			`annotations: {volume.kubernetes.io/selected-node: n1}}, spec: {storageClassName: late, ` + spec +
				`}, status: {phase: Pending}`, nil, []string{"has not made its volume on node n1 yet"},
		},
		"no driver": {
			`spec: {storageClassName: cloud, ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"there is no CSIDriver ebs.csi.aws.com", "there are: late, hand, old", "not known"},
		},
		"in tree": {
			`spec: {storageClassName: old, ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"part of older Kubernetes releases"},
		},
		"by hand": {
			`spec: {storageClassName: hand, ` + spec + `}, status: {phase: Pending}`, nil, []string{
				"small has 1Mi of 1Gi", "taken is bound to the claim b/other", "left was b/gone's and is Released",
			},
		},
		"named": {
			`spec: {volumeName: nope, ` + spec + `}, status: {phase: Pending}`, nil,
			[]string{"asks for the PersistentVolume nope, which does not exist"},
		},
		"lost": {
			`spec: {volumeName: pv, ` + spec + `}, status: {phase: Lost}`, nil,
			[]string{"Lost", "had the volume pv, which does not exist any more"},
		},
		"bound": {
			`spec: {volumeName: pv, ` + spec + `}, status: {phase: Bound}`, nil,
			[]string{"Bound", "it has the volume pv"},
		},
		"in use": {
			`deletionTimestamp: "2030-01-01T00:00:00Z", finalizers: [kubernetes.io/pvc-protection]}, spec: {}, status: {phase: Bound}`,
			[]corev1.Pod{pod},
			[]string{"Terminating", "pods use it: p"},
		},
	} {
		meta, rest, cut := strings.Cut(c.claim, "}, spec")
		text := `{metadata: {namespace: a, name: c}, ` + c.claim + `}`
		if cut && strings.Contains(meta, "annotations") || cut && strings.Contains(meta, "deletionTimestamp") {
			text = `{metadata: {namespace: a, name: c, ` + meta + `}, spec` + rest + `}`
		}
		got := (&Claim{
			Claim:   object[corev1.PersistentVolumeClaim](t, text),
			Volumes: volumes,
			Classes: classes,
			Pods:    c.pods,
		}).Explain()
		says(t, what, got, c.want...)
	}
}

func TestWorkload(t *testing.T) {
	for text, want := range map[string]string{
		`{"spec":{"replicas":0}}`:               "spec.replicas is 0",
		`{"spec":{"paused":true,"replicas":1}}`: "it is paused",
		`{"spec":{"suspend":true}}`:             "it is suspended",
		`{"metadata":{"generation":1},"spec":{"template":{"spec":{"nodeSelector":{"gpu":"yes"}}}},"status":{"observedGeneration":1,"desiredNumberScheduled":0}}`: "nodeSelector (gpu=yes)",
		`{"metadata":{"generation":2},"spec":{},"status":{"observedGeneration":1,"desiredNumberScheduled":0}}`:                                                   "",
		`{"spec":{"managedBy":"example.com/jobs"}}`:                                                     "leaves it to example.com/jobs",
		`{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`:                               "it is complete",
		`{"spec":{"replicas":2}}`:                                                                       "",
		`{"metadata":{"deletionTimestamp":"2030-01-01T00:00:00Z","finalizers":["foregroundDeletion"]}}`: "finalizers: foregroundDeletion",
	} {
		w := &Workload{}
		if err := json.Unmarshal([]byte(text), w); err != nil {
			t.Fatal(err)
		}
		if got := w.Inactive(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]bool{
		`{"metadata":{"generation":1}}`:                                        true,
		`{"metadata":{"generation":2},"status":{"observedGeneration":1}}`:      true,
		`{"metadata":{"generation":1},"status":{"observedGeneration":1}}`:      false,
		`{"metadata":{"generation":1},"status":{"conditions":[{"type":"a"}]}}`: false,
	} {
		w := &Workload{}
		if err := json.Unmarshal([]byte(text), w); err != nil {
			t.Fatal(err)
		}
		if got := w.NotObserved(); (got != "") != want {
			t.Errorf("%s: unseen %q, want %v", text, got, want)
		}
	}
}

func TestNamespace(t *testing.T) {
	going := object[corev1.Namespace](t,
		`{metadata: {name: old, deletionTimestamp: "2030-01-01T00:00:00Z"}, spec: {finalizers: [kubernetes]}, status: {phase: Terminating,
		conditions: [{type: NamespaceDeletionDiscoveryFailure, status: "True", reason: DiscoveryFailed, message: a.b/v1 stale}, {type: NamespaceContentRemaining, status: "True", message: pods. has 1}]}}`)
	says(t, "held", Namespace(going, []Remaining{
		{Resource: "configmaps", Name: "a", Finalizers: []string{"x/hold"}},
		{Resource: "configmaps", Name: "b"},
		{Resource: "pods", Name: "p"},
	}),
		"Terminating", "a.b/v1 stale", "kubectl get apiservices", "the finalizer x/hold holds configmaps/a",
		"on their way out: configmaps/b", "its pods have not ended yet: p",
		"`keelson why -n old pod/p` says what a pod waits for")
	says(t, "not listed", Namespace(going, nil), "its controller found: pods. has 1")
	says(t, "in use", Namespace(object[corev1.Namespace](t, `{metadata: {name: a}, status: {phase: Active}}`), nil),
		"Active", "it is not being deleted")
}

func TestNode(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 1, 0, 0, time.UTC)
	lease := object[coordinationv1.Lease](t, `{spec: {renewTime: "2030-01-01T00:00:00.000000Z"}}`)
	silent := `status: {conditions: [{type: Ready, status: Unknown, reason: NodeStatusUnknown, message: Kubelet stopped posting node status., lastTransitionTime: "2030-01-01T00:00:40Z"}]}}`
	says(t, "silent", Node(object[corev1.Node](t, `{metadata: {name: n1}, `+silent), lease, now), "NotReady",
		"its kubelet is silent", "since 2030-01-01 00:00:40 UTC", "lease 1m0s ago", "not known")
	renewed := object[coordinationv1.Lease](t, `{spec: {renewTime: "2030-01-01T00:00:58.000000Z"}}`)
	back := Node(object[corev1.Node](t, `{metadata: {name: n1}, `+silent), renewed, now)
	says(t, "back", back, "NotReady", "was silent until 2030-01-01 00:00:40 UTC", "is back: it renewed its lease 2s ago")
	if text := fmt.Sprint(back.Why, back.Next, back.Unknown); strings.Contains(text, "is silent") ||
		strings.Contains(text, "node rm") {
		t.Errorf("back: contradicts itself: %s", text)
	}
	says(t, "fake",
		Node(object[corev1.Node](t, `{metadata: {name: n1, annotations: {keelson.dev/simulated-by: x}}, `+silent), nil,
			now), "keelson node start n1",
		"it is a fake node: nothing runs on it")
	says(t, "taint",
		Node(object[corev1.Node](t, `{metadata: {name: n1}, spec: {taints: [{key: keelson.dev/fake, effect: NoSchedule}]}}`),
			nil, now), "spec.tolerations: [{key: keelson.dev/fake, operator: Exists}]")
	says(t, "cordoned",
		Node(object[corev1.Node](t,
			`{metadata: {name: n1}, spec: {unschedulable: true, taints: [{key: a, effect: NoExecute}]}, status: {conditions: [{type: Ready, status: "True"},
		{type: DiskPressure, status: "True", reason: Full}]}}`), nil, now), "n1   Ready", "kubectl uncordon n1",
		"kubectl taint node n1 a:NoExecute-", "keelson up --eviction-hard 'nodefs.available<5%,",
		"a:NoExecute: pods that do not tolerate it are evicted", "DiskPressure")
	says(t, "sick",
		Node(object[corev1.Node](t,
			`{metadata: {name: n1}, status: {conditions: [{type: Ready, status: "False", reason: KubeletNotReady, message: network}]}}`),
			nil, now), "KubeletNotReady: network")
}

// TestPressure: each pressure names a command; taints that controllers remove do not.
func TestPressure(t *testing.T) {
	for pressure, want := range map[string]string{
		"DiskPressure":   "keelson image ls",
		"MemoryPressure": "kubectl top pods -A --sort-by=memory",
		"PIDPressure":    "ps -eo ppid=",
	} {
		node := object[corev1.Node](t, `{metadata: {name: n1}, spec: {taints: [{key: node.kubernetes.io/pressure,
		effect: NoSchedule}]}, status: {conditions: [{type: `+pressure+`, status: "True"}, {type: Ready, status: "True"}]}}`)
		answer := Node(node, nil, time.Now())
		if len(answer.Next) != 1 || !strings.Contains(answer.Next[0], want) {
			t.Errorf("%s: next %q, want only %q", pressure, answer.Next, want)
		}
	}
	well := object[corev1.Node](t, `{metadata: {name: n1}, status: {conditions: [{type: Ready, status: "True"}, {type: DiskPressure, status: "False"}]}}`)
	if answer := Node(well, nil, time.Now()); len(answer.Next) > 0 {
		t.Errorf("a node without pressure: next %q", answer.Next)
	}
}

func TestIngress(t *testing.T) {
	rules := `rules: [{http: {paths: [{pathType: Prefix, path: /, backend: {service: {name: web, port: {number: 81}}}}]}}]`
	web := []corev1.Service{*object[corev1.Service](t, `{metadata: {name: web}, spec: {ports: [{port: 80}]}}`)}
	class := []networkingv1.IngressClass{
		*object[networkingv1.IngressClass](t, `{metadata: {name: t}, spec: {controller: traefik.io/ingress}}`),
	}
	says(t, "no class", Ingress(object[networkingv1.Ingress](t, `{metadata: {name: i}, spec: {`+rules+`}}`), nil, nil),
		"not served", "there is none", "service web, does not exist")
	says(t, "no port",
		Ingress(object[networkingv1.Ingress](t, `{metadata: {name: i}, spec: {ingressClassName: t, `+rules+`}}`),
			class, web), "traefik.io/ingress, which has not written an address", "has no port 81", "not known")
	says(t, "missing", Ingress(object[networkingv1.Ingress](t, `{metadata: {name: i}, spec: {ingressClassName: u}}`),
		class, web), "there is no IngressClass u", "there are: t")
	says(t, "served",
		Ingress(object[networkingv1.Ingress](t,
			`{metadata: {name: i}, status: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}}`), class, web),
		"served at 10.0.0.1")
}

func TestDefinition(t *testing.T) {
	says(t, "names",
		object[Definition](t,
			`{metadata: {name: a.b}, status: {conditions: [{type: NamesAccepted, status: "False", reason: ListKindConflict, message: taken}, {type: Established, status: "False", reason: NotAccepted, message: not all}]}}`).
			Explain(),
		"not established", "ListKindConflict: taken", "give it others in spec.names")
	says(t, "new", object[Definition](t, `{metadata: {name: a.b}}`).Explain(), "has not looked at it yet")
	says(t, "going",
		object[Definition](t,
			`{metadata: {name: a.b, deletionTimestamp: "2030-01-01T00:00:00Z", finalizers: [customresourcecleanup.apiextensions.k8s.io]}}`).
			Explain(), "Terminating", "kubectl get a.b -A")
}

func TestAutoscaler(t *testing.T) {
	h := func(conditions string) *autoscalingv2.HorizontalPodAutoscaler {
		return object[autoscalingv2.HorizontalPodAutoscaler](t,
			`{metadata: {name: h, namespace: a}, spec: {maxReplicas: 3, scaleTargetRef: {kind: Deployment, name: web}}, status: {currentReplicas: 1, conditions: [`+
				conditions+`]}}`)
	}
	says(t, "new", Autoscaler(h("")), "has not looked at it yet")
	answer := Autoscaler(h(
		`{type: ScalingActive, status: "False", reason: FailedGetResourceMetric, message: "missing request for cpu"}`))
	answer.Recorded(Message{Reason: "FailedGetResourceMetric", Text: "missing request for cpu."})
	answer.Recorded(Message{})
	says(t, "request", answer, "1 replica\n", "resources.requests")
	if len(answer.Why) != 1 {
		t.Errorf("the warning is printed twice: %q", answer.Why)
	}
	answer.Recorded(Message{Reason: "FailedRescale", Text: "request for"})
	says(t, "part of another message", answer, "its newest warning: FailedRescale: request for")
	says(t, "target", Autoscaler(h(`{type: AbleToScale, status: "False", reason: FailedGetScale, message: none}`)),
		"deployment/web exists")
	says(t, "bound", Autoscaler(h(`{type: ScalingLimited, status: "True", reason: TooManyReplicas}`)),
		"raise maxReplicas (3)")
	answer = Autoscaler(
		h(`{type: AbleToScale, status: "True", reason: SucceededRescale}, {type: ScaledToZero, status: "False", reason: NotScaledToZero, message: "the HPA controller did not scale the workload to zero"}`))
	says(t, "not zero", answer, "scales as they say")
	if len(answer.Why) != 1 {
		t.Errorf("not scaled to zero: got %q, want one sentence", answer.Why)
	}
}

func TestBudget(t *testing.T) {
	pods := []corev1.Pod{*object[corev1.Pod](t, `{metadata: {name: sick, labels: {a: w}}, status: {phase: Running}}`)}
	b := func(status string) *policyv1.PodDisruptionBudget {
		return object[policyv1.PodDisruptionBudget](t,
			`{metadata: {name: b, generation: 1}, spec: {minAvailable: 1, selector: {matchLabels: {a: w}}}, status: {disruptionsAllowed: 0, currentHealthy: 0, desiredHealthy: 1, expectedPods: 1, `+
				status+`}}`)
	}
	says(t, "sick", Budget(b("observedGeneration: 1"), pods), "0 evictions allowed now", "not counted: sick",
		"its minAvailable needs all", "AlwaysAllow")
	says(t, "unseen", Budget(b("observedGeneration: 0"), pods), "has not looked at it")
	says(t, "none", Budget(b("observedGeneration: 1"), nil), "a=w matches no pod")
	says(t, "failed",
		Budget(b(`conditions: [{type: DisruptionAllowed, status: "False", reason: SyncFailed, message: no scale}]`),
			pods), "cannot count: no scale")
}

func TestRender(t *testing.T) {
	a := &Answer{Kind: "node", Name: "n", State: "NotReady"}
	a.because("one two three\x1b[2J four")
	a.do("five")
	a.Unreadable("leases", errors.New("forbidden"))
	var b strings.Builder
	Render(&b, a, false, 24)
	const want = "node n   NotReady\n   why        one two\n              three[2J\n              four\n   next      " +
		" five\n   not known  leases\n              could not\n              be read:\n              forbidden\n"
	if b.String() != want {
		t.Errorf("got\n%q, want\n%q", b.String(), want)
	}
}
