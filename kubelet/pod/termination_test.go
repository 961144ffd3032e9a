// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/runtimestate"
)

// TestTerminationMessages: the messages of a pod's containers take 12 KiB in all.
func TestTerminationMessages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "message")
	if err := os.WriteFile(file, []byte(strings.Repeat("é", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	const path = "/dev/termination-log"
	container := corev1.Container{Name: "c", TerminationMessagePath: path}
	cur := &runtimestate.Container{Mounts: []*runtimeapi.Mount{{ContainerPath: path, HostPath: file}}}
	for containers, want := range map[int]int{1: 4096, 3: 4096, 4: 3072, 7: 1754} { // 12288/7 is odd, "é" two bytes
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{container},
			Containers:     make([]corev1.Container, containers-1),
		}}
		if got := terminationMessage(pod, &container, cur); len(got) != want || strings.Trim(got, "é") != "" {
			t.Errorf("one of %d containers: %d bytes, want %d", containers, len(got), want)
		}
	}
}
