// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/kubelet/probe"
)

// TestExecTakesTooLong: an exec probe that takes longer than its timeoutSeconds has failed (ExecProbeTimeout).
func TestExecTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.NewFake()
		rt.SetExec(func(*runtimeapi.ContainerConfig, []string) critest.ExecResult {
			return critest.ExecResult{Takes: 3 * time.Second}
		})
		target := target(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "3"}}})
		target.Key = probe.Key{ContainerID: startFake(t, rt)}
		runner := probe.NewRunner(cri.InProcess(rt).Runtime, "1.37")
		for seconds, ok := range map[int32]bool{2: false, 4: true} {
			target.Probe.TimeoutSeconds = seconds
			if got := runner.Probe(t.Context(), target); got.OK != ok {
				t.Errorf("%d seconds: got %+v, want %v", seconds, got, ok)
			}
		}
	})
}
