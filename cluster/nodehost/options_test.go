// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"strings"
	"testing"

	"keelson/kubelet"
)

// TestReserved: what is reserved for the cluster and for the machine is added up, and what cannot be is an error.
func TestReserved(t *testing.T) {
	o := Options{
		Reserved: ReservedOptions{
			Kube:   map[string]string{"cpu": "100m", "memory": "1Gi"},
			System: map[string]string{"memory": "512Mi", "ephemeral-storage": "1Gi"},
		},
		MaxPods: 7,
		Images:  ImageOptions{ParallelPulls: 2},
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	var config kubelet.Config
	o.Apply(&config)
	got := config.KubeReserved
	if got.Cpu().String() != "100m" || got.Memory().String() != "1536Mi" || len(got) != 3 ||
		config.MaxPods != 7 || config.ParallelPulls != 2 {
		t.Errorf("got %v, %d pods, %d pulls", got, config.MaxPods, config.ParallelPulls)
	}
	for want, wrong := range map[string]Options{
		"--kube-reserved: pid cannot be reserved":             {Reserved: ReservedOptions{Kube: map[string]string{"pid": "100"}}},
		"--kube-reserved memory=much: ":                       {Reserved: ReservedOptions{Kube: map[string]string{"memory": "much"}}},
		"--system-reserved cpu=-1: it is negative":            {Reserved: ReservedOptions{System: map[string]string{"cpu": "-1"}}},
		"--max-pods -1: a node runs at least 1 pod":           {MaxPods: -1},
		"--max-parallel-image-pulls -1: at least 1 is needed": {Images: ImageOptions{ParallelPulls: -1}},
	} {
		if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
