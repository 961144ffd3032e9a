// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

// whatIf asks a question of a server with pod groups. The answer: "pod: why -> node" of each, sorted, with the reasons
// of those that have none.
func whatIf(t *testing.T, question whatif.Question, manifest string, configure func(
	*whatif.Config,
), objs ...runtime.Object,
) (outcomes string, answer *whatif.Answer) {
	t.Helper()
	clientset := clienttest.New(objs...)
	schedtest.ServeGroups(clientset)
	cfg := whatif.Config{Client: &client.Client{Interface: client.Plain(clientset)}, Parallelism: 1}
	if configure != nil {
		configure(&cfg)
	}
	var err error
	if question.Manifest, err = whatif.ReadManifest(strings.NewReader(manifest), ""); err != nil {
		t.Fatal(err)
	}
	if answer, err = whatif.Ask(t.Context(), cfg, &question); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range answer.Outcomes {
		out = append(out, fmt.Sprintf("%s: %s -> %s%s", o.Name, o.Why, o.Node, o.Reason))
	}
	for _, act := range clientset.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, act.GetVerb()) {
			t.Errorf("it sent %s %s", act.GetVerb(), act.GetResource().Resource)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; "), answer
}

func low(name, node, cpu string, o ...schedtest.PodOption) *corev1.Pod {
	return schedtest.Pod(name, append(o, schedtest.On(node), schedtest.Requests(cpu, ""))...)
}

// TestWhatIfGroups: all pods of a gang that are needed get nodes, or none does; room is made for the whole gang.
func TestWhatIfGroups(t *testing.T) {
	high := schedtest.Priority(100)
	ofSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cheap", Controller: new(true)}}
	}
	n1 := schedtest.Node("n1")
	n2 := schedtest.Node("n2")
	for _, tt := range []struct {
		what     string
		manifest string
		objs     []runtime.Object
		want     string
		victims  int
	}{
		{
			"a gang that fits", "", append(schedtest.Members("g", 2, "3"), schedtest.Gang("g", 2), n1, n2),
			"g-0: pending -> n1; g-1: pending -> n2|g-0: pending -> n2; g-1: pending -> n1", 0,
		},
		{
			"a gang that does not", "", append(schedtest.Members("g", 2, "3"), schedtest.Gang("g", 2), n1),
			"g-0: pending -> pod group is unschedulable, minCount (2) cannot be satisfied: 1 scheduled, 0 remaining, " +
				"pod group preemption: No preemption victims found for incoming preemptor; g-1: pending -> 0/1 nodes " +
				"are available: 1 Insufficient cpu.", 0,
		},
		{
			"too few pods", "", append(schedtest.Members("g", 2, "3"), schedtest.Gang("g", 3), n1, n2),
			"g-0: pending -> it waits for 1 more pods of group g (2 of 3); g-1: pending -> it waits for 1 more pods " +
				"of group g (2 of 3)", 0,
		},
		{"no group", "", append(schedtest.Members("g", 1, "3"), n1), "g-0: pending -> it waits for the pod group g", 0},
		{
			"pods that are placed already count", "",
			append(schedtest.Members("g", 2, "3"), schedtest.Gang("g", 2), n1,
				schedtest.Pod("g-here", schedtest.On("n1"), schedtest.Requests("1", ""), schedtest.InGroup("g"))),
			"g-0: pending -> n1; g-1: pending -> 0/1 nodes are available: 1 Insufficient cpu.", 0,
		},
		{
			"it makes room", "", append(schedtest.Members("g", 2, "3", high), schedtest.Important(schedtest.Gang("g", 2), 100), n1, n2,
				low("cheap", "n1", "2", ofSet), low("small", "n2", "1")),
			"cheap: preempted on n1 by group default/g -> 0/2 nodes are available: 2 Insufficient cpu. preemption: " +
				"0/2 nodes are available: 2 No preemption victims found for incoming pod.; g-0: pending -> n1; g-1: " +
				"pending -> n2", 1,
		},
		{
			"it makes room for all or for none", "", append(schedtest.Members("g", 3, "3", high), schedtest.Important(schedtest.Gang("g", 3), 100),
				n1, n2, low("cheap", "n1", "2", ofSet)),
			"", 0,
		},
		{
			"a manifest", "apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: train}\nspec: " +
				"{schedulingPolicy: {gang: {minCount: 2}}}\n---\n" +
				"apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  parallelism: 2\n  template:\n    " +
				"spec:\n      schedulingGroup: {podGroupName: train}\n" +
				"      restartPolicy: Never\n      containers: [{name: c, image: i, resources: {requests: {cpu: " +
				"'3'}}}]\n",
			[]runtime.Object{n1, n2},
			"train-0: new -> n1; train-1: new -> n2|train-0: new -> n2; train-1: new -> n1",
			0,
		},
	} {
		got, answer := whatIf(t, whatif.Question{}, tt.manifest, nil, tt.objs...)
		victims := 0
		placed := 0
		for _, o := range answer.Outcomes {
			if o.Node != "" {
				placed++
			}
			if o.Decision != nil && o.Decision.Preemption != nil {
				victims += int(o.Decision.Preemption.Count)
			}
		}
		if tt.want == "" && (placed > 0 || len(answer.Outcomes) != 3) ||
			tt.want != "" && !slices.Contains(strings.Split(tt.want, "|"), got) {
			t.Errorf("%s: %s\nwant %s", tt.what, got, tt.want)
		}
		if victims != tt.victims || len(answer.Notes) > 0 {
			t.Errorf("%s: %d victims, want %d; notes %q", tt.what, victims, tt.victims, answer.Notes)
		}
	}
}

