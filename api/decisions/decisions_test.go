// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCopiesShareNothing: what is changed in a copy stays as it is in the original.
func TestCopiesShareNothing(t *testing.T) {
	full := func() *PodDecisionList {
		return &PodDecisionList{Items: []PodDecision{{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}},
			Status: PodDecisionStatus{
				ExtensionPoints: []ExtensionPoint{{Name: "Filter"}},
				Scores: []NodeScore{
					{Node: "n", Plugins: []PluginScore{{Raw: 1}}, Rules: []RuleScore{{Raw: 1}}},
				},
				Rules:      []Rule{{Policy: "p"}},
				Refusals:   []Refusal{{Node: "m"}},
				RefusedBy:  []RefusalGroup{{Names: []string{"m"}}},
				Fixes:      []string{"f"},
				Preemption: &Preemption{Victims: []Victim{{Name: "v"}}},
			},
		}}}
	}
	list := full()
	c, ok := list.DeepCopyObject().(*PodDecisionList)
	if !ok || !reflect.DeepEqual(c, list) {
		t.Fatalf("the copy is %+v", c)
	}
	d := &c.Items[0]
	d.Labels["a"] = "x"
	d.Status.ExtensionPoints[0].Name = "x"
	d.Status.Scores[0].Plugins[0].Raw = 9
	d.Status.Scores[0].Rules[0].Raw = 9
	d.Status.Rules[0].Policy = "x"
	d.Status.Refusals[0].Node = "x"
	d.Status.RefusedBy[0].Names[0] = "x"
	d.Status.Fixes[0] = "x"
	d.Status.Preemption.Victims[0].Name = "x"
	if !reflect.DeepEqual(list, full()) {
		t.Errorf("the original has changed with its copy: %+v", list)
	}
}
