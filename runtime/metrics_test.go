// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMetrics: whatever is described is there for a running container, with labels as described.
func TestMetrics(t *testing.T) {
	n := newNode(t)
	_, id := n.run("measured")
	desc, err := n.c.Runtime.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := n.c.Runtime.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil || len(all.GetPodMetrics()) != 1 || len(all.GetPodMetrics()[0].GetContainerMetrics()) != 1 {
		t.Fatalf("got %v, %v, want one pod with one container", all, err)
	}
	c := all.GetPodMetrics()[0].GetContainerMetrics()[0]
	if c.GetContainerId() != id {
		t.Errorf("container: got %s, want %s", c.GetContainerId(), id)
	}
	got := map[string]*runtimeapi.Metric{}
	for _, m := range c.GetMetrics() {
		got[m.GetName()] = m
	}
	seen := map[string]bool{}
	for _, d := range desc.GetDescriptors() {
		if seen[d.GetName()] {
			t.Errorf("%s is described twice", d.GetName())
		}
		seen[d.GetName()] = true
		m := got[d.GetName()]
		if strings.HasPrefix(d.GetName(), "container_network_") {
			continue // the pod has no interface but lo here
		}
		if m == nil || len(m.GetLabelValues()) != len(d.GetLabelKeys()) || d.GetHelp() == "" {
			t.Errorf("%s: got %v, want labels %v", d.GetName(), m, d.GetLabelKeys())
		}
	}
	for name, least := range map[string]uint64{
		"container_processes":          1,
		"container_threads":            1,
		"container_file_descriptors":   3,
		"container_start_time_seconds": 1 << 30,
		"container_memory_usage_bytes": 4096,
		"container_fs_limit_bytes":     1 << 20,
		"container_last_seen":          1 << 30,
	} {
		if v := got[name].GetValue().GetValue(); v < least {
			t.Errorf("%s: got %d, want at least %d", name, v, least)
		}
	}
}
