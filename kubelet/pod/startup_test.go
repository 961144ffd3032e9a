// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestCovered: time in which several things went on counts once.
func TestCovered(t *testing.T) {
	now := time.Now()
	at := func(from, to int) span {
		return span{now.Add(time.Duration(from) * time.Second), now.Add(time.Duration(to) * time.Second)}
	}
	for name, test := range map[string]struct {
		spans []span
		want  time.Duration
	}{
		"nothing":       {nil, 0},
		"one by one":    {[]span{at(5, 7), at(0, 3)}, 5 * time.Second},
		"overlapping":   {[]span{at(0, 3), at(1, 2), at(2, 5)}, 5 * time.Second},
		"an odd clock":  {[]span{at(4, 2)}, 0},
		"one in two":    {[]span{at(0, 10), at(1, 2), at(3, 12)}, 12 * time.Second},
		"touching ones": {[]span{at(0, 1), at(1, 2)}, 2 * time.Second},
	} {
		if got := covered(test.spans); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// TestStateless: pods with claims or directories of the node are not what the service level of starts is about.
func TestStateless(t *testing.T) {
	api := corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
	host := corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}
	if !stateless(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{api}}}) {
		t.Error("a pod with a token: want it to count")
	}
	if stateless(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{api, host}}}) {
		t.Error("a pod with a directory of the node: want it not to count")
	}
}
