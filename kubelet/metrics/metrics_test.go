// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
)

func shown(t *testing.T, h http.Handler) string {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	b, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMetrics(t *testing.T) {
	metrics := New()
	metrics.ContainerTerminated(podinfo.Main, 1, "Error")
	metrics.ContainerTerminated(podinfo.Main, 1, "Error")
	metrics.ContainerTerminated(podinfo.SideCar, 0, "Completed")
	metrics.ImageVolumes(2, nil)
	metrics.ImageVolumes(1, errors.New("no"))
	target := probe.Target{
		Key:       probe.Key{Kind: probe.Liveness},
		Container: &corev1.Container{Name: "c"},
		Pod:       &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}},
	}
	metrics.ProbeDone(target, probe.Outcome{OK: true})
	metrics.ProbeDone(target, probe.Outcome{})
	metrics.ProbeDone(target, probe.Outcome{Err: errors.New("x")})
	want := map[string]http.Handler{
		`kubelet_terminated_containers_total{container_type="container",exit_code="1",reason="Error"} 2`:          metrics.Handler(),
		`kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1`: metrics.Handler(),
		"kubelet_image_volume_requested_total 3":       metrics.Handler(),
		"kubelet_image_volume_mounted_succeed_total 2": metrics.Handler(),
		"kubelet_image_volume_mounted_errors_total 1":  metrics.Handler(),
		`prober_probe_total{container="c",namespace="ns",pod="p",pod_uid="u",probe_type="Liveness",result="failed"} 1`: metrics.Probes(),
	}
	for line, h := range want {
		if got := shown(t, h); !strings.Contains(got, line+"\n") {
			t.Errorf("got\n%s\nwant the line %s", got, line)
		}
	}
	metrics.DeletePod("u")
	if got := shown(t, metrics.Probes()); got != "" {
		t.Errorf("of a forgotten pod: %s", got)
	}
}

// TestWorkIsTimed: the metrics that dashboards of kubelets show.
func TestWorkIsTimed(t *testing.T) {
	metrics := New()
	fake := critest.NewFake()
	runtime := metrics.Runtime(cri.InProcess(fake).Runtime)
	if _, err := runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "x"}); err == nil {
		t.Error("the status of a container that is not there: got no error")
	}
	images := metrics.Images(cri.InProcess(fake).Image)
	if _, err := images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}); err != nil {
		t.Fatal(err)
	}
	metrics.PodRead(time.Second)
	metrics.PodRead(time.Second)
	metrics.PodEvicted("memory.available")
	metrics.Cgroup("create", time.Millisecond)
	metrics.PodStep(true, time.Second)
	metrics.PodStep(false, time.Second)
	metrics.PodStarted(2 * time.Second)
	metrics.VolumeMounted("kubernetes.io/secret", time.Second, nil)
	metrics.VolumeMounted("kubernetes.io/secret", time.Second, errors.New("no"))
	got := shown(t, metrics.Handler())
	for _, line := range []string{
		`kubelet_runtime_operations_total{operation_type="list_containers"} 1`,
		`kubelet_runtime_operations_total{operation_type="list_images"} 1`,
		`kubelet_runtime_operations_errors_total{operation_type="container_status"} 1`,
		`kubelet_runtime_operations_duration_seconds_count{operation_type="list_containers"} 1`,
		`kubelet_pleg_relist_duration_seconds_count 2`,
		`kubelet_pleg_relist_interval_seconds_count 1`,
		`kubelet_evictions{eviction_signal="memory.available"} 1`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1`,
		`kubelet_pod_worker_duration_seconds_count{operation_type="create"} 1`,
		`kubelet_pod_worker_duration_seconds_count{operation_type="sync"} 1`,
		`kubelet_pod_start_duration_seconds_bucket{le="1"} 0`,
		`kubelet_pod_start_duration_seconds_bucket{le="2"} 1`,
		`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",` +
			`status="fail-unknown",volume_plugin="kubernetes.io/secret"} 1`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no line %s in\n%s", line, got)
		}
	}
}

// TestPodCounts: the metrics of resizes, user namespaces and the service level of starts have Kubernetes' names.
func TestPodCounts(t *testing.T) {
	metrics := New()
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
	}
	metrics.ResizeRequested("requests", cpu("1"), cpu("2"))
	metrics.ResizeRequested("requests", cpu("1"), cpu("1"))
	metrics.ResizeRequested("limits", nil, cpu("2"))
	metrics.PodResized(30*time.Millisecond, nil)
	metrics.ResizeInfeasible("insufficient_node_allocatable")
	metrics.ResizeAccepted("pods_removed")
	metrics.UserNamespacedPod(nil)
	metrics.UserNamespacedPod(errors.New("no ids"))
	metrics.PodStartLevel(-time.Second)
	text := shown(t, metrics.Handler())
	for _, line := range []string{
		`kubelet_container_requested_resizes_total{operation="increase",requirement="requests",resource="cpu"} 1`,
		`kubelet_container_requested_resizes_total{operation="add",requirement="limits",resource="cpu"} 1`,
		`kubelet_pod_resize_duration_milliseconds_sum{success="true"} 30`,
		`kubelet_pod_infeasible_resizes_total{reason_detail="insufficient_node_allocatable"} 1`,
		`kubelet_pod_deferred_accepted_resizes_total{retry_trigger="pods_removed"} 1`,
		`kubelet_started_user_namespaced_pods_total 2`,
		`kubelet_started_user_namespaced_pods_errors_total 1`,
		`kubelet_pod_start_sli_duration_seconds_sum 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("got %s\nwithout %s", text, line)
		}
	}
}
