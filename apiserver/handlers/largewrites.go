// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"runtime"

	"keelson/apiserver/pipeline"
	"keelson/lib/turns"
)

// largeWrite is the length of a body from which finding the owners of its fields may take long.
const largeWrite = 64 << 10

// largeWrites lets as many large writes at once find their field owners as there are processors. It is for administrators too, whom
// priority and fairness do not limit.
var largeWrites = newLargeWrites()

func newLargeWrites() *turns.Gate { return turns.New(runtime.GOMAXPROCS(0)) }

// inTurn runs compute, which finds the owners of the fields that rq writes. Large writes take turns; the wait counts in the
// request's deadline.
func inTurn(ctx context.Context, rq *pipeline.Request, compute func() error) error {
	if rq.Length >= 0 && rq.Length < largeWrite { // -1: it may be as large as any
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
