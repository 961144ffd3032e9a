// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	goruntime "runtime"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
)

// TestExecOutputIsBounded: no more of a command's output is kept than the caller asks for, and the
// command ends as it would.
func TestExecOutputIsBounded(t *testing.T) {
	node := newNode(t)
	_, id := node.run("loud")
	request := &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd: []string{
			"/hello", "sh", "-c", "dd if=/dev/zero bs=1M count=16; dd if=/dev/zero bs=1M count=16 >&2; exit 7",
		},
	}
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	resp, err := node.c.Runtime.ExecSync(cri.LimitOutput(t.Context(), 10<<10), request)
	goruntime.ReadMemStats(&after)
	if err != nil || len(resp.GetStdout()) != 10<<10 || len(resp.GetStderr()) != 10<<10 || resp.GetExitCode() != 7 {
		t.Errorf("got %d and %d bytes, exit code %d, %v; want 10240 each, 7", len(resp.GetStdout()),
			len(resp.GetStderr()), resp.GetExitCode(), err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 8<<20 {
		t.Errorf("%d bytes were allocated, want 8 MB at most", made)
	}
	out, code, err := cri.Output(t.Context(), node.c.Runtime, request, 1<<10)
	if err != nil || len(out) != 1<<10 || code != 7 {
		t.Errorf("got %d bytes, exit code %d, %v; want 1024, 7", len(out), code, err)
	}
	resp, err = node.c.Runtime.ExecSync(t.Context(), request)
	if err != nil || len(resp.GetStdout()) != 16<<20 {
		t.Errorf("without a limit: got %d bytes, %v; want CRI's 16 MiB", len(resp.GetStdout()), err)
	}
}
