// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAddedNodes(t *testing.T) {
	nodes, err := AddedNodes("2,cpu=8,memory=32Gi,nvidia.com/gpu=1,label:zone=a")
	if err != nil || len(nodes) != 2 {
		t.Fatalf("%d nodes, %v; want 2", len(nodes), err)
	}
	n := nodes[1]
	if has := n.Status.Allocatable; n.Name != "added-2" || has.Cpu().Value() != 8 || has.Pods().Value() != 110 ||
		has.Memory().Value() != 32<<30 {
		t.Errorf("%s has %v", n.Name, n.Status.Allocatable)
	}
	if gpu := n.Status.Allocatable["nvidia.com/gpu"]; gpu.Value() != 1 || n.Labels["zone"] != "a" ||
		n.Labels[corev1.LabelHostname] != "added-2" {
		t.Errorf("gpus %v, labels %v", gpu, n.Labels)
	}
	for text, want := range map[string]string{
		"x":                                 "no number",
		"0":                                 "no number",
		"5001":                              "no number",
		"1,cpu":                             "not of the form",
		"1,cpu=-1":                          "no amount",
		"1,label:=x":                        "not of the form",
		"1" + strings.Repeat(",cpu=1", 101): "101 resources and labels",
	} {
		if _, err := AddedNodes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
