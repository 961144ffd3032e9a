// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
