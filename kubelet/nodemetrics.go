// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/volume"
)

// The metrics of what is on the node, with the names of Kubernetes' kubelet.
var (
	descNodeName = prometheus.NewDesc("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.",
		[]string{"node"}, nil)
	descPods = prometheus.NewDesc("kubelet_running_pods",
		"[ALPHA] Number of pods that have a running pod sandbox", nil, nil)
	descContainers = prometheus.NewDesc("kubelet_running_containers",
		"[ALPHA] Number of containers currently running", []string{"container_state"}, nil)
	descVolumes = prometheus.NewDesc("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager",
		[]string{"plugin_name", "state"}, nil)
	descPendingResizes = prometheus.NewDesc("kubelet_pod_pending_resizes",
		"[ALPHA] Number of pending resizes for pods.", []string{"reason"}, nil)
	descResizes = prometheus.NewDesc("kubelet_pod_in_progress_resizes",
		"[ALPHA] Number of in-progress resizes for pods.", nil, nil)
)

// nodeMetrics counts what is on the node when it is asked.
type nodeMetrics struct {
	name    string
	workers *workers
}

// Describe implements prometheus.Collector.
func (n nodeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descNodeName, descPods, descContainers, descVolumes, descPendingResizes, descResizes,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (n nodeMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	states := map[runtimeapi.ContainerState]string{
		runtimeapi.ContainerState_CONTAINER_CREATED: "created",
		runtimeapi.ContainerState_CONTAINER_RUNNING: "running",
		runtimeapi.ContainerState_CONTAINER_EXITED:  "exited",
		runtimeapi.ContainerState_CONTAINER_UNKNOWN: "unknown",
	}
	containers := map[string]int{"running": 0}
	volumes := map[[2]string]int{}
	pending := map[string]int{"deferred": 0, "infeasible": 0}
	resizing := 0
	pods := 0
	for _, w := range n.workers.all() {
		seen := w.Observed()
		runs := seen.Current() != nil
		if runs {
			pods++
		}
		if seen != nil {
			for i := range seen.Containers {
				containers[states[seen.Containers[i].State]]++
			}
		}
		pod := w.Pod()
		if c := podkind.Condition(pod, corev1.PodResizePending); c != nil {
			pending[strings.ToLower(c.Reason)]++
		}
		if podkind.Condition(pod, corev1.PodResizeInProgress) != nil {
			resizing++
		}
		for i := range pod.Spec.Volumes {
			plugin := volume.PluginOf(&pod.Spec.Volumes[i])
			if !podkind.TerminalPhase(pod.Status.Phase) {
				volumes[[2]string{plugin, "desired_state_of_world"}]++
			}
			if runs {
				volumes[[2]string{plugin, "actual_state_of_world"}]++
			}
		}
	}
	gauge(descNodeName, 1, n.name)
	gauge(descPods, pods)
	gauge(descResizes, resizing)
	for reason, count := range pending {
		gauge(descPendingResizes, count, reason)
	}
	for state, count := range containers {
		gauge(descContainers, count, state)
	}
	for of, count := range volumes {
		gauge(descVolumes, count, of[0], of[1])
	}
}
