// SPDX-License-Identifier: Apache-2.0

package image

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

// TestMetrics: requests for images count by whether the image was there and had to be pulled, looks at pull records by
// their result, and the records on the disk are counted.
func TestMetrics(t *testing.T) {
	m := manager(t, cri.InProcess(critest.NewFake()).Image)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	ensure := func(image string, policy corev1.PullPolicy) {
		_, err := m.Ensure(t.Context(), Request{PodUID: "a", Image: image, Policy: policy})
		t.Logf("%s: %v", image, err)
	}
	ensure(critest.HelloImage, corev1.PullIfNotPresent)
	ensure("keelson.test/none:1", corev1.PullNever)
	ensure("a/there:1", corev1.PullAlways)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"kubelet_image_manager_ensure_image_requests_total true ifnotpresent false": 1,
		"kubelet_image_manager_ensure_image_requests_total false never unknown":     1,
		"kubelet_image_manager_ensure_image_requests_total unknown always true":     1,
		"kubelet_imagemanager_image_mustpull_checks_total credentialPolicyAllowed":  1,
		"kubelet_imagemanager_ondisk_pullintents":                                   0,
		"kubelet_imagemanager_ondisk_pulledrecords":                                 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: got %v, want %v (all: %v)", name, v, want, got)
		}
	}
}
