// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// outputLimit is the context key of LimitOutput.
type outputLimit struct{}

// LimitOutput returns a context in which ExecSync keeps the first most bytes of each stream. The runtime in this
// process obeys; one behind a socket does not know the limit, and sends up to 16 MB.
func LimitOutput(ctx context.Context, most int) context.Context {
	return context.WithValue(ctx, outputLimit{}, most)
}

// OutputLimit returns the limit of LimitOutput, at most most.
func OutputLimit(ctx context.Context, most int) int {
	if n, ok := ctx.Value(outputLimit{}).(int); ok {
		return min(n, most)
	}
	return most
}

// Output runs a command in a container and returns its exit code and the first most bytes of what it printed,
// standard output before standard error.
func Output(
	ctx context.Context, rt runtimeapi.RuntimeServiceClient, r *runtimeapi.ExecSyncRequest, most int,
) (output []byte, code int32, err error) {
	resp, err := rt.ExecSync(LimitOutput(ctx, most), r)
	if err != nil {
		return nil, 0, err
	}
	out := make([]byte, 0, min(len(resp.GetStdout())+len(resp.GetStderr()), most))
	for _, stream := range [][]byte{resp.GetStdout(), resp.GetStderr()} {
		out = append(out, stream[:min(len(stream), most-len(out))]...)
	}
	return out, resp.GetExitCode(), nil
}
