// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/csi"
)

// TestClaimMetrics: a claim that two pods use is reported once, a generic ephemeral volume by its claim's name; what no
// driver says is left out, and volumes that are no claims are not asked for.
func TestClaimMetrics(t *testing.T) {
	claim := corev1.Volume{
		Name: "data",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "db"},
		},
	}
	own := corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	silent := corev1.Volume{
		Name: "silent",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "silent"},
		},
	}
	pod := func(name string, volumes ...corev1.Volume) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.PodSpec{
				Volumes: volumes,
			},
		}
	}
	pods := []*corev1.Pod{pod("a", claim, silent), pod("b", claim, own, corev1.Volume{
		Name:         "dir",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})}
	source := New(Config{
		Pods: func() []*corev1.Pod { return pods },
		ClaimUsage: func(_ context.Context, _ *corev1.Pod, volume string) *csi.Usage {
			switch volume {
			case "data":
				return &csi.Usage{
					Capacity:   new(int64(1000)),
					Used:       new(int64(400)),
					Available:  new(int64(600)),
					Inodes:     new(int64(10)),
					InodesFree: new(int64(7)),
					InodesUsed: new(int64(3)),
				}
			case "scratch":
				return &csi.Usage{Capacity: new(int64(50))}
			case "dir":
				t.Errorf("an emptyDir is asked for")
			}
			return nil
		},
	})
	r := prometheus.NewRegistry()
	r.MustRegister(source)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{strings.TrimPrefix(f.GetName(), "kubelet_volume_stats_")}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			got[strings.Join(name, " ")] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"capacity_bytes shop db":        1000,
		"used_bytes shop db":            400,
		"available_bytes shop db":       600,
		"inodes shop db":                10,
		"inodes_free shop db":           7,
		"inodes_used shop db":           3,
		"capacity_bytes shop b-scratch": 50,
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %v, want %v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
