// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStopSignal: the container's stop signal counts, then the image's in any of its forms, then SIGTERM.
func TestStopSignal(t *testing.T) {
	for _, c := range []struct {
		image     string
		container runtimeapi.Signal
		want      unix.Signal
	}{
		{"", 0, unix.SIGTERM},
		{"SIGKILL", 0, unix.SIGKILL},
		{"quit", 0, unix.SIGQUIT},
		{"3", 0, unix.SIGQUIT},
		{"SIGRTMIN", 0, 34},
		{"SIGRTMIN+3", 0, 37},
		{"SIGRTMAX-1", 0, 63},
		{"SIGRTMAX+1", 0, unix.SIGTERM},
		{"0", 0, unix.SIGTERM},
		{"65", 0, unix.SIGTERM},
		{"nonsense", 0, unix.SIGTERM},
		{"SIGKILL", runtimeapi.Signal_SIGNAL_SIGUSR1, unix.SIGUSR1},
		{"", runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, 37},
	} {
		record := &ContainerRecord{StopSignal: c.image}
		record.Config.V = &runtimeapi.ContainerConfig{StopSignal: c.container}
		if got := record.Signal(); got != c.want {
			t.Errorf("image %q, container %s: got %v, want %v", c.image, c.container, got, c.want)
		}
	}
}
