// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"fmt"
	"runtime"

	"keelson/apiserver/pipeline"
	"keelson/lib/cpusem"
)

// largeWrite is the body size from which the computation of managed fields may take long.
const largeWrite = 64 << 10

// largeWrites limits concurrent computations of managed fields for large writes to the number of CPUs. It also applies
// to administrators, who are exempt from priority and fairness.
var largeWrites = newLargeWrites()

func newLargeWrites() *cpusem.Gate { return cpusem.New(runtime.GOMAXPROCS(0)) }

// InTurn runs compute, which computes the managed fields of rq. Large writes wait for their turn, within the request's
// deadline.
func InTurn(ctx context.Context, rq *pipeline.Request, compute func() error) error {
	if rq.Length >= 0 && rq.Length < largeWrite { // -1: unknown length
		return compute()
	}
	if err := largeWrites.EnterContext(ctx); err != nil {
		return fmt.Errorf("wait for a processor: %w", err)
	}
	defer largeWrites.Leave()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for a processor: %w", err)
	}
	return compute()
}
