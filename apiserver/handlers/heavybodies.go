// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"

	"keelson/apiserver/pipeline"
	"keelson/lib/connlimit"
	"keelson/lib/shares"
)

// A request with a large body takes memory as long as it runs, also when its client has left: the bytes until they are
// decoded, and then up to a kilobyte for each object and list of the document. So tenants have few places for such
// bodies and documents, which they share by owner. Administrators, nodes and components need none.
const (
	// largeBody is the size from which a body needs a place while it is read and decoded. The document that it is needs
	// one then if nothing is known of its parts: JSON has them counted.
	largeBody = 256 << 10
	// manyParts is the number of objects and lists from which a document needs a place until its request ends.
	manyParts = 2000
)

// heavyBodies are the places of a server.
type heavyBodies struct{ bodies, documents *shares.Shares }

var heavy = newHeavyBodies()

// newHeavyBodies lets one tenant read 16 bodies at a time of 3 MiB each, and make one object of many parts; all tenants
// together 64 and 8.
func newHeavyBodies() *heavyBodies {
	return &heavyBodies{bodies: shares.New(16, 64), documents: shares.New(1, 8)}
}

// read waits for a place for a body of length bytes, -1 if that is unknown. leave gives it back.
func (h *heavyBodies) read(ctx context.Context, rq *pipeline.Request, length int64) (leave func(), err error) {
	owner, ok := tenant(rq)
	if !ok || length >= 0 && length < largeBody {
		return func() {}, nil
	}
	if leave, err = h.bodies.Enter(ctx, owner); err != nil {
		return nil, fmt.Errorf("wait to read a large body: %w", err)
	}
	return leave, nil
}

// decode waits for a place for a document of this size. The request gives it back when it ends.
func (h *heavyBodies) decode(ctx context.Context, rq *pipeline.Request, size, parts int) error {
	owner, ok := tenant(rq)
	if !ok || parts < manyParts && (parts > 0 || size < largeBody) {
		return nil
	}
	leave, err := h.documents.Enter(ctx, owner)
	if err != nil {
		return fmt.Errorf("wait to decode a large document: %w", err)
	}
	rq.OnEnd(leave)
	return nil
}

// tenant is the owner of a tenant's request.
func tenant(rq *pipeline.Request) (name string, ok bool) {
	if rq == nil || rq.User == nil {
		return "", false
	}
	owner := rq.Owner()
	return owner.Name, owner.Rank == connlimit.Tenant
}
