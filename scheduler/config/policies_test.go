// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"testing"

	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
)

// TestPolicies: policies of the file reach the plugin, which every profile has; errors in them are reported with the
// file's line, the field, and line:column of the expression.
func TestPolicies(t *testing.T) {
	const at = "profiles:\n- pluginConfig:\n  - name: CELPolicy\n    args:\n"
	c := read(t, at+"      policies:\n      - name: ssd\n        podSelector: {matchLabels: {disk: fast}}\n        "+
		"filters:\n        - {expression: \"node.labels['disk'] == 'ssd'\", message: needs an SSD}\n        "+
		"scores:\n        - {expression: '100 - node.pods', weight: 3}\n")
	a, ok := c.Profiles[0].Args[policy.Plugin].(*policy.Args)
	if !ok || len(a.Policies) != 1 || a.Policies[0].Name != "ssd" ||
		a.Policies[0].Filters[0].Message != "needs an SSD" || *a.Policies[0].Scores[0].Weight != 3 {
		t.Errorf("args %+v", c.Profiles[0].Args[policy.Plugin])
	}
	for _, point := range []framework.Point{framework.AtFilter, framework.AtScore} {
		if got := fmt.Sprint(Default().Profiles[0].Points[point]); !containsPlugin(Default().Profiles[0].Points[point],
			policy.Plugin) {
			t.Errorf("%s: %s", point, got)
		}
	}
	off := read(t, "profiles:\n- plugins: {multiPoint: {disabled: [{name: CELPolicy}]}}\n")
	if containsPlugin(off.Profiles[0].Points[framework.AtFilter], policy.Plugin) {
		t.Error("CELPolicy is disabled, and still there")
	}
	for _, tt := range []struct{ body, want string }{
		{"      policys: []\n", "f:7: profiles[0].pluginConfig[0].args.policys: unknown field"},
		{
			"      kind: NodeAffinityArgs\n",
			"f:7: profiles[0].pluginConfig[0].args.kind: must be CELPolicyArgs, not NodeAffinityArgs",
		},
		{
			"      policies:\n      - name: a\n        filter: []\n",
			"f:8: profiles[0].pluginConfig[0].args.policies[0].filters: Required value: a policy has filters or " +
				"scores\n" +
				"f:9: profiles[0].pluginConfig[0].args.policies[0].filter: unknown field",
		},
		{
			"      policies:\n      - filters: [{expression: 'true'}]\n",
			"f:8: profiles[0].pluginConfig[0].args.policies[0].name: Required value",
		},
		{
			"      policies:\n      - name: a\n        filters: [{expression: 'true'}]\n      - name: a\n        " +
				"filters:\n        - expression: |\n            true &&\n              nod.name == 'x'\n",
			"f:10: profiles[0].pluginConfig[0].args.policies[1].name: Duplicate value: \"a\"\nf:12: " +
				"profiles[0].pluginConfig[0].args.policies[1].filters[0].expression: Invalid value: \"true &&\\n  " +
				"nod.name == 'x'\\n\": 2:3: undeclared reference to 'nod' (in container '')",
		},
		{
			"      policies:\n      - name: a\n        scores:\n        - {expression: '1', weight: 1000}\n",
			"f:10: profiles[0].pluginConfig[0].args.policies[0].scores[0].weight: Invalid value: 1000: must be from " +
				"1 to 100",
		},
	} {
		_, err := Read("f", []byte(head+at+tt.body), nil)
		if got := fmt.Sprint(err); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.body, got, tt.want)
		}
	}
}

func containsPlugin(list []Plugin, name string) bool {
	for _, p := range list {
		if p.Name == name {
			return true
		}
	}
	return false
}
