// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

const (
	// maxOperations bounds the length of a JSON patch.
	maxOperations = 10000
	// maxCopyBytes bounds what the copy operations of one patch add to an object, in bytes: the value that Kubernetes
	// gives the library. A copy of a value into itself doubles it.
	maxCopyBytes = 3 << 20
	// operationsPerCheck is how many operations run between two looks at the context. The object is encoded again after
	// each.
	operationsPerCheck = 500
)

// LimitCopies makes every JSON patch of this process obey maxCopyBytes, also those that Kubernetes' admission libraries
// apply. The server calls it when it starts; JSON patches call it too.
var LimitCopies = sync.OnceFunc(func() { jsonpatch.AccumulatedCopySizeLimit = maxCopyBytes })

// ApplyOperations applies a JSON patch to doc. It ends with ctx.
func ApplyOperations(ctx context.Context, ops jsonpatch.Patch, doc []byte) ([]byte, error) {
	LimitCopies()
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("apply JSON patch: %w", err)
		}
		part := ops[:min(len(ops), operationsPerCheck)]
		ops = ops[len(part):]
		var err error
		if doc, err = part.Apply(doc); err != nil || len(ops) == 0 {
			return doc, err
		}
	}
}

// operation is one of a JSON patch, to find what else it says.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func applyJSON(ctx context.Context, doc, p []byte, check bool) (out []byte, strict []error, err error) {
	if check {
		var words []operation
		if strict, err = kjson.UnmarshalStrict(p, &words); err != nil {
			return nil, nil, undecodable(err)
		}
		for i, e := range strict {
			strict[i] = fmt.Errorf("json patch %w", e)
		}
	}
	ops, err := jsonpatch.DecodePatch(p)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(ops) > maxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(ops)))
	}
	if out, err = ApplyOperations(ctx, ops, doc); err != nil {
		if ctx.Err() != nil {
			return nil, nil, err
		}
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{},
			"", err.Error(), 0, false)
	}
	return out, strict, nil
}