// TestWhatIfAsksExtenders: extenders refuse and score, and are never asked to bind; one that fails is left out, with a
// note.
func TestWhatIfAsksExtenders(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	counting := func(verb string, answer func(*json.Decoder) any) func(context.Context, *json.Decoder) any {
		return func(_ context.Context, d *json.Decoder) any {
			mu.Lock()
			asked[verb]++
			mu.Unlock()
			return answer(d)
		}
	}
	url := schedtest.ExtenderAt(t, map[string]func(context.Context, *json.Decoder) any{
		"filter": counting("filter", func(d *json.Decoder) any {
			return schedtest.RefuseNodes(map[string]string{"n1": "too hot"})(t.Context(), d)
		}),
		"score": counting("score", func(*json.Decoder) any {
			return extenderv1.HostPriorityList{{Host: "n3", Score: 10}}
		}),
		"bind":    counting("bind", func(*json.Decoder) any { return extenderv1.ExtenderBindingResult{} }),
		"preempt": counting("preempt", func(*json.Decoder) any { return extenderv1.ExtenderPreemptionResult{} }),
		"broken": counting("broken", func(*json.Decoder) any {
			return extenderv1.ExtenderFilterResult{Error: "out of order"}
		}),
	})
	objs := []runtime.Object{schedtest.Node("n1"), schedtest.Node("n2"), schedtest.Node("n3"), schedtest.Pod("p",
		schedtest.Requests("3", ""))}
	group := append(schedtest.Members("g", 2, "3"), schedtest.Gang("g", 2))
	answers := configured(
		fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: filter, prioritizeVerb: score, weight: 9, bindVerb: "+
			"bind, preemptVerb: preempt}]", url))
	if got, a := whatIf(t, whatif.Question{}, "", answers, objs...); got != "p: pending -> n3" || len(a.Notes) > 0 {
		t.Errorf("%s, notes %q", got, a.Notes)
	}
	if got, _ := whatIf(t, whatif.Question{}, "", answers,
		append(group, objs[:3]...)...); got != "g-0: pending -> n2; g-1: pending -> n3" &&
		got != "g-0: pending -> n3; g-1: pending -> n2" {
		t.Errorf("a group: %s", got)
	}
	_, a := whatIf(t, whatif.Question{}, "", answers, objs[0], objs[3])
	if want := []string{"extender " + url + " is not called to choose victims"}; !slices.Equal(a.Notes, want) {
		t.Errorf("notes %q, want %q", a.Notes, want)
	}
	mu.Lock()
	if asked["bind"]+asked["preempt"] > 0 || asked["filter"] == 0 || asked["score"] == 0 {
		t.Errorf("asked %v", asked)
	}
	mu.Unlock()
	fails := configured(fmt.Sprintf("extenders: [{urlPrefix: '%s', filterVerb: broken}]", url))
	got, a := whatIf(t, whatif.Question{}, "", fails,
		append(objs[:1:1], objs[3], schedtest.Pod("q", schedtest.Requests("1", "")))...)
	want := "the answer is without extender " + url + ": broken: the extender returned an error: out of order"
	if got != "p: pending -> n1; q: pending -> n1" || !slices.Equal(a.Notes, []string{want}) {
		t.Errorf("%s, notes %q, want %q", got, a.Notes, want)
	}
}
