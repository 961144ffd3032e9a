// SPDX-License-Identifier: Apache-2.0

package clusterroleaggregation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func role(name string, labels map[string]string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, res := range resources {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{
			Verbs:     []string{"get"},
			APIGroups: []string{""},
			Resources: []string{res},
		})
	}
	return r
}

func TestAggregate(t *testing.T) {
	yes := map[string]string{"to": "whole"}
	whole := role("whole", yes, "old")
	whole.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{
			MatchLabels: yes,
		}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "also", Operator: metav1.LabelSelectorOpExists}}},
	}}
	rules, err := aggregate(whole, []*rbacv1.ClusterRole{
		whole, role("c", map[string]string{"also": ""}, "secrets", "pods"), role("b", yes, "nodes", "pods"),
		role("a", yes, "pods"), role("d", nil, "events"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rules {
		got = append(got, r.Resources...)
	}
	if d := cmp.Diff([]string{"pods", "nodes", "secrets"}, got); d != "" {
		t.Errorf("resources (-want +got):\n%s", d)
	}
	whole.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: "x", Operator: "Near"},
	}
	if _, err := aggregate(whole, nil); err == nil {
		t.Error("a selector that is none was taken")
	}
}
