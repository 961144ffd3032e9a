// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

const wanted = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}], priorityClassName: high}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: ops}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {nodeSelector: {pool: a}, containers: [{name: c, image: i}]}}
`

// TestWhatIf: the questions one can ask of a cluster of two nodes, one of them full of cheap pods of a ReplicaSet.
func TestWhatIf(t *testing.T) {
	ofSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cheap", Controller: new(true)}}
	}
	class := &schedulingv1.PriorityClass{}
	class.Name = "high"
	class.Value = 1000
	state := func() []runtime.Object {
		return []runtime.Object{
			class, schedtest.Node("a", schedtest.Labels("pool", "a")), schedtest.Node("b"),
			schedtest.Pod("cheap-1", schedtest.On("a"), schedtest.Requests("3", ""), ofSet),
			schedtest.Pod("cheap-2", schedtest.On("b"), schedtest.Requests("3", ""), ofSet, schedtest.Priority(1)),
			schedtest.Pod("alone", schedtest.On("b"), schedtest.Requests("1", "")),
			schedtest.Pod("waits", schedtest.Requests("4", "")),
		}
	}
	tests := []struct {
		name     string
		question whatif.Question
		manifest string
		want     string // "pod: why -> node", in the order of attempts; then what is lost
	}{
		{
			"preempts",
			whatif.Question{},
			wanted,
			"web-0: new -> a; web-1: new -> a; waits: pending -> ; agent-a: new -> a; cheap-1: preempted on a by " +
				"default/web-0 -> ",
		},
		{
			"drain", whatif.Question{Drain: []string{"b"}}, "", "cheap-2: leaves b -> a; cheap-1: preempted on a " +
				"by default/cheap-2 -> ; waits: pending -> ; lost alone",
		},
		{
			"remove and add",
			whatif.Question{
				Remove: []string{"a"},
				Add:    []*corev1.Node{schedtest.Node("added-1"), schedtest.Node("added-2")},
			},
			"",
			"cheap-1: leaves a -> added-1 or added-2; waits: pending -> added-1 or added-2",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			clientset := clienttest.New(state()...)
			var err error
			if tc.question.Manifest, err = whatif.ReadManifest(strings.NewReader(tc.manifest), ""); err != nil {
				t.Fatal(err)
			}
			answer, err := whatif.Ask(t.Context(),
				whatif.Config{Client: &client.Client{Interface: client.Plain(clientset)}, Parallelism: 1}, &tc.question)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range answer.Outcomes {
				node := o.Node
				if strings.HasPrefix(node, "added-") {
					node = "added-1 or added-2"
				}
				got = append(got, fmt.Sprintf("%s: %s -> %s", o.Name, o.Why, node))
				if o.Node == "" && o.Reason == "" {
					t.Errorf("%s stays pending without a reason", o.Name)
				}
			}
			for _, l := range answer.Lost {
				got = append(got, "lost "+l.Name)
			}
			a := slices.Sorted(slices.Values(got))
			b := slices.Sorted(slices.Values(strings.Split(tc.want, "; ")))
			if !slices.Equal(a, b) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "; "), tc.want)
			}
			for _, act := range clientset.Actions() {
				if !slices.Contains([]string{"get", "list", "watch"}, act.GetVerb()) {
					t.Errorf("it sent %s %s", act.GetVerb(), act.GetResource().Resource)
				}
			}
		})
	}
}

// TestWhatIfNotesGroups: on a server without pod groups their pods are tried one by one; the answer says so and names
// the groups.
func TestWhatIfNotesGroups(t *testing.T) {
	objs := []runtime.Object{schedtest.Node("a")}
	for i := range 5 {
		p := schedtest.Pod(fmt.Sprint("p", i))
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new(fmt.Sprint("g", i/2*2))}
		objs = append(objs, p)
	}
	ask := func(objs ...runtime.Object) []string {
		answer, err := whatif.Ask(t.Context(), whatif.Config{
			Client: &client.Client{
				Interface: client.Plain(clienttest.New(objs...)),
			},
			Parallelism: 1,
		}, &whatif.Question{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Notes
	}
	const want = "the pods of pod groups are tried one by one: not considered is that minCount of them get nodes " +
		"together or none does, " +
		"nor the preemption by a group as a whole (default/g0, default/g2, default/g4)"
	if got := ask(objs...); !slices.Equal(got, []string{want}) {
		t.Errorf("notes %q, want %q", got, want)
	}
	if got := ask(objs[0], schedtest.Pod("plain")); len(got) > 0 {
		t.Errorf("without groups: notes %q", got)
	}
}

// TestWhatIfRefuses: manifests that are invalid or lead to no pods are refused, each with its reason.
func TestWhatIfRefuses(t *testing.T) {
	for manifest, want := range map[string]string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}": "the manifest leads to no pods, it has 1 Secret: write " +
			"Pods",
		"kind: [": "document 1",
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: p}}, {apiVersion: v1, " +
			"kind: Pod, spec: {contaners: []}}]": `document 1: items[1]: strict decoding error: unknown field "spec.contaners"`,
		"apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: s}}]":       "it has 1 Service: write Pods",
		"apiVersion: apps/v1\nkind: Deploymnt":                                    `no kind "Deploymnt"`,
		"apiVersion: x.example/v1\nmetadata: {name: p}":                           "'Kind' is missing",
		"apiVersion: v1\nkind: Service\nspec: {prots: []}":                        "prots",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {contaners: []}":   "contaners",
		"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {contaners: []}}": `unknown field "spec.contaners"`,
		strings.Repeat("#", 9<<20):                                                "more than 8388608 bytes",
		"a: &a " + strings.Repeat("x", 64<<10) + "\nb: [" + strings.Repeat("*a,", 2000) + "]": "document 1: document " +
			"contains excessive aliasing",
		strings.Repeat(`{"apiVersion": "v1", "kind": "List", "items": [`, 500) + strings.Repeat("]}", 500): "by aliases " +
			"or lists in lists",
		strings.Repeat("apiVersion: x.example/v1\nkind: A\na: &a "+strings.Repeat("x", 500)+"\nb: ["+
			strings.Repeat("*a,", 1000)+"]\n---\n", 10): "document 3: the manifest is much more than what is written",
	} {
		if _, err := whatif.ReadManifest(strings.NewReader(manifest), ""); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	ask := func(q whatif.Question, manifest string) error {
		var err error
		if q.Manifest, err = whatif.ReadManifest(strings.NewReader(manifest), ""); err != nil {
			t.Fatal(err)
		}
		_, err = whatif.Ask(t.Context(),
			whatif.Config{Client: &client.Client{Interface: client.Plain(clienttest.New(schedtest.Node("a")))}}, &q)
		return err
	}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]%s}"
	for want, err := range map[string]error{
		"no node x to drain":     ask(whatif.Question{Drain: []string{"x"}}, ""),
		"no node x to remove":    ask(whatif.Question{Remove: []string{"x"}}, ""),
		"a node a already":       ask(whatif.Question{Add: []*corev1.Node{schedtest.Node("a")}}, ""),
		"no priority class gold": ask(whatif.Question{}, fmt.Sprintf(pod, ", priorityClassName: gold")),
		"has spec.nodeName":      ask(whatif.Question{}, fmt.Sprintf(pod, ", nodeName: a")),
		"more than 10000 pods": ask(whatif.Question{}, "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: "+
			"r}\nspec: {replicas: 2000000000, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: "+
			"b}}, spec: {containers: [{name: c, image: i}]}}}"),
		`Pod "p" is invalid: [spec.containers[0].name: Required value, spec.containers[0].image`: ask(
			whatif.Question{}, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{}]}"),
		`Job.batch "" is invalid: metadata.name: Required value: name or generateName is required`: ask(
			whatif.Question{},
			"apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, "+
				"image: i}]}}}"),
		"selector` does not match template `labels`": ask(whatif.Question{},
			strings.Replace(deployment(1, ""), "labels: {app: web}", "labels: {app: wob}", 1)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestWhatIfBoundsBytes: what is made of templates is bounded by its bytes, too: a small manifest may have large ones.
func TestWhatIfBoundsBytes(t *testing.T) {
	const claim = "{metadata: {name: c%d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}, "
	var claims strings.Builder
	for i := range 100 {
		_, _ = fmt.Fprintf(&claims, claim, i)
	}
	large := "{template: {metadata: {annotations: {a: " + strings.Repeat("x", 100<<10) + "}, "
	for what, text := range map[string]string{
		"claims": "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec: {replicas: 100, serviceName: s, " +
			"selector: {matchLabels: {a: b}}, volumeClaimTemplates: [" + claims.String() + "], template: {metadata: " +
			"{labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
		"pods": "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: r}\nspec: {replicas: 100, selector: " +
			"{matchLabels: {a: b}}, " + large[1:] + "labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
		"pods of a DaemonSet": "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec: {selector: " +
			"{matchLabels: {a: b}}, " + large[1:] + "labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
	} {
		manifest, err := whatif.ReadManifest(strings.NewReader(text), "")
		if err != nil {
			t.Fatal(err)
		}
		ask := func(most int) error {
			_, err := whatif.Ask(t.Context(), whatif.Config{
				Client:   &client.Client{Interface: client.Plain(clienttest.New(schedtest.Node("a")))},
				MaxBytes: most,
			}, &whatif.Question{Manifest: manifest})
			return err
		}
		if err := ask(64 << 10); !errors.As(err, new(*whatif.TooManyError)) {
			t.Errorf("%s: got %v, want an error because of 65536 bytes", what, err)
		}
	}
}

// TestWhatIfSkips: a manifest may have objects that lead to no pods; one note counts them.
func TestWhatIfSkips(t *testing.T) {
	const others = "# a comment\n---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: " +
		"80}]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: s2}\nspec: {ports: [{port: 80}]}\n---\napiVersion: " +
		"x.example/v1\nkind: Policy\nspec: {any: thing}\n---\n" +
		"apiVersion: x.example/v1\nkind: Policy\n---\napiVersion: x.example/v1\nkind: Job\n---\n"
	const want = "web-0: new -> a\nnot counted: 1 ConfigMap, 1 Job.x.example, 2 Policies.x.example"
	if got := asked(t, clienttest.New(schedtest.Node("a")), others+deployment(1, ""),
		func(*whatif.Config) {}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := whatif.ReadManifest(strings.NewReader(others), ""); err == nil ||
		!strings.Contains(err.Error(), "it has 1 ConfigMap, 1 Job.x.example, 2 Pol") {
		t.Errorf("nothing leads to pods: %v", err)
	}
}

type answering struct{}

func (answering) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.ErrUnsupported }

// TestReadOnly: only what reads leaves.
func TestReadOnly(t *testing.T) {
	for _, method := range []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} {
		rq, err := http.NewRequestWithContext(t.Context(), method, "http://x/y", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		_, err = whatif.NewReader().Wrap(answering{}).RoundTrip(rq)
		if passed := errors.Is(err, errors.ErrUnsupported); passed != (method == http.MethodGet) {
			t.Errorf("%s passed: %v (%v)", method, passed, err)
		}
	}
}
